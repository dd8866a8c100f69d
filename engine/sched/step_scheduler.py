"""`StepScheduler`: single denoising steps; requests join and leave the running set between them.

The order is by priority and arrival: a request of priority p counts as if it had arrived
p * `ageing_s` seconds earlier than it did. So the order of two requests never changes, waiting
raises nobody over those who came before, and nobody starves: only those who come within that time
can go first.

The first of that order hold the places of a worker, `max_num_seqs` of them and at most
`max_batch_pixels` of output. One who holds a place keeps it to its end, unless a request of higher
priority needs it: then it is preempted, between two steps, and waits, where it was in the order,
for a place on the same worker, which keeps its state.

A tick names the requests that take a step. Two or more ticks may be under way; a request that is
known to need no further step beyond those is not named again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from .base import BaseScheduler, end_of
from .states import (
    DiffusionRequestStatus,
    DiffusionSchedulerOutput,
    RunnerOutput,
    SchedulerRequestState,
)

if TYPE_CHECKING:
    from ..config import EngineConfig


class _Worker:
    """One worker's share."""

    def __init__(self) -> None:
        self.running: dict[str, SchedulerRequestState] = {}
        self.preempted = 0
        self.finished: list[str] = []
        self.moved: list[str] = []
        """Requests preempted since the last output."""


class StepScheduler(BaseScheduler):
    """Schedules steps.

    Subclasses change the policy by `rank` and `preempts`; see examples/shortest_first.py.

    Args:
      max_num_seqs: most requests in a tick of one worker.
      max_batch_pixels: most pixels of output, all requests of a tick together; a request that has
        more runs alone. None: no limit.
      ageing_s: seconds by which one step of priority sets a request's arrival back; how long a
        request may wait for enough pixels while smaller ones pass it.
      look_ahead: how many waiting requests are looked at for one decision.
    """

    mode = "step"

    def __init__(
        self,
        *,
        max_num_seqs: int = 1,
        max_batch_pixels: int | None = None,
        ageing_s: float = 10.0,
        look_ahead: int = 64,
    ) -> None:
        super().__init__()
        self._max_num_seqs = max_num_seqs
        self._max_batch_pixels = max_batch_pixels
        self._ageing_s = ageing_s
        self._look_ahead = look_ahead
        self._workers = [_Worker()]
        self._settled: set[int] = set()
        """Workers whose places nothing has happened to since they were given."""

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """Make one that follows an engine's settings."""
        return cls(
            max_num_seqs=config.max_num_seqs,
            max_batch_pixels=config.max_batch_pixels,
            ageing_s=config.ageing_s,
            look_ahead=config.look_ahead,
        )

    def initialize(self, *, max_num_running_reqs: int, num_workers: int = 1) -> None:
        """Set the capacity: how many requests may be running at a time, on how many workers."""
        super().initialize(max_num_running_reqs=max_num_running_reqs, num_workers=num_workers)
        self._workers = [_Worker() for _ in range(num_workers)]

    # -- policy

    def rank(self, state: SchedulerRequestState, now: float) -> Any:
        """Return what requests are ordered by, the first to run having the least."""
        return state.arrival - state.priority * self._ageing_s, state.order

    def preempts(
        self, waiting: SchedulerRequestState, running: SchedulerRequestState, now: float
    ) -> bool:
        """Whether a waiting request may take the place of a running one."""
        return waiting.priority > running.priority and self.rank(waiting, now) < self.rank(
            running, now
        )

    # -- life

    def add_request(self, state: SchedulerRequestState, now: float) -> None:
        """Admit a request as WAITING; see `BaseScheduler`."""
        super().add_request(state, now)
        self._settled.clear()

    def schedule(self, now: float, worker: int = 0) -> DiffusionSchedulerOutput | None:
        """Choose who takes a step in a worker's next tick; None if no tick is needed now."""
        share = self._workers[worker]
        new: list[str] = []
        if worker not in self._settled:
            self._settled.add(worker)
            new = self._give_places(worker, now)
        stepping = [state for state in share.running.values() if _may_step(state)]
        if not (stepping or share.finished):
            return None
        for state in stepping:
            state.in_flight += 1
        finished, share.finished = tuple(share.finished), []
        moved, share.moved = tuple(share.moved), []
        ids = tuple(state.request_id for state in stepping)
        return DiffusionSchedulerOutput(ids, finished, tuple(new), moved)

    def update_from_output(self, outputs: Iterable[RunnerOutput]) -> list[str]:
        """Apply what became of requests: steps taken, and ends; return those that ended by it."""
        ended = []
        for output in outputs:
            state = self._requests.get(output.request_id)
            if state is None or state.worker < 0:
                continue
            if output.finished:
                self._give_place_up(state)
                self._end(state, end_of(output))
                ended.append(output.request_id)
                continue
            state.in_flight -= 1
            state.step = state.step if output.step is None else output.step
            state.steps = state.steps if output.total is None else output.total
        return ended

    def finish_request(self, request_id: str, status: DiffusionRequestStatus) -> bool:
        """Take a request to an end state; its worker is told by the next tick."""
        state = self._requests.get(request_id)
        if state is None:
            return False
        if state.worker >= 0:
            self._workers[state.worker].finished.append(request_id)
            self._give_place_up(state)
        self._end(state, status)
        return True

    def preempt_request(self, request_id: str) -> bool:
        """Take a running request's place away; see `BaseScheduler`."""
        state = self._running.get(request_id)
        if not super().preempt_request(request_id):
            return False
        assert state is not None
        share = self._workers[state.worker]
        del share.running[request_id]
        share.preempted += 1
        share.moved.append(request_id)
        self._settled.clear()
        return True

    def _give_place_up(self, state: SchedulerRequestState) -> None:
        share = self._workers[state.worker]
        if share.running.pop(state.request_id, None) is None:
            share.preempted -= 1
        self._settled.clear()

    # -- places

    def _give_places(self, worker: int, now: float) -> list[str]:
        """Let waiting requests run while there are places; return those that start."""
        share = self._workers[worker]
        candidates = self._candidates(worker, now)
        fair = -(-len(self._requests) // self.num_workers)
        new = []
        for state in candidates:
            starts = state.worker < 0
            if starts and len(share.running) + share.preempted >= min(fair, self._started_limit):
                continue
            if not self._make_room(share, state, now):
                if now - state.arrival >= self._ageing_s:
                    break  # it has waited long enough for so much room: nobody passes it now
                continue
            self._run(state)
            share.running[state.request_id] = state
            share.preempted -= not starts
            state.worker = worker
            if starts:
                new.append(state.request_id)
        return new

    def _candidates(self, worker: int, now: float) -> list[SchedulerRequestState]:
        mine = (state for state in self._waiting.values() if state.worker in (-1, worker))
        return heapq.nsmallest(self._look_ahead, mine, key=lambda state: self.rank(state, now))

    @property
    def _started_limit(self) -> int:
        """How many requests a worker may keep state for: those that run, and as many preempted."""
        return 2 * self._max_num_seqs

    def _make_room(self, share: _Worker, wanted: SchedulerRequestState, now: float) -> bool:
        """Whether there is a place, after preempting whoever has to yield it."""
        staying = sorted(share.running.values(), key=lambda state: self.rank(state, now))
        yielding: list[SchedulerRequestState] = []
        while not self._fits(staying, wanted):
            if not staying or not self.preempts(wanted, staying[-1], now):
                return False
            if share.preempted + len(yielding) >= self._max_num_seqs:
                return False
            yielding.append(staying.pop())
        for state in yielding:
            self.preempt_request(state.request_id)
        return True

    def _fits(self, running: list[SchedulerRequestState], wanted: SchedulerRequestState) -> bool:
        if not running:
            return True
        limit = self._max_batch_pixels
        pixels = wanted.pixels + sum(state.pixels for state in running)
        return len(running) < self._max_num_seqs and (limit is None or pixels <= limit)


def _may_step(state: SchedulerRequestState) -> bool:
    """Whether another step is to be dispatched. The number of steps is what the pipeline says; one
    that takes more goes on, a tick at a time."""
    return state.in_flight == 0 or state.steps is None or state.step + state.in_flight < state.steps
