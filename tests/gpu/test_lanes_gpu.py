"""Lanes on a CUDA device: equal to plain diffusers, no waiting for the device, its own errors."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.platform import platform_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def exact_arithmetic():
    """Rounding as in float32, so that merged results can be compared closely."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class Events:
    """Keeps the outputs of a wave."""

    def __init__(self) -> None:
        self.outputs: dict[str, RunnerOutput] = {}

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        pass

    def on_done(self, output: RunnerOutput) -> None:
        self.outputs[output.request_id] = output


def run_wave(runner: DiffusionModelRunner, wave: list[dict[str, Any]]) -> list[RunnerOutput]:
    events = Events()
    requests = [RunnerRequest(str(n), kwargs, seed=n) for n, kwargs in enumerate(wave)]
    runner.execute_model_batch(requests, events)
    return [events.outputs[request.request_id] for request in requests]


def run_steps(runner: DiffusionModelRunner, wave: list[dict[str, Any]]) -> list[RunnerOutput]:
    """Run in step mode until all have ended."""
    events = Events()
    requests = [RunnerRequest(str(n), kwargs, seed=n) for n, kwargs in enumerate(wave)]
    names = [request.request_id for request in requests]
    runner.execute_stepwise(requests, names, events)
    while runner.execute_stepwise([], names, events):
        pass
    return [events.outputs[name] for name in names]


MODES = pytest.mark.parametrize("run", [run_wave, run_steps], ids=["request mode", "step mode"])


def tensor_of(output: RunnerOutput) -> torch.Tensor:
    assert output.error is None, output.error
    (tensor,) = output.tensors.values()
    assert tensor.device.type == DEVICE
    return tensor


def runner_of(pipeline: Any, *, merge: bool) -> DiffusionModelRunner:
    return DiffusionModelRunner(pipeline, platform_for(DEVICE), merge=merge)


@MODES
@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3", "flux", "wan"])
def test_results_equal_plain_diffusers(family, run):
    pipeline = load_pipeline(f"random:{family}", {}, device=DEVICE, dtype="float32").to(DEVICE)

    def call(index):
        return {
            **pipeline.sidestream_defaults,
            "prompt": ["a cat", "a big red dog", "the sky"][index],
            "generator": torch.Generator().manual_seed(index),
            "output_type": "pt",
        }

    with torch.no_grad():
        expected = [pipeline(**call(n))[0] for n in range(3)]
    for output, wanted in zip(
        run(runner_of(pipeline, merge=False), [call(n) for n in range(3)]),
        expected,
        strict=True,
    ):
        assert torch.equal(tensor_of(output), wanted)
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):
        outputs = run(runner, [call(n) for n in range(3)])
        for output, wanted in zip(outputs, expected, strict=True):
            assert torch.allclose(tensor_of(output), wanted, atol=1e-4, rtol=0)
    assert runner.statistics()["merged_calls"] > pipeline.sidestream_defaults["num_inference_steps"]


class Denoiser(nn.Module):
    """A few matrix products, and optionally something else."""

    def __init__(self, inside: Any = lambda x: x) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(64, 64)
        self.inside = inside

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return self.inside(self.linear(sample) * timestep.reshape(-1, 1).cos())


class Loop:
    """Calls its denoiser with times that live on the device."""

    def __init__(self, inside: Any = lambda x: x) -> None:
        self.unet = Denoiser(inside).to(DEVICE)
        self.times = torch.linspace(1000, 1, 8, device=DEVICE)

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        for t in self.times:
            sample = self.unet(sample, t)
        return sample


def samples(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [{"sample": torch.randn(2, 64, generator=generator).to(DEVICE)} for _ in range(count)]


@MODES
@pytest.mark.parametrize("merge", [False, True], ids=["interleaved", "merged"])
def test_the_host_never_waits_for_the_device(merge, run):
    pipeline = Loop()
    runner = runner_of(pipeline, merge=merge)
    wave = samples(4)
    run(runner, wave)
    before = runner.statistics()["merged_calls"]
    with warnings.catch_warnings(action="ignore"):  # it calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = run(runner, wave)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for output, call in zip(outputs, wave, strict=True):
        with torch.no_grad():
            assert torch.allclose(tensor_of(output), pipeline(**call), atol=1e-5)
    assert (runner.statistics()["merged_calls"] - before) == (8 if merge else 0)


@MODES
@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3", "flux"])
def test_nor_for_what_stock_pipelines_bring_and_ask(family, run):
    pipeline = load_pipeline(f"random:{family}", {}, device=DEVICE, dtype="float32")
    runner = runner_of(pipeline, merge=False)
    call = {**pipeline.sidestream_defaults, "prompt": "a cat", "output_type": "pt"}
    (expected,) = run(runner, [dict(call)])
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        (output,) = run(runner, [dict(call)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(tensor_of(output), tensor_of(expected))


@MODES
def test_random_numbers_of_the_device_belong_to_a_request(run):
    pipeline = Loop(lambda x: x + torch.randn_like(x))
    wave = samples(3)
    expected = []
    for seed, call in enumerate(wave):
        torch.manual_seed(seed)
        with torch.no_grad():
            expected.append(pipeline(**call))
    for merge in (False, True):
        outputs = run(runner_of(pipeline, merge=merge), wave)
        for output, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(tensor_of(output), wanted)


def test_out_of_memory_ends_one_request_and_gives_its_memory_back():
    def hungry(x):
        if bool((x[:, 0] != x[:, 0]).any()):
            torch.empty(1 << 44, device=DEVICE)
        return x

    runner = runner_of(Loop(hungry), merge=False)
    good, bad = samples(2)
    bad["sample"] = bad["sample"] * float("nan")
    run_wave(runner, [dict(good)])
    held = torch.cuda.memory_allocated()
    first, second = run_wave(runner, [dict(bad), dict(good)])
    assert first.error_type == "OutOfMemoryError"
    assert not first.fatal
    assert tensor_of(second).isfinite().all()
    del first, second
    assert torch.cuda.memory_allocated() <= held + 4096


@pytest.mark.parametrize("mode", ["request", "step"])
def test_a_device_assert_is_fatal(mode):
    """In a process of its own: the device context is lost for good."""
    script = """
        import torch
        from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
        from sidestream.workers.platform import platform_for

        class Broken:
            def __init__(self):
                self.unet = torch.nn.Embedding(4, 8, device="cuda")

            def __call__(self, ids):
                result = self.unet(ids)
                torch.cuda.synchronize()
                return self.unet(ids) + result

        class Events:
            def on_progress(self, request_id, step, total):
                pass

            def on_done(self, output):
                print(output.request_id, output.fatal, output.error_type)

        runner = DiffusionModelRunner(Broken(), platform_for("cuda"))
        good, bad = (torch.tensor([[n]], device="cuda") for n in (1, 1000))
        for wave in ([good], [bad, good], [good]):
            calls = [RunnerRequest(str(n), {"ids": ids}) for n, ids in enumerate(wave)]
            if MODE == "request":
                runner.execute_model_batch(calls, Events())
            else:
                names = [call.request_id for call in calls]
                runner.execute_stepwise(calls, names, Events())
                while runner.execute_stepwise([], names, Events()):
                    pass
    """
    script = textwrap.dedent(script).replace("MODE", repr(mode))
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert lines[0] == ["0", "False"], done.stderr
    assert sorted(lines[1:3]) == [["0", "True"], ["1", "True"]], done.stdout + done.stderr
    assert lines[3] == ["0", "True"]


# ---------------------------------------------------------------------- the device layer


def test_events_order_work_of_two_streams():
    platform = platform_for(DEVICE)
    source = torch.zeros(1 << 22, device=DEVICE)
    for _ in range(50):
        source += 1
    event = platform.record_device_event()
    memory = torch.empty(source.numel() * 4, dtype=torch.uint8)
    registered = platform.register_host_memory(memory.data_ptr(), memory.numel())
    try:
        with platform.side_stream():
            platform.wait_event(event)
            platform.copy_to_host(memory, source)
            done = platform.record_device_event()
        platform.synchronize_event(done)
        assert memory.view(torch.float32).eq(50).all()
    finally:
        if registered:
            assert platform.unregister_host_memory(memory.data_ptr())
    assert registered


def test_memory_that_a_side_stream_copies_from_is_not_used_again_meanwhile():
    platform = platform_for(DEVICE)
    count = 1 << 24
    memory = torch.empty(count * 4, dtype=torch.uint8, pin_memory=True)
    for value in range(8):
        source = torch.full((count,), float(value), device=DEVICE)
        event = platform.record_device_event()
        with platform.side_stream():
            platform.wait_event(event)
            platform.copy_to_host(memory, source)
            done = platform.record_device_event()
        del source
        torch.full((count,), -1.0, device=DEVICE)  # would land in the freed memory
        platform.synchronize_event(done)
        assert memory.view(torch.float32).eq(value).all()


def test_the_device_tells_about_its_memory_and_generators():
    platform = platform_for(DEVICE)
    info = platform.memory_info()
    assert 0 < info["free"] <= info["total"]
    assert len(platform.default_generators()) == 2
    mark = platform.mark()
    platform.synchronize()
    assert abs(platform.time_of(mark) - mark.host_ns) < 1_000_000_000
