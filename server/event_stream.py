"""`ImageEventStream`: an answer of server-sent events, as the OpenAI Images API has them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import trio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..engine import Completed, DiffusionRequest, Event, Preview, Progress, Queued, Started
from .encoding import event_pieces, plain_event
from .errors import ApiError
from .metrics import phases_of
from .service import Service

START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}


class ImageEventStream(Response):
    """Runs a request while it is sent: ``partial_image`` and perhaps ``progress`` events, then one
    ``completed`` for each picture, or an ``error``.

    Args:
      service: runs it.
      request: with previews, if there are to be any.
      kind: of the events, before the dot: ``image_generation`` or ``image_edit``.
      fields: of every event.
      progress: whether to tell the place in the queue, and each step.
    """

    def __init__(
        self,
        service: Service,
        request: DiffusionRequest,
        kind: str,
        fields: Mapping[str, Any],
        *,
        progress: bool = False,
    ) -> None:
        super().__init__()
        self._service = service
        self._request = request
        self._kind = kind
        self._fields = {**fields, "created_at": int(time.time())}
        self._progress = progress
        self._previews = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request and send its events.

        Raises:
          ApiError: the request was refused, before anything was sent.
        """
        begun = False
        try:
            async with self._service.run(self._request) as events:
                async for event in events:
                    if not begun:  # it was admitted, so the status is known
                        begun = True
                        await send(dict(START))
                    for piece in await self._pieces(event):
                        await send(_body(piece))
        except ApiError as error:
            if not begun:
                raise
            await send(_body(plain_event("error", error.body())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self, event: Event) -> Sequence[bytes]:
        """Return what is sent of an event."""
        if isinstance(event, Preview):
            index, self._previews = self._previews, self._previews + 1
            return await self._encoded(
                "partial_image", event.image, partial_image_index=index, step=event.step
            )
        if isinstance(event, Completed):
            result = event.result
            timings = phases_of(result.timings)
            return [
                piece
                for index, picture in enumerate(self._service.pictures_of(result))
                for piece in await self._encoded(
                    "completed", picture, seed=result.seed + index, timings=timings
                )
            ]
        told = progress_of(event) if self._progress else None
        return () if told is None else [plain_event(f"{self._kind}.progress", told)]

    async def _encoded(self, kind: str, picture: bytes, **fields: Any) -> list[bytes]:
        with self._service.encoding():
            return await trio.to_thread.run_sync(
                event_pieces, f"{self._kind}.{kind}", picture, {**self._fields, **fields}
            )


def progress_of(event: Event) -> dict[str, Any] | None:
    """Return what a ``progress`` event tells, None of events that have one of their own."""
    match event:
        case Queued(position=position):
            return {"state": "queued", "queue_position": position}
        case Started():
            return {"state": "running"}
        case Progress(step=step, total=total, eta=eta):
            return {"state": "running", "step": step, "total": total, "eta": eta}
        case _:
            return None


def _body(piece: bytes) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": True}
