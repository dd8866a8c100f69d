"""What step mode costs and what it gives. Each part prints one JSON object.

python benchmarks/step.py overhead [--device cuda] [--step-ms 5]
    time per denoising step through the whole path, less that of calling the module in a loop;
    the tick rate when a step takes no time
python benchmarks/step.py mix [--rate 6] [--step-ms 10] [--merge off]
    Poisson arrivals of short and long requests, the same ones in request mode and in step mode
python benchmarks/step.py batch --model random:sdxl-full --size 512 --device cuda
    requests of a real architecture: four together, merged, against one after the other
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import trio

from sidestream.engine import DiffusionEngine, EngineConfig, open_engine

SHORT, LONG = 4, 40


def percentiles(values: list[float]) -> dict[str, float]:
    """Return figures of latencies in ms."""
    sample = np.array(values) * 1e3
    figures = {"mean": sample.mean(), **{f"p{p}": np.percentile(sample, p) for p in (50, 99)}}
    return {name: round(float(value), 1) for name, value in figures.items()}


def synthetic(arguments: argparse.Namespace, step_ms: float, **settings: Any) -> EngineConfig:
    """Configure the model whose every step takes `step_ms`, whatever the batch."""
    options = {"forward_ms": step_ms, "steps": 1, "shape": (1, 3, 8, 8)}
    return EngineConfig(
        model="synthetic",
        model_options=options,
        executor=arguments.executor,
        device=arguments.device,
        **settings,
    )


# -- overhead


async def step_s(
    arguments: argparse.Namespace, step_ms: float, batch: int, *, protocol: bool
) -> tuple[float, float]:
    """Return the seconds of a step through the engine, on the device's clock, and in a loop."""
    report = Path(tempfile.mkdtemp()) / "direct.json"
    config = EngineConfig(
        model="timed_steps:load",
        model_options={
            "step_ms": step_ms,
            "steps": arguments.steps,
            "report": str(report),
            "protocol": protocol,
        },
        executor=arguments.executor,
        device=arguments.device,
        mode="step",
        max_num_seqs=batch,
    )
    async with open_engine(config) as engine:
        spans: list[tuple[int, int]] = []

        async def one(steps: int) -> None:
            result = await engine.generate("a", num_inference_steps=steps, output_type="raw")
            trace = result.timings.trace
            spans.append((trace.forward_start, trace.forward_end))

        for steps in (10, arguments.steps):
            spans.clear()
            async with trio.open_nursery() as nursery:
                for _ in range(batch):
                    nursery.start_soon(one, steps)
    span = max(end for _, end in spans) - min(start for start, _ in spans)
    return span / steps / 1e9, json.loads(report.read_text())


def overhead(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare steps through the engine with steps in a loop."""
    figures: dict[str, Any] = {}
    for name, protocol in (("lanes", False), ("step_protocol", True)):
        for batch in (1, 4):
            measure = functools.partial(step_s, batch=batch, protocol=protocol)
            through, direct = trio.run(measure, arguments, arguments.step_ms)
            empty, _ = trio.run(measure, arguments, 0.0)
            figures[f"{name}, batch {batch}"] = {
                "direct_step_ms": round(direct * 1e3, 4),
                "overhead_us_per_tick": round((through - direct) * 1e6, 1),
                "ticks_per_s_of_empty_steps": round(1 / empty),
            }
    return {"device": arguments.device, "steps": arguments.steps, **figures}


# -- a mix of short and long requests


def arrivals(arguments: argparse.Namespace) -> list[tuple[float, int]]:
    """Draw when requests come, and how many steps each takes."""
    rng = random.Random(arguments.seed)
    at, plan = 0.0, []
    while at < arguments.seconds:
        at += rng.expovariate(arguments.rate)
        plan.append((at, SHORT if rng.random() < arguments.short_share else LONG))
    return plan


async def serve(arguments: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Let the requests come; return latencies and throughput."""
    config = synthetic(
        arguments,
        arguments.step_ms,
        mode=mode,
        max_num_seqs=arguments.max_num_seqs,
        merge=arguments.merge == "on",
        max_queued_requests=10_000,
    )
    latencies: dict[int, list[float]] = {SHORT: [], LONG: []}

    async def one(engine: DiffusionEngine, steps: int) -> None:
        began = trio.current_time()
        await engine.generate("a", num_inference_steps=steps, output_type="raw")
        latencies[steps].append(trio.current_time() - began)

    async with open_engine(config) as engine:
        for _ in range(2):  # merges are probed
            async with trio.open_nursery() as nursery:
                for _ in range(arguments.max_num_seqs):
                    nursery.start_soon(engine.generate, "a")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for at, steps in arrivals(arguments):
                await trio.sleep_until(began + at)
                nursery.start_soon(one, engine, steps)
        seconds = trio.current_time() - began
    count = sum(map(len, latencies.values()))
    return {
        "requests_per_s": round(count / seconds, 2),
        "latency_ms": {
            "short": percentiles(latencies[SHORT]),
            "long": percentiles(latencies[LONG]),
            "all": percentiles(latencies[SHORT] + latencies[LONG]),
        },
    }


def mix(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare the modes under the same arrivals."""
    modes = {mode: trio.run(serve, arguments, mode) for mode in ("request", "step")}
    request, step = modes["request"], modes["step"]

    def ratio(*path: str) -> float:
        ours, theirs = step["latency_ms"], request["latency_ms"]
        return round(theirs[path[0]][path[1]] / ours[path[0]][path[1]], 2)

    return {
        **{name: getattr(arguments, name) for name in ("rate", "step_ms", "max_num_seqs", "merge")},
        **modes,
        "times_lower_in_step_mode": {
            "short_p99": ratio("short", "p99"),
            "short_mean": ratio("short", "mean"),
            "all_mean": ratio("all", "mean"),
        },
        "throughput_ratio": round(step["requests_per_s"] / request["requests_per_s"], 3),
    }


# -- merged batches of a real architecture


async def images_per_s(arguments: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Run requests in step mode, `batch` at a time."""
    async with open_engine(
        model=arguments.model,
        executor=arguments.executor,
        device=arguments.device,
        dtype=arguments.dtype,
        mode="step",
        max_num_seqs=batch,
        output_ring_bytes=1 << 28,
    ) as engine:
        one = functools.partial(
            engine.generate,
            "a lighthouse",
            width=arguments.size,
            height=arguments.size,
            num_inference_steps=arguments.steps,
            output_type="uint8",
        )

        async def run(count: int) -> float:
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for seed in range(count):
                    nursery.start_soon(functools.partial(one, seed=seed))
            return time.perf_counter() - began

        await run(batch)
        await run(batch)
        seconds = await run(arguments.requests)
        [statistics] = await engine.collective_rpc("runner_statistics")
    return {
        "images_per_s": round(arguments.requests / seconds, 3),
        "merged_calls": statistics["merged_calls"],
        "refused": statistics["refused"],
    }


def batch(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare merged batches with one request after the other."""
    rows = {f"batch_{n}": trio.run(images_per_s, arguments, n) for n in (1, arguments.batch)}
    first, last = rows.values()
    named = {name: getattr(arguments, name) for name in ("model", "size", "steps", "requests")}
    return {**named, **rows, "speed_up": round(last["images_per_s"] / first["images_per_s"], 2)}


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--executor", default="mp", choices=["uni", "mp"])
    common.add_argument("--device", default="cpu")
    parts = parser.add_subparsers(required=True)

    part = parts.add_parser("overhead", parents=[common])
    part.set_defaults(part=overhead)
    part.add_argument("--step-ms", type=float, default=5.0)
    part.add_argument("--steps", type=int, default=300)

    part = parts.add_parser("mix", parents=[common])
    part.set_defaults(part=mix)
    part.add_argument("--rate", type=float, default=6.0, help="requests per second")
    part.add_argument("--seconds", type=float, default=40.0)
    part.add_argument("--short-share", type=float, default=0.7)
    part.add_argument("--step-ms", type=float, default=10.0)
    part.add_argument("--max-num-seqs", type=int, default=4)
    part.add_argument("--merge", choices=["on", "off"], default="on")
    part.add_argument("--seed", type=int, default=0)

    part = parts.add_parser("batch", parents=[common])
    part.set_defaults(part=batch)
    part.add_argument("--model", default="random:sd3-full")
    part.add_argument("--dtype", default="bf16")
    part.add_argument("--size", type=int, default=512)
    part.add_argument("--steps", type=int, default=12)
    part.add_argument("--requests", type=int, default=8)
    part.add_argument("--batch", type=int, default=4)

    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(  # workers import models from this folder
        (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    )
    print(json.dumps(arguments.part(arguments)))


if __name__ == "__main__":
    main()
