"""`CancelOnDisconnect`: a client that goes away cancels what was done for it.

Frameworks look for a disconnect only where they stream, if at all. Here every handler runs in a
scope of its own, beside a task that waits for the disconnect.
"""

from __future__ import annotations

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DISCONNECTED = "sidestream.disconnected"
"""Key of an ASGI scope: whether its client has gone."""


class CancelOnDisconnect:
    """Pure-ASGI middleware: the app runs in a scope that a disconnect cancels."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = False

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        # One message at a time: a client cannot fill memory with a body that nobody reads.
        arrived, messages = trio.open_memory_channel[Message](1)
        async with messages, arrived, trio.open_nursery() as nursery:

            async def watch() -> None:
                while True:
                    message = await receive()
                    # Servers tell the end of an exchange in the same way.
                    if message["type"] == "http.disconnect" and not answered:
                        scope[DISCONNECTED] = True
                        nursery.cancel_scope.cancel("the client disconnected")
                    await arrived.send(message)

            nursery.start_soon(watch)
            await self._app(scope, messages.receive, noted)
            nursery.cancel_scope.cancel("the response is complete")
