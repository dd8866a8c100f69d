"""`RequestScheduler`: whole requests, in waves of compatible ones.

The order is by priority, raised by waiting (`ageing_s` seconds count as one step), then by arrival.
The head of that
order gathers company: requests of an equal key among the `look_ahead` next ones. A wave that is not
full may wait for more (`max_wait_s` from the arrival of its oldest request); meanwhile a later
group that is ready goes first, so a head without company never blocks the queue, and since its own
window ends, it never starves.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import TYPE_CHECKING, Self

from .base import BaseScheduler
from .states import DiffusionSchedulerOutput, SchedulerRequestState

if TYPE_CHECKING:
    from ..config import EngineConfig


class RequestScheduler(BaseScheduler):
    """Schedules complete requests.

    Args:
      max_num_seqs: most requests in a wave.
      max_wait_s: how long a wave that is not full may wait, seconds.
      look_ahead: how many requests of the order are looked at for one decision.
      ageing_s: seconds of waiting that raise a request's priority by one.
    """

    mode = "request"

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """Make one that follows an engine's settings."""
        return cls(
            max_num_seqs=config.max_num_seqs,
            max_wait_s=config.request_batch_max_wait_ms / 1000,
            look_ahead=config.look_ahead,
            ageing_s=config.ageing_s,
        )

    def __init__(
        self,
        *,
        max_num_seqs: int = 1,
        max_wait_s: float = 0.0,
        look_ahead: int = 64,
        ageing_s: float = 10.0,
    ) -> None:
        super().__init__()
        self._max_num_seqs = max_num_seqs
        self._max_wait_s = max_wait_s
        self._look_ahead = look_ahead
        self._ageing_s = ageing_s

    def schedule(self, now: float, worker: int = 0) -> DiffusionSchedulerOutput | None:
        """Choose the next wave, for whichever worker; None if none is to start now."""
        room = self.max_num_running_reqs - len(self._running)
        wave = self._pick(now, room) if room > 0 and self._waiting else []
        if not wave:
            return None
        for state in wave:
            self._run(state)
        finished, self._finished_since = tuple(self._finished_since), []
        return DiffusionSchedulerOutput(tuple(state.request_id for state in wave), finished)

    def _pick(self, now: float, room: int) -> list[SchedulerRequestState]:
        size = min(room, self._max_num_seqs)
        if size == 1:  # whoever is first needs no company
            return [min(self._waiting.values(), key=lambda state: self.rank(state, now))]
        for group in self._groups(now):
            if len(group) >= size or self._ripe_at(group) <= now:
                return group[:size]
        return []

    def next_decision(self, now: float) -> float | None:
        """Return when the first window of a waiting group ends, if one is open."""
        if not self._max_wait_s or not self._waiting:
            return None
        times = (self._ripe_at(group) for group in self._groups(now))
        return min((time for time in times if time > now), default=None)

    def _ripe_at(self, group: list[SchedulerRequestState]) -> float:
        return min(state.arrival for state in group) + self._max_wait_s

    def _groups(self, now: float) -> list[list[SchedulerRequestState]]:
        """Group the first `look_ahead` requests by key, in order."""
        first = heapq.nsmallest(
            max(self._look_ahead, 1),
            self._waiting.values(),
            key=lambda state: self.rank(state, now),
        )
        groups: dict[Hashable, list[SchedulerRequestState]] = {}
        for state in first:
            groups.setdefault(state.key, []).append(state)
        return list(groups.values())

    def rank(self, state: SchedulerRequestState, now: float) -> tuple[float, int]:
        """Order by priority, raised by waiting, then by arrival."""
        aged = state.priority + (now - state.arrival) // self._ageing_s
        return -aged, state.order
