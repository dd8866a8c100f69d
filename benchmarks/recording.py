"""What does it cost that every request's phases are recorded?

    python benchmarks/recording.py [--rounds 60] [--requests 500]

Requests of a forward that takes no time, on two engines by turns: one that keeps the traces of 4096
requests, which is the default, and one that keeps none. Both take time stamps, which latencies are
told from; so the time of everything that an engine does for one trace is measured by itself, too.
On a machine that others use, look at the engine's CPU time. Prints one JSON object.
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


async def run(engine: DiffusionEngine, count: int, concurrency: int) -> tuple[float, float]:
    """Keep callers busy until `count` requests are done; return requests/s, and us of the engine's
    CPU time for one."""
    seeds = iter(range(count))

    async def caller() -> None:
        for seed in seeds:
            await engine.generate("a", seed=seed, output_type="raw")

    began, used = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(caller)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return count / seconds, used / count * 1e6


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
    costs: dict[str, list[float]] = {name: [] for name in KEPT}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(open_engine(config(arguments, limit)))
            for name, limit in KEPT.items()
        }
        for number in range(arguments.rounds + 1):
            for name in sorted(KEPT, reverse=bool(number % 2)):
                rate, cost = await run(engines[name], arguments.requests, arguments.concurrency)
                if number:  # the first round warms up
                    rates[name].append(rate)
                    costs[name].append(cost)
    return {
        "requests_per_s": compared(rates),
        "engine_us_per_request": compared(costs),
        "us_per_trace": round(us_of_a_trace(), 2),
    }


def compared(figures: dict[str, list[float]]) -> dict[str, float]:
    """Return both medians, and the median and quartiles of the ratio, round by round."""
    ratios = [kept / not_kept for kept, not_kept in zip(*figures.values(), strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    cuts = {"ratio": statistics.median(ratios), "ratio_q1": low, "ratio_q3": high}
    medians = {name: round(statistics.median(each), 1) for name, each in figures.items()}
    return medians | {name: round(cut, 3) for name, cut in cuts.items()}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--executor", choices=["mp", "uni"], default="mp")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=32)
    print(json.dumps(trio.run(measure, parser.parse_args())))


if __name__ == "__main__":
    main()
