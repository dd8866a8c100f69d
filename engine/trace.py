"""When the phases of requests took place, and what that says of the devices.

A `RequestTrace` goes with each request and is kept, for a while, when it has ended. From the
forwards among them a `DeviceMeter` for each worker counts how long its device worked, and how long
it could have worked and did not: the bubble.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from ..ipc_ext.messages import Timings

Outcome = Literal["completed", "failed", "aborted"]


@dataclass(slots=True)
class RequestTrace:
    """When a request's phases took place: ns of CLOCK_MONOTONIC; 0: it did not get there.

    Forward and copy are those of the worker. On a CUDA device a forward is told by the device's own
    clock; one that failed or was aborted, by the host's.
    """

    request_id: str
    submitted: int
    number: int = 0
    """Counts the requests that have ended, from 1."""
    worker: int = -1
    """Whose it was; -1 if it was given to none."""
    outcome: Outcome | None = None
    """None until its result is there, or its caller has left without."""
    dispatched: int = 0
    forward_start: int = 0
    forward_end: int = 0
    copy_start: int = 0
    copy_end: int = 0
    arrived: int = 0
    """When the output was in the engine's hands."""
    postprocess_start: int = 0
    postprocess_end: int = 0
    ended: int = 0
    """When the caller left, with or without a result."""

    def note_device(self, timings: Timings) -> None:
        """Take a worker's time stamps over."""
        self.forward_start, self.forward_end = timings.forward_start, timings.forward_end
        self.copy_start, self.copy_end = timings.copy_start, timings.copy_end


class TraceLog:
    """The latest requests that have ended.

    Args:
      limit: how many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._traces: deque[RequestTrace] = deque(maxlen=limit)
        self._count = 0

    def add(self, trace: RequestTrace) -> None:
        """Number and keep a trace, in place of the oldest one if there is no room."""
        self._count += 1
        trace.number = self._count
        self._traces.append(trace)

    def after(self, number: int) -> list[RequestTrace]:
        """Return what was added after the trace of a number, oldest first."""
        new = min(self._count - number, len(self._traces))
        return [self._traces[index] for index in range(-new, 0)]


class DeviceMeter:
    """How the device of one worker spends its time.

    Forwards that overlap count once. In step mode a request's forward goes from its first step to
    its last one, whatever steps of others lie between.
    """

    def __init__(self) -> None:
        self.busy_ns = 0
        self.bubble_ns = 0
        """Between forwards, while the next request was waiting already."""
        self._busy_until = 0

    def note(self, submitted: int, start: int, end: int) -> None:
        """Count a forward that has ended, of a request that came at `submitted`."""
        self.bubble_ns += max(0, start - max(submitted, self._busy_until))
        self.busy_ns += max(0, end - max(start, self._busy_until))
        self._busy_until = max(end, self._busy_until)
