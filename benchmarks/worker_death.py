"""How soon does everybody who waits know that a worker was killed?

Sends SIGKILL to the worker of an engine that has work, again and again with a new engine, and
measures until the last waiter has its error. Prints one JSON object, times in ms.

    python benchmarks/worker_death.py --times 20
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time

import trio

from sidestream.engine import EngineConfig, WorkerDiedError, open_engine

WAITERS = 8


async def kill_one() -> float:
    """Return the seconds from a worker's death to the last of its waiters' errors."""
    config = EngineConfig(
        model="synthetic",
        model_options={"forward_ms": 60_000, "steps": 1000},
        executor="mp",
        device="cpu",
        warmup=False,
    )
    told: list[float] = []
    async with open_engine(config) as engine:

        async def waiter() -> None:
            try:
                await engine.generate("a picture")
            except WorkerDiedError:
                told.append(time.monotonic())

        async with trio.open_nursery() as nursery:
            for _ in range(WAITERS):
                nursery.start_soon(waiter)
            while not engine.statistics().running:  # noqa: ASYNC110  # what a caller has
                await trio.sleep(0.01)
            (worker,) = engine.statistics().workers
            assert worker.pid is not None
            killed = time.monotonic()
            os.kill(worker.pid, signal.SIGKILL)
    assert len(told) == WAITERS
    return max(told) - killed


def main() -> None:
    """Kill workers, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=20)
    times = [1e3 * trio.run(kill_one) for _ in range(parser.parse_args().times)]
    result = {"count": len(times), "p50_ms": statistics.median(times), "max_ms": max(times)}
    print(json.dumps({name: round(value, 1) for name, value in result.items()}))


if __name__ == "__main__":
    main()
