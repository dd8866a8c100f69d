"""Pipelines that wait for the device themselves: the thread does something else meanwhile, and what
they make is right nevertheless."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import trio
from torch import nn

from sidestream.engine import EngineConfig, open_engine
from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.platform import platform_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda"
CYCLES_PER_MS = 1_700_000
"""Of the device's clock, about."""


class Slow(nn.Module):
    """Adds one, after a while."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1, device=DEVICE))
        self.milliseconds = milliseconds

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(int(self.milliseconds * CYCLES_PER_MS))
        return sample + self.one


def wait_for_stream(sample: torch.Tensor) -> torch.Tensor:
    torch.cuda.current_stream().synchronize()
    return sample


def read_all(sample: torch.Tensor) -> torch.Tensor:
    return sample.cpu()


def read_one(sample: torch.Tensor) -> torch.Tensor:
    assert sample[0, 0, 0, 0].item() > 0
    return sample


def ask(sample: torch.Tensor) -> torch.Tensor:
    assert bool((sample > 0).all())
    return sample


WAITS = pytest.mark.parametrize("wait", [wait_for_stream, read_all, read_one, ask])


class Waiting:
    """Three steps; then it waits, then works on what it has, then waits again."""

    def __init__(self, wait: Any, milliseconds: float = 5) -> None:
        self.transformer = Slow(milliseconds)
        self.vae = Slow(0)
        self.wait = wait

    def __call__(
        self, value: float, decode: bool = False, log: Any = None, num_inference_steps: int = 3
    ) -> torch.Tensor:
        sample = torch.full((1, 3, 256, 256), value, device=DEVICE)
        for step in range(num_inference_steps):
            sample = self.transformer(sample)
            if step == 0:
                log("launched", value)
        sample = self.wait(sample).to(DEVICE)
        sample = sample * 2
        if decode:
            sample = self.vae(sample)
        log("returns", value)
        return self.wait(sample)


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def __call__(self, what: str, value: int) -> None:
        self.lines.append((what, value))


class Events:
    """Keeps outputs as an output thread sees them: copied on another stream, at once."""

    def __init__(self) -> None:
        self.copies: dict[str, torch.Tensor] = {}
        self.stream = torch.cuda.Stream()

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        pass

    def on_done(self, output: RunnerOutput) -> None:
        assert output.error is None, output.error
        (tensor,) = output.tensors.values()
        made = torch.cuda.Event()
        made.record()
        with torch.cuda.stream(self.stream):
            made.wait()
            self.copies[output.request_id] = tensor.to("cpu")


class Others:
    """Waves that come later."""

    def __init__(self, waves: list[list[RunnerRequest]]) -> None:
        self.waves = waves

    def is_there(self) -> bool:
        return bool(self.waves)

    def take(self) -> list[RunnerRequest]:
        return self.waves.pop(0)


@WAITS
@pytest.mark.parametrize("decode", [False, True], ids=["returns", "decodes"])
@pytest.mark.parametrize("graphs", [0, None], ids=["eager", "graphs"])
def test_many_waves_one_behind_the_other(wait, decode, graphs):
    pipeline = Waiting(wait)
    runner = DiffusionModelRunner(pipeline, platform_for(DEVICE), graph_budget=graphs)
    log, events = Log(), Events()

    def request(value: int) -> list[RunnerRequest]:
        kwargs = {"value": float(value), "decode": decode, "log": log, "num_inference_steps": 3}
        return [RunnerRequest(str(value), kwargs, seed=0)]

    waves = [request(value) for value in range(1, 25)]
    while waves:
        runner.execute_model_batch(waves.pop(0), events, Others(waves))
    for value in range(1, 25):
        wanted = 2 * (value + 3) + decode
        assert events.copies[str(value)].unique().tolist() == [wanted]
    lines = log.lines
    ahead = [
        lines.index(("launched", value + 1)) < lines.index(("returns", value))
        for value in range(1, 24)
    ]
    assert sum(ahead) >= 18, "the thread waited with them"


def test_a_wait_does_not_last_until_the_next_wave_is_done():
    """The second wave works for a third of a second."""
    pipeline = Waiting(wait_for_stream, milliseconds=2)
    runner = DiffusionModelRunner(pipeline, platform_for(DEVICE))
    log, events = Log(), Events()

    def request(value: int) -> list[RunnerRequest]:
        return [
            RunnerRequest(
                str(value), {"value": float(value), "log": log, "num_inference_steps": 3}, seed=0
            )
        ]

    runner.execute_model_batch(request(1), events)
    late = []

    class Second(Others):
        def take(self) -> list[RunnerRequest]:
            pipeline.transformer.milliseconds = 110
            return super().take()

    def on_done(output: RunnerOutput) -> None:
        late.append(runner._platform._other.query())

    events.on_done = on_done
    runner.execute_model_batch(request(2), events, Second([request(3)]))
    assert late[0] is False, "the second wave was over when the first one returned"
    assert log.lines.index(("launched", 3)) < log.lines.index(("returns", 2))


@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3", "flux"])
@pytest.mark.parametrize("graphs", [0, None], ids=["eager", "graphs"])
def test_results_equal_plain_diffusers(family, graphs):
    """Each waits for the device when its steps are made, before it decodes."""
    pipeline = load_pipeline(f"random:{family}", {}, device=DEVICE, dtype="float32").to(DEVICE)
    steps = pipeline.sidestream_defaults["num_inference_steps"]

    def on_step(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step == steps - 1:
            torch.cuda.current_stream().synchronize()
        return tensors

    def call(index: int) -> dict[str, Any]:
        return {
            **pipeline.sidestream_defaults,
            "prompt": ["a cat", "a big red dog", "the sky"][index % 3],
            "generator": torch.Generator().manual_seed(index),
            "output_type": "pt",
            "callback_on_step_end": on_step,
        }

    with torch.no_grad():
        expected = [pipeline(**call(n))[0].cpu() for n in range(8)]
    runner = DiffusionModelRunner(pipeline, platform_for(DEVICE), graph_budget=graphs)
    for _ in range(3):
        events = Events()
        waves = [[RunnerRequest(str(n), call(n), seed=n)] for n in range(8)]
        while waves:
            runner.execute_model_batch(waves.pop(0), events, Others(waves))
        for n, wanted in enumerate(expected):
            assert torch.equal(events.copies[str(n)], wanted)


@pytest.mark.parametrize("host_sync", ["end", "step"])
@pytest.mark.parametrize("executor", ["mp", "uni"])
async def test_every_byte_is_right_of_models_that_wait(executor: str, host_sync: str) -> None:
    config = EngineConfig(
        model="synthetic",
        model_options={
            "forward_ms": 3,
            "steps": 3,
            "shape": (1, 3, 512, 512),
            "dtype": "bf16",
            "host_sync": host_sync,
        },
        executor=executor,
        device=DEVICE,
        output_ring_bytes=64 << 20,
    )
    async with open_engine(config) as engine:
        seeds = iter(range(300))

        async def caller() -> None:
            for seed in seeds:
                result = await engine.generate("a", seed=seed, output_type="raw")
                assert np.unique(result.output.numpy()).tolist() == [seed % 251]
                trace = result.timings.trace
                assert trace.forward_start < trace.forward_end <= trace.copy_end

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(caller)
        await engine.wait_idle()
        assert engine.statistics().ring_bytes_used == 0
