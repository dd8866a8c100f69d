"""What the tests of lanes share: running waves, small components, tiny pipelines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.platform import CpuPlatform

PROMPTS = ("a cat", "a big red dog", "the sky in a photo", "small blue birds", "on a hill")


class Events:
    """Keeps what a runner tells, in order."""

    def __init__(self, on_done: Callable[[RunnerOutput], None] | None = None) -> None:
        self.progress: list[tuple[str, int, int | None]] = []
        self.order: list[str] = []
        self.outputs: dict[str, RunnerOutput] = {}
        self._on_done = on_done

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        self.progress.append((request_id, step, total))

    def on_done(self, output: RunnerOutput) -> None:
        assert output.request_id not in self.outputs, "a request ended twice"
        self.order.append(output.request_id)
        self.outputs[output.request_id] = output
        if self._on_done is not None:
            self._on_done(output)


def runner_of(pipeline: Any, *, merge: bool = False) -> DiffusionModelRunner:
    """Make a runner on the CPU."""
    return DiffusionModelRunner(pipeline, CpuPlatform(), merge=merge)


def run_wave(runner: DiffusionModelRunner, wave: Sequence[Any]) -> list[RunnerOutput]:
    """Run calls (keyword arguments or whole requests) as one wave; return outputs in order."""
    requests = [
        call if isinstance(call, RunnerRequest) else RunnerRequest(f"request-{index}", call)
        for index, call in enumerate(wave)
    ]
    events = Events()
    runner.execute_model_batch(requests, events)
    assert len(events.outputs) == len(requests)
    return [events.outputs[request.request_id] for request in requests]


def step_through(
    runner: DiffusionModelRunner,
    requests: Sequence[RunnerRequest],
    *,
    arrivals: Sequence[int] | None = None,
    events: Events | None = None,
    rest: Callable[[str, int], bool] = lambda request_id, tick: False,
) -> tuple[Events, list[list[tuple[str, int, int | None]]]]:
    """Run requests in step mode until all have ended.

    Args:
        runner: The runner.
        requests: The requests, in order of arrival.
        arrivals: The tick in which each one comes; by default all come in the first.
        events: Where to keep what is told.
        rest: Whether a request is left out of a tick.

    Returns:
        The events, and what each tick returned.
    """
    events = events or Events()
    waiting = list(zip(arrivals or [0] * len(requests), requests, strict=True))
    ticks: list[list[tuple[str, int, int | None]]] = []
    names = [request.request_id for request in requests]
    while not all(name in events.outputs for name in names):
        now = len(ticks)
        assert now < 1000, "the requests do not end"
        new = [request for tick, request in waiting if tick <= now]
        waiting = [(tick, request) for tick, request in waiting if tick > now]
        there = names[: len(names) - len(waiting)]
        scheduled = [n for n in there if n not in events.outputs and not rest(n, now)]
        ticks.append(runner.execute_stepwise(new, scheduled, events))
    return events, ticks


def picture(output: RunnerOutput) -> torch.Tensor:
    """Return the one tensor of a request that succeeded."""
    assert output.error is None, output.error
    assert not output.aborted
    (tensor,) = output.tensors.values()
    return tensor


def plain(pipeline: Any, kwargs: dict[str, Any], seed: int | None = None) -> torch.Tensor:
    """Call a pipeline as its own documentation says, with every global generator seeded."""
    if seed is not None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
    with torch.no_grad():
        result = pipeline(**kwargs)[0]
    assert isinstance(result, torch.Tensor)
    return result


def call_of(pipeline: Any, index: int, **changes: Any) -> dict[str, Any]:
    """Return the arguments of the index-th request: its own prompt and seed."""
    return {
        **pipeline.sidestream_defaults,
        "prompt": PROMPTS[index],
        "generator": torch.Generator().manual_seed(index),
        "output_type": "pt",
        **changes,
    }


class Component(nn.Module):
    """A component that runs a function and remembers how often it was called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.calls = 0
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


class Mixer(nn.Module):
    """A small network of a sample, a time and a condition, that treats each row by itself."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inner = nn.Linear(8, 8)
            self.outer = nn.Linear(8, 8)

    def forward(
        self, sample: torch.Tensor, timestep: torch.Tensor, condition: torch.Tensor
    ) -> torch.Tensor:
        time = torch.as_tensor(timestep, dtype=sample.dtype).reshape(-1, 1)
        return self.outer(torch.tanh(self.inner(sample) + time.sin())) + condition


def rows(seed: int, count: int = 2) -> torch.Tensor:
    """Return rows of normal numbers, (count, 8)."""
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
