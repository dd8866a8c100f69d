"""Adapters on a CUDA device: the bits of plain diffusers, eager and replayed, each set as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.platform import platform_for

from ..harness.adapters import choose, save_adapters

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning"),
]
SETS: list[dict[str, float]] = [{}, {"style": 1.0}, {"detail": 0.5, "style": 0.3}, {"style": 0.25}]


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


def call_of(pipeline: Any, index: int) -> dict[str, Any]:
    return {
        **pipeline.sidestream_defaults,
        "prompt": "a cat",
        "num_inference_steps": 4,
        "generator": torch.Generator().manual_seed(index),
        "output_type": "pt",
    }


@pytest.mark.parametrize("budget", [0, None], ids=["eager", "replayed"])
@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux"])
def test_requests_side_by_side_have_their_own(
    family: str, budget: int | None, tmp_path: Path
) -> None:
    lora = save_adapters(family, tmp_path, ["style", "detail"])
    plain, pipeline = (
        load_pipeline(f"random:{family}", {}, device="cuda", dtype="bf16", lora=lora)
        for _ in range(2)
    )
    expected = []
    with torch.no_grad():
        for index, chosen in enumerate(SETS):
            choose(plain, chosen)
            expected.append(plain(**call_of(plain, index))[0])
    runner = DiffusionModelRunner(pipeline, platform_for("cuda"), merge=False, graph_budget=budget)
    names = [str(index) for index in range(len(SETS))]
    for _ in range(3):
        events = Events()
        requests = [
            RunnerRequest(name, call_of(pipeline, index), lora=SETS[index])
            for index, name in enumerate(names)
        ]
        runner.execute_stepwise(requests, names, events)
        while runner.execute_stepwise([], names, events):
            pass
        for name, wanted in zip(names, expected, strict=True):
            output = events.outputs[name]
            assert output.error is None, output.error
            (image,) = output.tensors.values()
            assert torch.equal(image, wanted)
    if budget is None:
        graphs = runner.statistics()["graphs"]
        assert graphs["replayed"] > 0
        assert graphs["recorded"] >= len(SETS)
