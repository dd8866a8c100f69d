"""What does it cost that an engine is a guest of asyncio's loop?

    PYTHONPATH=examples OMP_NUM_THREADS=1 python benchmarks/guest_mode.py

Callers of the `synthetic` model, whose forward takes a given time, each with one request at a time:
tasks of Trio's under `trio.run`, and tasks of asyncio's that call through the bridge of
`examples/asyncio_host.py`. Both take turns. Other programs of the machine disturb some of the time,
so it is measured in slices, and the best ones of both are compared. Prints a JSON object for each
measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio
from asyncio_host import open_guest_engine

from sidestream.engine import DiffusionResult, EngineConfig, open_engine

Generate = Callable[..., Awaitable[DiffusionResult]]


@dataclass
class Slice:
    """Requests that callers make for some seconds, in either kind of loop."""

    seconds: float
    times: list[float] = field(default_factory=list)
    wall: float = 0.0

    async def call(self, generate: Generate) -> None:
        """Make one request after the other."""
        start = last = time.perf_counter()
        while last - start < self.seconds:
            before = last
            await generate("x", output_type="raw")
            last = time.perf_counter()
            self.times.append(last - before)
        self.wall = max(self.wall, last - start)

    def result(self) -> dict[str, float]:
        """Return requests per second, and percentiles in ms."""
        cuts = statistics.quantiles(self.times, n=100)
        return {
            "per_s": len(self.times) / self.wall,
            "p50_ms": cuts[49] * 1e3,
            "p99_ms": cuts[98] * 1e3,
        }


def under_trio(config: EngineConfig, callers: int, slices: list[Slice]) -> None:
    """Measure as a Trio program."""

    async def main() -> None:
        async with open_engine(config) as engine:
            for part in slices:
                async with trio.open_nursery() as nursery:
                    for _ in range(callers):
                        nursery.start_soon(part.call, engine.generate)

    trio.run(main)


def under_asyncio(config: EngineConfig, callers: int, slices: list[Slice]) -> None:
    """Measure as a guest of asyncio."""

    async def main() -> None:
        async with open_guest_engine(config=config) as engine:
            for part in slices:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(callers):
                        tasks.create_task(part.call(engine.generate))

    asyncio.run(main())


def compare(arguments: argparse.Namespace, forward_ms: float, callers: int) -> dict[str, Any]:
    """Measure both, in turns, and return the best slices and their ratios."""
    config = EngineConfig(
        model="synthetic",
        model_options={"forward_ms": forward_ms},
        executor=arguments.executor,
        device="cpu",
    )
    hosts = {"trio": under_trio, "guest": under_asyncio}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in hosts}
    for _ in range(arguments.rounds):
        for name, measure in hosts.items():
            slices = [Slice(arguments.seconds) for _ in range(arguments.slices + 1)]
            measure(config, callers, slices)
            results[name] += [part.result() for part in slices[1:]]  # the first one warms up
    best = {name: max(found, key=lambda one: one["per_s"]) for name, found in results.items()}
    ratio = {name: best["guest"][name] / value for name, value in best["trio"].items()}
    return {
        host: {name: round(value, 3) for name, value in found.items()}
        for host, found in (best | {"ratio": ratio}).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executor", choices=["mp", "uni"], default="mp")
    parser.add_argument("--forward-ms", type=float, nargs="+", default=[0, 20])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a slice")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for forward_ms in arguments.forward_ms:
        for callers in arguments.callers:
            found = compare(arguments, forward_ms, callers)
            print(json.dumps({"forward_ms": forward_ms, "callers": callers, **found}), flush=True)


if __name__ == "__main__":
    main()
