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
    _S.PREEMPTED: frozenset(  # it may still end in a tick that was under way
        {_S.RUNNING, _S.FINISHED_COMPLETED, _S.FINISHED_ABORTED, _S.FINISHED_ERROR}
    ),
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
    pixels: int = 0
    """What a step of it costs, in pixels of output; 0 where nobody knows."""
    steps: int | None = None
    """Denoising steps that it takes, None while that is not known."""
    step: int = 0
    """Denoising steps that it has taken, as far as the worker has told."""
    worker: int = -1
    """The worker that keeps its state between steps; -1 until it has one."""
    in_flight: int = 0
    """Ticks that name it and whose end the worker has not told."""

    @property
    def remaining_steps(self) -> int | None:
        """Denoising steps still to take, None while that is not known."""
        return None if self.steps is None else max(self.steps - self.step, 0)


@dataclass(frozen=True, slots=True)
class DiffusionSchedulerOutput:
    """What is to run next: the boundary between policy and execution."""

    scheduled_request_ids: tuple[str, ...]
    """The wave, in order; in step mode, who takes a step."""
    finished_request_ids: tuple[str, ...] = ()
    """Requests that ended since the last output; runners drop what they keep for them."""
    new_request_ids: tuple[str, ...] = ()
    """In step mode: those of the scheduled that start now."""
    preempted_request_ids: tuple[str, ...] = ()
    """In step mode: requests that lost their place since the last output."""


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What became of one running request's forward, or of its step."""

    request_id: str
    error: bool = False
    aborted: bool = False
    finished: bool = True
    """Whether the request has ended; else a step was taken."""
    step: int | None = None
    """Denoising steps taken; None: as before."""
    total: int | None = None
    """Denoising steps to take, None where the pipeline does not tell."""
