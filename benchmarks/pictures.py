"""Pictures per second of real architectures, beside plain diffusers on the same device.

python benchmarks/pictures.py --model random:sdxl-full --sizes 512,1024 --steps 4,28

The weights are random, the architectures are those of the releases, text encoders included. In
turn, each alone on the device: a loop over `pipe(...)`; the same in four threads, each with a
pipeline object and a scheduler of its own around the same weights; sidestream in request mode with
every call launched anew; with graph replay; with graph replay and merging; the same in step mode.
Everybody gets PIL images. With `--compile` the engines compile their denoisers, the plain loop does
not. GPU busy is what nvidia-smi samples: the share of time in which some
kernel ran. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import trio

from sidestream.engine import DiffusionEngine, EngineConfig, open_engine
from sidestream.workers.models import load_pipeline

THREADS = 4
PROMPTS = [f"a picture of {count} lighthouses in a storm" for count in range(100)]

ENGINES: dict[str, dict[str, Any]] = {
    "request, eager": {"cuda_graphs": "off", "merge": False},
    "request, graphs": {"cuda_graphs": "auto", "merge": False},
    "request, graphs, merged": {"cuda_graphs": "auto", "max_num_seqs": 4},
    "step, graphs, merged": {"cuda_graphs": "auto", "max_num_seqs": 4, "mode": "step"},
}


class Busy:
    """Samples how busy the device is."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @contextmanager
    def sampling(self, device: str) -> Iterator[None]:
        """Sample during the block, where there is something to sample with."""
        tool = shutil.which("nvidia-smi") if device.startswith("cuda") else None
        if tool is None:
            yield
            return
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        with subprocess.Popen(
            [tool, "-i", "0", *query], stdout=subprocess.PIPE, text=True
        ) as process:
            reader = threading.Thread(target=self._read, args=(process.stdout,))
            reader.start()
            try:
                yield
            finally:
                process.terminate()
                reader.join()

    def _read(self, lines: Any) -> None:
        self.samples += [float(line) for line in lines if line.strip().isdigit()]

    @property
    def percent(self) -> float | None:
        """The mean, without the first and the last samples, which see the time outside."""
        inner = self.samples[2:-1]
        return round(statistics.mean(inner), 1) if inner else None


@dataclass
class Measured:
    """What one row shows.

    Attributes:
      seconds: in which `latencies` were had.
      latencies: of each picture, s.
      first: those of the pictures before, the first of their kind.
    """

    seconds: float
    latencies: list[float]
    first: list[float]
    busy: Busy


def row(
    name: str, setting: tuple[int, int], concurrency: int, measured: Measured
) -> dict[str, Any]:
    """Make a row of the result."""
    size, steps = setting
    return {
        "runs": name,
        "size": size,
        "steps": steps,
        "concurrency": concurrency,
        "pictures_per_s": round(len(measured.latencies) / measured.seconds, 3),
        "latency_ms": round(1e3 * statistics.median(measured.latencies), 1),
        "first_ms": [round(1e3 * latency, 1) for latency in measured.first],
        "gpu_busy": measured.busy.percent,
    }


def count_for(arguments: argparse.Namespace, one_s: float, concurrency: int) -> int:
    """Return how many pictures make a measurement long enough."""
    return max(2 * concurrency, math.ceil(arguments.seconds / one_s))


# -- plain diffusers


def plain(arguments: argparse.Namespace, settings: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Measure `pipe(...)` in a loop and in threads."""
    options = json.loads(arguments.options)
    pipe = load_pipeline(arguments.model, options, device=arguments.device, dtype=arguments.dtype)
    pipe.set_progress_bar_config(disable=True)
    pipes = [pipe, *(_twin(pipe) for _ in range(THREADS - 1))]
    defaults = getattr(pipe, "sidestream_defaults", None) or {}
    rows = []

    def one(pipe: Any, setting: tuple[int, int], index: int) -> float:
        size, steps = setting
        began = time.perf_counter()
        given = {**defaults, "num_inference_steps": steps, "height": size, "width": size}
        generator = torch.Generator().manual_seed(index)
        with torch.no_grad():
            pipe(PROMPTS[index % 100], generator=generator, output_type="pil", **given)
        return time.perf_counter() - began

    def several(pipe: Any, setting: tuple[int, int], indices: range) -> list[float]:
        return [one(pipe, setting, index) for index in indices]

    for setting in settings:
        first = [one(pipe, setting, index) for index in range(2)]
        for name, threads in (("plain loop", 1), ("plain, 4 threads", THREADS)):
            count = max(threads, math.ceil(arguments.seconds / first[-1]))
            busy = Busy()
            with busy.sampling(arguments.device), ThreadPoolExecutor(threads) as pool:
                began = time.perf_counter()
                jobs = [
                    pool.submit(several, pipes[first], setting, range(first, count, threads))
                    for first in range(threads)
                ]
                latencies = [latency for job in jobs for latency in job.result()]
                seconds = time.perf_counter() - began
            measured = Measured(seconds, latencies, first, busy)
            rows.append(row(name, setting, threads, measured))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _twin(pipe: Any) -> Any:
    """Return another pipeline around the same weights."""
    components = {**pipe.components, "scheduler": copy.deepcopy(pipe.scheduler)}
    twin = type(pipe)(**components)
    twin.set_progress_bar_config(disable=True)
    return twin


# -- sidestream


async def measured(
    engine: DiffusionEngine, arguments: argparse.Namespace, setting: tuple[int, int], callers: int
) -> Measured:
    """Run callers that each ask for one picture after the other."""
    size, steps = setting
    numbers = itertools.count()
    latencies: list[float] = []

    async def caller(count: int) -> None:
        for index in itertools.takewhile(lambda number: number < count, numbers):
            began = time.perf_counter()
            await engine.generate(
                PROMPTS[index % 100], seed=index, width=size, height=size, num_inference_steps=steps
            )
            latencies.append(time.perf_counter() - began)

    async def run(count: int) -> float:
        nonlocal numbers
        numbers = itertools.count()
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(caller, count)
        return time.perf_counter() - began

    for _ in range(arguments.warm):
        one_s = await run(2 * callers) / (2 * callers)
    first = latencies.copy()
    latencies.clear()
    count = count_for(arguments, one_s, callers)
    busy = Busy()
    with busy.sampling(arguments.device):
        seconds = await run(count)
    return Measured(seconds, latencies, first, busy)


async def served(
    arguments: argparse.Namespace, name: str, settings: list[tuple[int, int]]
) -> dict[str, Any]:
    """Measure one engine."""
    config = EngineConfig(
        model=arguments.model,
        model_options=json.loads(arguments.options),
        executor=arguments.executor,
        device=arguments.device,
        dtype=arguments.dtype,
        compile=arguments.compile,
        **ENGINES[name],
    )
    rows = []
    began = time.perf_counter()
    async with open_engine(config) as engine:
        started = time.perf_counter() - began
        for setting in settings:
            for concurrency in (1, 4):
                figures = await measured(engine, arguments, setting, concurrency)
                rows.append(row(name, setting, concurrency, figures))
                print(rows[-1], file=sys.stderr, flush=True)
        [statistics_] = await engine.collective_rpc("runner_statistics")
    return {"rows": rows, "start_s": round(started, 1), "runner": statistics_}


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="random:sdxl-full")
    parser.add_argument("--options", default="{}", help="of the model, JSON")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--executor", default="mp")
    parser.add_argument("--sizes", default="512,1024")
    parser.add_argument("--steps", default="4,28")
    parser.add_argument(
        "--compile", choices=["off", "blocks", "whole"], default="off", help="of the engines"
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="for each measurement")
    parser.add_argument("--warm", type=int, default=2, help="runs before each measurement")
    parser.add_argument("--engines", default=",".join(map(str, range(len(ENGINES)))))
    parser.add_argument("--no-plain", action="store_true")
    arguments = parser.parse_args()
    sides, steps = (map(int, text.split(",")) for text in (arguments.sizes, arguments.steps))
    settings = list(itertools.product(sides, steps))
    names = [list(ENGINES)[int(index)] for index in arguments.engines.split(",") if index]
    result: dict[str, Any] = {"command": vars(arguments), "rows": [], "engines": {}}
    if not arguments.no_plain:
        result["rows"] += plain(arguments, settings)
        if arguments.device.startswith("cuda"):
            torch.cuda.empty_cache()
    for name in names:
        figures = trio.run(functools.partial(served, arguments, name, settings))
        result["rows"] += figures.pop("rows")
        result["engines"][name] = figures
    print(json.dumps(result))


if __name__ == "__main__":
    main()
