"""Bodies of requests: bounds for those that are read, and an end for those that are not."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .input_bytes import InputBytes, InputShare

LINGER_S = 2.0
"""How long a client may go on sending a body that nobody reads: one that is cut off while it sends
does not see the answer."""


class BodyLimit:
    """Pure-ASGI middleware: reading a body raises `ApiError` where it breaks the bounds.

    Args:
      app: reads bodies.
      inputs: counts what has been read for as long as the app runs; without room for a
        Content-Length, not a byte is read.
      max_bytes: of a body; nor is one of a larger Content-Length.
      seconds: for a whole body.
    """

    def __init__(self, app: ASGIApp, inputs: InputBytes, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._inputs = inputs
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_declared(dict(scope["headers"]).get(b"content-length", b"0"))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        with self._inputs.share(scope) as share:
            await self._app(scope, self._limited(receive, share), send)

    def _check_declared(self, length: bytes) -> None:
        if len(length) > 18 or int(length) > self._max_bytes:
            raise self._too_large()
        self._inputs.check_room(int(length))

    def _limited(self, receive: Receive, share: InputShare) -> Receive:
        received = 0
        deadline = trio.current_time() + self._seconds

        async def limited() -> Message:
            nonlocal received, deadline
            with trio.move_on_at(deadline) as timer:
                message = await receive()
            if timer.cancelled_caught:
                raise ApiError(408, f"the body did not come within {self._seconds:g} s")
            size = len(message.get("body", b""))
            received += size
            if received > self._max_bytes:
                raise self._too_large()
            share.take(size)
            if not message.get("more_body", False):
                deadline = math.inf
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(413, f"a body may have {self._max_bytes} bytes", code="too_large")


class DiscardUnread:
    """Pure-ASGI middleware: what an app leaves unread of a body is read and dropped.

    Otherwise hypercorn would wait for ever to hand it over, and the client could not see the answer
    for its own sending.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unread = True

        async def noted() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def discard() -> None:
            while unread:
                await noted()

        async def last(message: Message) -> None:
            if message.get("more_body", False) or message["type"] != "http.response.body":
                await send(message)
                return
            if unread:
                await send({**message, "more_body": True})
                with trio.move_on_after(LINGER_S):
                    await discard()
                message = {**message, "body": b""}
            await _beside(discard, send, message)

        await self._app(scope, noted, last)


async def _beside(background: Callable[[], Awaitable[None]], send: Send, message: Message) -> None:
    """Send while something else runs, which ends with it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(background)
        await send(message)
        nursery.cancel_scope.cancel("it was sent")
