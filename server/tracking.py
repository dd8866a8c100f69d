"""`RequestBook`: where each request stands, for those who ask while it runs or soon after."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from ..engine import (
    Completed,
    DuplicateRequestError,
    Event,
    Progress,
    RequestStream,
    RequestTimings,
    RequestTrace,
    Started,
)

REMEMBERED = 1000
"""Requests that have ended and can still be asked about."""

State = Literal["queued", "running", "completed", "failed", "cancelled"]
Interval = tuple[int, int]
"""Begin and end, ns of CLOCK_MONOTONIC."""


def phases_in(trace: RequestTrace) -> dict[str, Interval]:
    """Return the phases that a request has come through, in order.

    Of a forward that nobody waited for, only the end of the queueing is known.
    """
    phases = {
        "queued": (trace.submitted, trace.forward_start or trace.dispatched or trace.ended),
        "forward": (trace.forward_start, trace.forward_end),
        "copy": (trace.copy_start, trace.copy_end),
        "postprocess": (trace.postprocess_start, trace.postprocess_end),
    }
    return {name: phase for name, phase in phases.items() if all(phase)}


@dataclass(slots=True)
class RequestRecord:
    """One request."""

    request_id: str
    created: float = field(default_factory=time.time)
    state: State = "queued"
    step: int | None = None
    total: int | None = None
    eta: float | None = None
    error: str | None = None
    """The class of what ended it, unless it ended well."""
    trace: RequestTrace | None = None
    timings: RequestTimings | None = None
    """Of what has been completed."""
    abort_seconds: float | None = None
    """From its client's leaving until the worker let go."""

    @property
    def ended(self) -> bool:
        """Whether it has an outcome."""
        return self.state not in ("queued", "running")

    @property
    def phases(self) -> dict[str, Interval]:
        """The phases that it has come through, in order."""
        return {} if self.trace is None else phases_in(self.trace)

    def end(self, state: State, error: BaseException | None = None) -> None:
        """Note how it ended."""
        self.state = state
        self.eta = None
        self.error = None if error is None else type(error).__name__

    def note(self, event: Event) -> None:
        """Note what the engine tells."""
        match event:
            case Started():
                self.state = "running"
            case Progress(step=step, total=total, eta=eta):
                self.step, self.total, self.eta = step, total, eta
            case Completed(result=result):
                self.timings = result.timings
                self.end("completed")
            case _:
                pass


class RequestBook:
    """Records of all requests that are under way, and of the latest that have ended."""

    def __init__(self) -> None:
        self._live: dict[str, RequestRecord] = {}
        self._ended: dict[str, RequestRecord] = {}

    def is_live(self, request_id: str) -> bool:
        """Whether a request of this name is under way."""
        return request_id in self._live

    def find(self, request_id: str) -> RequestRecord | None:
        """Return what is known of a request."""
        return self._live.get(request_id) or self._ended.get(request_id)

    def open(self, request_id: str) -> RequestRecord:
        """Begin a record.

        Raises:
          DuplicateRequestError: there is a request of this name.
        """
        if request_id in self._live:
            raise DuplicateRequestError(f"request_id {request_id!r} is already under way")
        self._ended.pop(request_id, None)
        record = self._live[request_id] = RequestRecord(request_id)
        return record

    def close(self, record: RequestRecord) -> None:
        """Put a record to those that have ended, and forget the oldest of them."""
        del self._live[record.request_id]
        self._ended[record.request_id] = record
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]


class NotedEvents:
    """The events of a request, each noted in its record as it passes."""

    def __init__(self, events: RequestStream, record: RequestRecord) -> None:
        self._events = events
        self._record = record

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await anext(self._events)
        self._record.note(event)
        return event
