"""What the scheduler keeps for a request, and the states it goes through.

`TRANSITIONS` is the whole life cycle: WAITING -> RUNNING -> one of three ends, with PREEMPTED for a
running request that gave its place up for a while.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field


class DiffusionRequestStatus(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_COMPLETED = "finished_completed"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"

    @property
    def is_finished(self) -> bool:
        """Whether this is an end state."""
        return self.name.startswith("FINISHED")


_S = DiffusionRequestStatus
TRANSITIONS: dict[DiffusionRequestStatus, frozenset[DiffusionRequestStatus]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.FINISHED_ABORTED, _S.FINISHED_ERROR}),
    _S.RUNNING: frozenset(
        {_S.PREEMPTED, _S.FINISHED_COMPLETED, _S.FINISHED_ABORTED, _S.FINISHED_ERROR}
    ),
    _S.PREEMPTED: frozenset({_S.RUNNING, _S.FINISHED_ABORTED, _S.FINISHED_ERROR}),
    _S.FINISHED_COMPLETED: frozenset(),
    _S.FINISHED_ABORTED: frozenset(),
    _S.FINISHED_ERROR: frozenset(),
}


@dataclass(eq=False, slots=True)
class SchedulerRequestState:
    """A request as the scheduler sees it: identity and policy, no payload."""

    request_id: str
    key: Hashable = None
    """Requests of equal keys may share a wave."""
    priority: int = 0
    arrival: float = 0.0
    """Seconds, on the clock that is passed to every call of the scheduler."""
    order: int = 0
    """Position in the order of arrival, which breaks ties."""
    status: DiffusionRequestStatus = field(default=DiffusionRequestStatus.WAITING)


@dataclass(frozen=True, slots=True)
class DiffusionSchedulerOutput:
    """What is to run next: the boundary between policy and execution."""

    scheduled_request_ids: tuple[str, ...]
    """The wave, in order."""
    finished_request_ids: tuple[str, ...] = ()
    """Requests that ended since the last output; runners drop what they keep for them."""


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What became of one running request's forward."""

    request_id: str
    error: bool = False
    aborted: bool = False
