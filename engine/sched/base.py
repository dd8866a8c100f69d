"""`BaseScheduler`: request states, the waiting and running sets, capacity, terminal transitions.

A scheduler is plain data: no I/O, no clock (time is an argument, in seconds), no tasks. The engine
owns one and is its only caller. Subclasses decide what goes next: `RequestScheduler` whole
requests, `StepScheduler` single steps.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from .states import (
    TRANSITIONS,
    DiffusionRequestStatus,
    DiffusionSchedulerOutput,
    RunnerOutput,
    SchedulerRequestState,
)

if TYPE_CHECKING:
    from ..config import EngineConfig


class BaseScheduler(abc.ABC):
    """Keeps one life for each admitted request, from `add_request` to one end state.

    Attributes:
      mode: what it schedules: the engine binds the matching call of the executor.
    """

    mode: ClassVar[Literal["request", "step"]]

    @classmethod
    @abc.abstractmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """Make one that follows an engine's settings."""

    def __init__(self) -> None:
        self._requests: dict[str, SchedulerRequestState] = {}
        self._waiting: dict[str, SchedulerRequestState] = {}
        self._running: dict[str, SchedulerRequestState] = {}
        self._finished_since: list[str] = []
        self._arrivals = 0
        self.max_num_running_reqs = 1
        self.num_workers = 1

    def initialize(self, *, max_num_running_reqs: int, num_workers: int = 1) -> None:
        """Set the capacity: how many requests may be running at a time, on how many workers."""
        self.max_num_running_reqs = max_num_running_reqs
        self.num_workers = num_workers

    # -- what is there

    @property
    def num_waiting(self) -> int:
        """Requests that wait to run for the first time or again."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests whose forward has been dispatched and has not ended."""
        return len(self._running)

    @property
    def num_preempted(self) -> int:
        """Of those that wait, requests that have run already and lost their place."""
        preempted = DiffusionRequestStatus.PREEMPTED
        return sum(state.status is preempted for state in self._waiting.values())

    def status(self, request_id: str) -> DiffusionRequestStatus | None:
        """Return where a request stands, None if it is not (or no longer) here."""
        state = self._requests.get(request_id)
        return None if state is None else state.status

    def queue_position(self, request_id: str, now: float) -> int | None:
        """Return how many requests wait ahead of this one, None if it is not waiting."""
        state = self._waiting.get(request_id)
        if state is None:
            return None
        own = self.rank(state, now)
        return len([other for other in self._waiting.values() if self.rank(other, now) < own])

    def rank(self, state: SchedulerRequestState, now: float) -> Any:
        """Return what waiting requests are ordered by, the first to run having the least."""
        return state.order

    # -- life

    def add_request(self, state: SchedulerRequestState, now: float) -> None:
        """Admit a request as WAITING.

        Raises:
          ValueError: a request of this id lives here already.
        """
        if state.request_id in self._requests:
            raise ValueError(f"request {state.request_id!r} exists already")
        self._arrivals += 1
        state = replace(
            state, arrival=now, order=self._arrivals, status=DiffusionRequestStatus.WAITING
        )
        self._requests[state.request_id] = self._waiting[state.request_id] = state

    @abc.abstractmethod
    def schedule(self, now: float, worker: int = 0) -> DiffusionSchedulerOutput | None:
        """Choose what a worker that has room is to run next; None if there is nothing for it now.
        Requests that are chosen are RUNNING from then on."""

    def next_decision(self, now: float) -> float | None:
        """Return when `schedule` may choose something that it does not choose now, None if only an
        event changes that."""
        return None

    def update_from_output(self, outputs: Iterable[RunnerOutput]) -> list[str]:
        """Apply what became of running requests; return those that ended by it. Unknown ids are
        late news: ignored."""
        ended = []
        for output in outputs:
            if output.request_id in self._running:
                self.finish_request(output.request_id, end_of(output))
                ended.append(output.request_id)
        return ended

    def finish_request(self, request_id: str, status: DiffusionRequestStatus) -> bool:
        """Take a request to an end state and forget it; False if it is not here (any more)."""
        state = self._requests.get(request_id)
        if state is None:
            return False
        if self._end(state, status):
            self._finished_since.append(request_id)
        return True

    def preempt_request(self, request_id: str) -> bool:
        """Take a running request's place away; it waits again, where it was in the order. False if
        it does not run."""
        state = self._running.pop(request_id, None)
        if state is None:
            return False
        self._move(state, DiffusionRequestStatus.PREEMPTED)
        self._waiting[request_id] = state
        return True

    # -- for subclasses

    def _run(self, state: SchedulerRequestState) -> None:
        """Give a waiting request its place."""
        self._move(state, DiffusionRequestStatus.RUNNING)
        del self._waiting[state.request_id]
        self._running[state.request_id] = state

    def _end(self, state: SchedulerRequestState, status: DiffusionRequestStatus) -> bool:
        """Take a request to an end state and forget it; say whether it ran."""
        self._move(state, status)
        del self._requests[state.request_id]
        self._waiting.pop(state.request_id, None)
        return self._running.pop(state.request_id, None) is not None

    def _move(self, state: SchedulerRequestState, to: DiffusionRequestStatus) -> None:
        if to not in TRANSITIONS[state.status]:
            raise ValueError(
                f"request {state.request_id!r} cannot go from {state.status.name} to {to.name}"
            )
        state.status = to


def end_of(output: RunnerOutput) -> DiffusionRequestStatus:
    """Return the end state that an output means."""
    if output.aborted:
        return DiffusionRequestStatus.FINISHED_ABORTED
    if output.error:
        return DiffusionRequestStatus.FINISHED_ERROR
    return DiffusionRequestStatus.FINISHED_COMPLETED
