"""How long does the device idle between forwards, and how soon is an output in the engine's hands?

Runs the `synthetic` model, whose forward takes a given time and returns a tensor of a given shape,
under a fixed number of concurrent callers, and prints one JSON object. Every output is checked,
byte by byte.

    python benchmarks/bubble.py --executor mp --forward-ms 20 --shape 1,3,1024,1024 --dtype bf16
    --concurrency 4
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from sidestream.engine import DiffusionEngine, DiffusionResult, EngineConfig, open_engine

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
SMALL = 16_384
"""Bytes of an output up to which comparing it with a ready one is quicker than a thread."""


@dataclass
class Observation:
    """What one request showed, nanoseconds of CLOCK_MONOTONIC."""

    submitted: int
    finished: int
    worker: int
    forward: tuple[int, int]
    copy: tuple[int, int]
    to_engine: float
    bad: bool


@dataclass
class Run:
    """A whole measurement."""

    observations: list[Observation] = field(default_factory=list)
    wall_s: float = 0.0
    cores: dict[str, float] = field(default_factory=dict)
    peak_rss_mb: dict[str, float] = field(default_factory=dict)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()  # noqa: SIM115
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def peak_rss_mb(pid: int) -> float:
    """Return the most memory that a process has had resident, shared pages included."""
    for line in open(f"/proc/{pid}/status"):  # noqa: SIM115
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


@functools.cache
def filled(value: int, dtype: str, nbytes: int) -> bytes:
    """Return what an output full of a value consists of."""
    if dtype == "bfloat16":
        one = np.float32(value).tobytes()[2:]
    else:
        one = np.dtype(dtype).type(value).tobytes()
    return one * (nbytes // len(one))


def is_wrong(result: DiffusionResult, dtype: str, shape: tuple[int, ...]) -> bool:
    """Compare every element with the value that the model derives from the seed."""
    tensor = result.output
    if tensor.shape != shape or tensor.dtype != dtype:
        return True
    value = result.seed % 251
    if tensor.nbytes < SMALL:
        return bytes(tensor.buffer) != filled(value, dtype, tensor.nbytes)
    raw = np.frombuffer(tensor.buffer, dtype=np.uint8)
    if dtype == "bfloat16":
        expected = np.float32(value).view(np.uint32) >> 16
        return not bool((raw.view(np.uint16) == expected).all())
    return not bool((raw.view(np.dtype(dtype)) == value).all())


async def measure(engine: DiffusionEngine, arguments: argparse.Namespace, dtype: str) -> Run:
    """Keep `concurrency` callers busy until `requests` are done."""
    run = Run()
    seeds = iter(range(1, arguments.requests + 1))
    pids = [worker.pid for worker in engine.statistics().workers if worker.pid is not None]
    check = not arguments.no_check

    async def caller() -> None:
        for seed in seeds:
            submitted = time.monotonic_ns()
            result = await engine.generate("a", seed=seed, output_type="raw")
            finished = time.monotonic_ns()
            trace = result.timings.trace
            bad = check and await inspect(result)
            run.observations.append(
                Observation(
                    submitted,
                    finished,
                    trace.worker,
                    (trace.forward_start, trace.forward_end),
                    (trace.copy_start, trace.copy_end),
                    result.timings.output,
                    bad,
                )
            )

    async def inspect(result: DiffusionResult) -> bool:
        if result.output.nbytes < SMALL:
            return is_wrong(result, dtype, arguments.shape)
        return await trio.to_thread.run_sync(is_wrong, result, dtype, arguments.shape)

    def used() -> dict[str, float]:
        return {"engine": cpu_seconds(os.getpid()), "worker": sum(map(cpu_seconds, pids))}

    before = used()
    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for _ in range(arguments.concurrency):
            nursery.start_soon(caller)
    run.wall_s = time.monotonic() - began
    after = used()
    run.cores = {who: (after[who] - before[who]) / run.wall_s for who in before}
    run.peak_rss_mb["engine"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    run.peak_rss_mb["worker"] = max(map(peak_rss_mb, pids), default=0.0)
    return run


def percentiles(values: list[float], *names: str) -> dict[str, float]:
    """Return the named figures of a sample."""
    sample = np.array(values or [0.0])
    every = {
        "mean": sample.mean(),
        "p50": np.percentile(sample, 50),
        "p99": np.percentile(sample, 99),
        "max": sample.max(),
    }
    return {name: round(float(every[name]), 3) for name in names}


def waves_of(observations: Iterable[Observation]) -> list[tuple[int, int]]:
    """Return when each wave of a worker began and ended on the device; requests of a wave share
    their start."""
    ends: dict[int, int] = {}
    for start, end in (o.forward for o in observations):
        ends[start] = max(end, ends.get(start, 0))
    return sorted(ends.items())


def report(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    """Condense a run."""
    by_worker: dict[int, list[Observation]] = {}
    for observation in run.observations:
        by_worker.setdefault(observation.worker, []).append(observation)
    each = [waves_of(observations) for observations in by_worker.values()]
    waves = [wave for one in each for wave in one]
    gaps = [(b[0] - a[1]) / 1e6 for one in each for a, b in itertools.pairwise(one)]
    lengths = [(end - start) / 1e6 for start, end in waves]
    span = sum(one[-1][1] - one[0][0] for one in each) / 1e6
    forward = float(np.mean(lengths))
    per_wave = len(each) * len(run.observations) / len(waves)
    return {
        "command": dict(vars(arguments)),
        "requests_per_s": round(len(run.observations) / run.wall_s, 2),
        "ideal_requests_per_s": round(1000 * per_wave / forward, 2) if forward > 0.001 else None,
        "latency_ms": percentiles(
            [(o.finished - o.submitted) / 1e6 for o in run.observations], "p50", "p99", "max"
        ),
        "forward_ms_measured": round(forward, 3),
        "bubble_ms": percentiles(gaps, "mean", "p50", "p99", "max"),
        "busy_frac": round(sum(lengths) / span, 4),
        "forward_end_to_engine_ms": percentiles(
            [o.to_engine * 1e3 for o in run.observations], "p50", "p99", "max"
        ),
        "forward_end_to_copy_ms": percentiles(
            [(o.copy[0] - o.forward[1]) / 1e6 for o in run.observations], "p50", "p99"
        ),
        "copy_ms": percentiles([(o.copy[1] - o.copy[0]) / 1e6 for o in run.observations], "p50"),
        "cpu_cores_used": {who: round(cores, 3) for who, cores in run.cores.items()},
        "peak_rss_mb": {who: round(mb, 1) for who, mb in run.peak_rss_mb.items()},
        "bad_outputs": None if arguments.no_check else sum(o.bad for o in run.observations),
    }


LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "uint8": "uint8"}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--executor", choices=["mp", "uni"], default="mp")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--forward-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument(
        "--shape", type=lambda t: tuple(map(int, t.split(","))), default=(1, 3, 1024, 1024)
    )
    parser.add_argument("--dtype", choices=sorted(LONG_NAMES), default="bf16")
    parser.add_argument("--workers", type=int, default=1, help="each on a device of its own")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--host-sync", choices=["none", "end", "step"], default="none")
    parser.add_argument("--depth", type=int, default=2, help="waves that a worker holds")
    parser.add_argument("--device-stage", choices=["on", "off"], default="off")
    parser.add_argument("--max-num-seqs", type=int, default=1)
    parser.add_argument("--mode", choices=["request", "step"], default="request")
    parser.add_argument("--no-check", action="store_true", help="leave the outputs unread")
    return parser.parse_args()


async def main(arguments: argparse.Namespace) -> None:
    """Measure once and print."""
    config = EngineConfig(
        model="synthetic",
        model_options={
            "forward_ms": arguments.forward_ms,
            "steps": arguments.steps,
            "shape": list(arguments.shape),
            "dtype": arguments.dtype,
            "host_sync": arguments.host_sync,
        },
        executor=arguments.executor,
        num_workers=arguments.workers,
        device=arguments.device,
        mode=arguments.mode,
        dispatch_depth=arguments.depth,
        max_num_seqs=arguments.max_num_seqs,
        device_stage=arguments.device_stage == "on",
    )
    async with open_engine(config) as engine:
        run = await measure(engine, arguments, LONG_NAMES[arguments.dtype])
    print(json.dumps(report(run, arguments)))


if __name__ == "__main__":
    trio.run(main, parse())
