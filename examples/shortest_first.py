"""A scheduler of one's own: in step mode, who has the fewest steps left goes first.

python examples/shortest_first.py

Requests of 30, 8 and 2 steps come together and two can run at a time: the shortest ends first.
"""

from __future__ import annotations

import trio

from sidestream.engine import DiffusionEngine, StepScheduler, open_engine
from sidestream.engine.sched import SchedulerRequestState

UNKNOWN = 1_000_000
"""Counts as many steps: whoever does not tell how long it takes waits for those who do."""


class ShortestRemainingFirst(StepScheduler):
    """Gives places to the shortest, and takes them from the longest.

    The mean latency is the lowest that any order can have, at the expense of long requests: one
    who waits for `patience` seconds goes before everybody else.
    """

    patience = 60.0

    def rank(self, state: SchedulerRequestState, now: float) -> tuple[bool, int, int]:
        """Order by steps left."""
        patient = now - state.arrival < self.patience
        return patient, _left(state), state.order

    def preempts(
        self, waiting: SchedulerRequestState, running: SchedulerRequestState, now: float
    ) -> bool:
        """Let a request take the place of one that needs more steps."""
        return _left(waiting) < _left(running)


def _left(state: SchedulerRequestState) -> int:
    return UNKNOWN if state.remaining_steps is None else state.remaining_steps


async def run(engine: DiffusionEngine, steps: int) -> None:
    """Run one request and say when it has ended."""
    await engine.generate("a large red circle", num_inference_steps=steps)
    print(f"{steps} steps have ended")


async def main() -> None:
    """Let a long, a medium and a short request come."""
    async with (
        open_engine(mode="step", max_num_seqs=2, scheduler=ShortestRemainingFirst) as engine,
        trio.open_nursery() as nursery,
    ):
        for steps in (30, 8, 2):
            nursery.start_soon(run, engine, steps)


if __name__ == "__main__":
    trio.run(main)
