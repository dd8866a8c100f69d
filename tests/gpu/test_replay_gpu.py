"""Graph replay on a CUDA device: the same bits as eager, errors that leave the device usable,
memory within its budget."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trio
from torch import nn

from sidestream.engine import EngineConfig, open_engine
from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.models.families_tiny import FAMILIES
from sidestream.workers.platform import platform_for

from ..harness.catalogue.arguments import PROMPTS, masks, pictures
from ..harness.catalogue.compare import identical, plain
from ..harness.catalogue.entry import Entry
from ..harness.catalogue.families import ENTRIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICE = "cuda"
MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def repeatable_arithmetic():
    """The same kernels each time, so that bits can be compared."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


class Events:
    """Keeps outputs."""

    def __init__(self) -> None:
        self.outputs: dict[str, RunnerOutput] = {}

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        pass

    def on_done(self, output: RunnerOutput) -> None:
        self.outputs[output.request_id] = output


def runner_of(pipeline: Any, *, budget: int | None, merge: bool = False) -> DiffusionModelRunner:
    return DiffusionModelRunner(pipeline, platform_for(DEVICE), merge=merge, graph_budget=budget)


def requests_of(wave: list[dict[str, Any]]) -> list[RunnerRequest]:
    return [RunnerRequest(str(index), kwargs, seed=index) for index, kwargs in enumerate(wave)]


def run_wave(runner: DiffusionModelRunner, wave: list[dict[str, Any]]) -> list[RunnerOutput]:
    events = Events()
    runner.execute_model_batch(requests_of(wave), events)
    return [events.outputs[str(index)] for index in range(len(wave))]


def run_steps(runner: DiffusionModelRunner, wave: list[dict[str, Any]]) -> list[RunnerOutput]:
    events = Events()
    requests = requests_of(wave)
    names = [request.request_id for request in requests]
    runner.execute_stepwise(requests, names, events)
    while runner.execute_stepwise([], names, events):
        pass
    return [events.outputs[name] for name in names]


def tensor_of(output: RunnerOutput) -> torch.Tensor:
    assert output.error is None, output.error
    (tensor,) = output.tensors.values()
    return tensor


def call_of(pipeline: Any, index: int, **changes: Any) -> dict[str, Any]:
    accepted = inspect.signature(type(pipeline).__call__).parameters
    images = {"image": pictures(64)(index), "mask_image": masks(64)(index)}
    return {
        **pipeline.sidestream_defaults,
        **{name: image for name, image in images.items() if name in accepted},
        "prompt": PROMPTS[index],
        "generator": torch.Generator().manual_seed(index),
        "output_type": "pt",
        "num_inference_steps": 4,
        **changes,
    }


def graphs_of(runner: DiffusionModelRunner) -> dict[str, Any]:
    graphs = runner.statistics()["graphs"]
    assert graphs is not None
    print(graphs)
    return graphs  # type: ignore[no-any-return]


@pytest.mark.parametrize("run", [run_wave, run_steps], ids=["request mode", "step mode"])
@pytest.mark.parametrize("merge", [False, True], ids=["separate", "merged"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_gives_the_bits_of_eager(family: str, merge: bool, run: Any) -> None:
    pipelines = [load_pipeline(f"random:{family}", {}, device=DEVICE, dtype=None) for _ in range(2)]
    replaying = runner_of(pipelines[0], budget=None, merge=merge)
    eager = runner_of(pipelines[1], budget=0, merge=merge)
    for _ in range(4):
        ours, theirs = (
            [tensor_of(one) for one in run(runner, [call_of(pipe, i) for i in range(3)])]
            for runner, pipe in ((replaying, pipelines[0]), (eager, pipelines[1]))
        )
        assert all(map(torch.equal, ours, theirs))
    known = graphs_of(replaying)
    assert known["replayed"] > 0
    assert known["recordings"] >= 2  # the denoiser and a text encoder, or the decoder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_stock_pipelines_give_the_bits_of_plain_calls(entry: Entry, record_property: Any) -> None:
    """Whatever is replayed: the results are those of the pipeline itself."""
    pipeline = entry.build()
    try:
        pipeline.to(DEVICE)
        expected = [plain(pipeline, entry.call(index), index) for index in range(3)]
    except Exception as error:
        pytest.skip(f"does not run plainly: {type(error).__name__}: {error}"[:300])
    if not all(identical(plain(pipeline, entry.call(i), i), expected[i]) for i in range(3)):
        pytest.skip("does not repeat its own bits")
    runner = runner_of(pipeline, budget=None)
    for run in (run_wave, run_wave, run_steps):
        for index, output in enumerate(run(runner, [entry.call(index) for index in range(3)])):
            assert output.error is None, output.error
            assert identical(output.tensors, expected[index])
    known = graphs_of(runner)
    record_property("graphs", known)
    assert known["eager"] + known["replayed"] > 0


class Denoising:
    """A pipeline of one component that is called so many times."""

    def __init__(self, component: nn.Module) -> None:
        self.components = {"unet": component}
        self.unet = component

    def __call__(self, sample: torch.Tensor, calls: int = 5) -> Any:
        results = [self.unet(sample * index) for index in range(calls)]
        return SimpleNamespace(images=torch.stack(results))


class Waiting(nn.Linear):
    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return super().forward(sample) * (2 if sample.sum().item() > 0 else 3)


class Uncapturable(nn.Linear):
    """Waits for the device in a way that the debug mode does not see."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        return super().forward(sample)


class Growing(nn.Linear):
    """Has a size that depends on data."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        positive = sample[sample > 0]
        return super().forward(sample) + positive.sum()


def module_of(kind: type[nn.Linear]) -> nn.Linear:
    torch.manual_seed(0)
    return kind(8, 8).eval().requires_grad_(False).to(DEVICE)


class Asking(nn.Linear):
    """Would do something else while it is recorded, as some text encoders do."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return super().forward(sample) * (3 if torch.cuda.is_current_stream_capturing() else 2)


def test_who_asks_whether_it_is_recorded_is_recorded_as_it_runs() -> None:
    module = module_of(Asking)
    runner = runner_of(Denoising(module), budget=None)
    sample = torch.randn(4, 8, device=DEVICE)
    (output,) = run_wave(runner, [{"sample": sample}])
    assert torch.equal(tensor_of(output), Denoising(module)(sample).images)
    assert graphs_of(runner)["replayed"] == 3


@pytest.mark.parametrize("kind", [Waiting, Uncapturable, Growing])
def test_what_cannot_be_captured_runs_as_ever_and_hurts_nobody(kind: type[nn.Linear]) -> None:
    module = module_of(kind)
    runner = runner_of(Denoising(module), budget=None)
    sample = torch.randn(4, 8, device=DEVICE)
    for _ in range(2):
        (output,) = run_wave(runner, [{"sample": sample}])
        assert torch.equal(tensor_of(output), Denoising(module)(sample).images)
    known = graphs_of(runner)
    assert known["recordings"] == 0
    assert len(known["refused"]) == 1
    torch.randn(4, device=DEVICE)  # the generator is not left in the state of a capture
    other = module_of(nn.Linear)
    runner = runner_of(Denoising(other), budget=None)
    (output,) = run_wave(runner, [{"sample": sample}])
    assert torch.equal(tensor_of(output), Denoising(other)(sample).images)
    assert graphs_of(runner)["replayed"] == 3


def test_two_hundred_shapes_stay_within_the_budget() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(8)]
    module = nn.Sequential(*layers).eval().requires_grad_(False).to(DEVICE)
    budget = 256 * MEBIBYTE
    runner = runner_of(Denoising(module), budget=budget)
    run_wave(runner, [{"sample": torch.randn(1, 8, 64, 64, device=DEVICE)}])
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()  # by this process: others may use the device meanwhile
    for index in range(200):
        sample = torch.randn(1, 8, 64 + index, 512, device=DEVICE)
        (output,) = run_wave(runner, [{"sample": sample, "calls": 3}])
        assert torch.equal(tensor_of(output), Denoising(module)(sample, 3).images)
    del output, sample
    torch.cuda.empty_cache()
    known = graphs_of(runner)
    assert known["bytes"] <= budget
    assert torch.cuda.memory_reserved() - before <= budget + 64 * MEBIBYTE


async def pictures_with(graphs: str) -> list[np.ndarray[Any, Any]]:
    config = EngineConfig(model="shapes", device=DEVICE, executor="mp", cuda_graphs=graphs)
    pictures: dict[int, np.ndarray[Any, Any]] = {}

    async def one(index: int) -> None:
        size = 128 if index % 2 else 96
        result = await engine.generate(
            "a red circle", seed=index, width=size, height=size, output_type="uint8"
        )
        pictures[index] = result.output.copy()

    async with open_engine(config) as engine, trio.open_nursery() as nursery:
        for index in range(24):
            nursery.start_soon(one, index)
    return [pictures[index] for index in range(24)]


async def test_the_engine_gives_the_same_pictures_while_it_records() -> None:
    """The output thread copies and quantises while calls are recorded on the other one."""
    pairs = zip(await pictures_with("auto"), await pictures_with("off"), strict=True)
    for ours, theirs in pairs:
        assert np.array_equal(ours, theirs)
