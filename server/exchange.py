"""`Exchange`: one request of HTTP, and what is noted of it on its way for logs and traces.

A context variable leads to it from whatever is done for the request, tasks that it started
included.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from .tracking import RequestRecord

CURRENT: ContextVar[Exchange | None] = ContextVar("sidestream.exchange", default=None)


@dataclass(slots=True)
class Exchange:
    """A request of HTTP."""

    request_id: str
    method: str
    path: str
    client: str
    quiet: bool = False
    """Whether it is worth no line and no span."""
    route: str | None = None
    """Of the path, the template; None if there is no such route."""
    status: int = 0
    sent: int = 0
    """Bytes of the answer's body."""
    record: RequestRecord | None = None
    """What the engine ran for it."""
    encoding: int = 0
    """For how long outputs were encoded for the answer, ns."""
    trace_id: str | None = None
    began: int = field(default_factory=time.monotonic_ns)
    ended: int = 0
    epoch: int = field(default_factory=lambda: epoch_of_monotonic())
    """Where CLOCK_MONOTONIC begins, ns since 1970; one for all phases, so that they fit together
    even if the clock is set meanwhile."""


def epoch_of_monotonic() -> int:
    """Return where CLOCK_MONOTONIC begins, ns since 1970."""
    return time.time_ns() - time.monotonic_ns()
