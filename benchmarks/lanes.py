"""What a lane costs: microseconds for a request, for each further component call, for a tick.

    python benchmarks/lanes.py

The pipeline is as small as pipelines get, so that what is left is the lanes' own cost: one module
that returns its argument. Times are CPU time of the thread. Prints one JSON object.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from torch import nn

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.platform import platform_for


class Echo(nn.Module):
    """Returns what it is given."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        """Return `sample`."""
        return sample


class TrivialPipeline:
    """Calls its module a number of times."""

    def __init__(self) -> None:
        self.unet = Echo()

    def __call__(self, image: torch.Tensor, num_inference_steps: int = 1) -> torch.Tensor:
        """Return the image, passed through the module `num_inference_steps` times."""
        for _ in range(num_inference_steps):
            image = self.unet(image)
        return image


class Ignored:
    """Events that nobody listens to."""

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        """Ignore progress."""

    def on_done(self, output: RunnerOutput) -> None:
        """Insist on success."""
        assert output.error is None, output.error


def seconds_per_wave(runner: DiffusionModelRunner, lanes: int, steps: int, waves: int) -> float:
    """Return the median time of a wave."""
    image, events, times = torch.zeros(1, 3, 8, 8), Ignored(), []
    for _ in range(waves):
        requests = [
            RunnerRequest(str(lane), {"image": image, "num_inference_steps": steps}, seed=lane)
            for lane in range(lanes)
        ]
        start = time.thread_time()
        runner.execute_model_batch(requests, events)
        times.append(time.thread_time() - start)
    return statistics.median(times)


def seconds_per_tick(runner: DiffusionModelRunner, lanes: int, ticks: int) -> float:
    """Return the median time of a tick of step mode, in which each lane makes one call."""
    image, events, times = torch.zeros(1, 3, 8, 8), Ignored(), []
    call = {"num_inference_steps": ticks + 2}
    new = [RunnerRequest(str(n), {"image": image + n, **call}, seed=n) for n in range(lanes)]
    names = [request.request_id for request in new]
    runner.execute_stepwise(new, names, events)
    for _ in range(ticks):
        start = time.thread_time()
        runner.execute_stepwise([], names, events)
        times.append(time.thread_time() - start)
    runner.abandon_steps()
    return statistics.median(times)


def plain_seconds(pipeline: TrivialPipeline, steps: int, calls: int) -> float:
    """Return the median time of a call of the pipeline itself."""
    image, times = torch.zeros(1, 3, 8, 8), []
    for _ in range(calls):
        start = time.thread_time()
        pipeline(image, steps)
        times.append(time.thread_time() - start)
    return statistics.median(times)


def measure(waves: int) -> dict[str, Any]:
    """Measure lanes alone, interleaved and merged."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    pipeline = TrivialPipeline()
    report: dict[str, Any] = {}
    for name, lanes, merge in (("alone", 1, False), ("four", 4, False), ("four_merged", 4, True)):
        runner = DiffusionModelRunner(pipeline, platform_for("cpu"), merge=merge)
        short = seconds_per_wave(runner, lanes, 1, waves)
        long = seconds_per_wave(runner, lanes, 51, waves // 10 + 1)
        report[name] = {
            "us_per_request": round(short / lanes * 1e6, 1),
            "us_per_further_call": round((long - short) / (50 * lanes) * 1e6, 2),
            "us_per_tick": round(seconds_per_tick(runner, lanes, waves) * 1e6, 1),
        }
    plain = plain_seconds(pipeline, 1, waves)
    further = (plain_seconds(pipeline, 51, waves // 10 + 1) - plain) / 50
    report["plain"] = {
        "us_per_request": round(plain * 1e6, 1),
        "us_per_further_call": round(further * 1e6, 2),
    }
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--waves", type=int, default=2000, help="how many waves to time")
    print(json.dumps(measure(parser.parse_args().waves), indent=2))
