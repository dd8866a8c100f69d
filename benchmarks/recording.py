"""What does it cost that every request's phases are recorded?

    python benchmarks/recording.py [--rounds 15] [--requests 2000]

Requests of a forward that takes no time, on two engines by turns: one that keeps the traces of 4096
requests, which is the default, and one that keeps none. Both take time stamps, which latencies are
told from; so the time of everything that an engine does for one trace is measured by itself, too.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

import trio

from sidestream.engine import DiffusionEngine, EngineConfig, RequestTrace, open_engine
from sidestream.engine.trace import DeviceMeter, TraceLog
from sidestream.ipc_ext.messages import Timings

KEPT = {"kept": 4096, "not_kept": 0}


def config(arguments: argparse.Namespace, trace_requests: int) -> EngineConfig:
    """Configure an engine that does nothing but pass requests on."""
    return EngineConfig(
        model="synthetic",
        model_options={"shape": [1, 1, 1, 8]},
        executor=arguments.executor,
        device="cpu",
        trace_requests=trace_requests,
    )


async def requests_per_s(engine: DiffusionEngine, count: int, concurrency: int) -> float:
    """Keep callers busy until `count` requests are done."""
    seeds = iter(range(count))

    async def caller() -> None:
        for seed in seeds:
            await engine.generate("a", seed=seed, output_type="raw")

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(caller)
    return count / (time.perf_counter() - began)


def us_of_a_trace(count: int = 200_000) -> float:
    """Time what an engine does for one trace: make it, stamp it, count its forward, keep it."""
    log, meter = TraceLog(4096), DeviceMeter()
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count // 5):
            trace = RequestTrace("a", time.monotonic_ns())
            trace.dispatched = time.monotonic_ns()
            trace.note_device(Timings(1, 2, 3, 4))
            meter.note(trace.submitted, 1, 2)
            trace.arrived = time.monotonic_ns()
            trace.postprocess_start = time.monotonic_ns()
            trace.postprocess_end = time.monotonic_ns()
            trace.ended = time.monotonic_ns()
            log.add(trace)
        best = min(best, (time.perf_counter() - began) / (count // 5))
    return best * 1e6


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let both engines take turns, each first in every other round."""
    rates: dict[str, list[float]] = {name: [] for name in KEPT}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(open_engine(config(arguments, limit)))
            for name, limit in KEPT.items()
        }
        for number in range(arguments.rounds + 1):
            for name in sorted(KEPT, reverse=bool(number % 2)):
                rate = await requests_per_s(
                    engines[name], arguments.requests, arguments.concurrency
                )
                if number:  # the first round warms up
                    rates[name].append(rate)
    ratios = [kept / not_kept for kept, not_kept in zip(*rates.values(), strict=True)]
    return {
        "requests_per_s": {name: round(statistics.median(each)) for name, each in rates.items()},
        "ratio": {
            "median": round(statistics.median(ratios), 3),
            "quartiles": [round(cut, 3) for cut in statistics.quantiles(ratios, n=4)[::2]],
        },
        "us_per_trace": round(us_of_a_trace(), 2),
    }


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--executor", choices=["mp", "uni"], default="mp")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    print(json.dumps(trio.run(measure, parser.parse_args())))


if __name__ == "__main__":
    main()
