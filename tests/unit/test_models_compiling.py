"""Compiled denoisers in lanes. The compiler of torch is real where it matters, in one test; in the
others the denoiser only tells that it was asked to compile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sidestream.workers.models import load_pipeline
from sidestream.workers.models.compiling import compile_denoisers

from .lane_helpers import call_of, picture, plain, run_wave, runner_of


class Denoiser(nn.Linear):
    def __init__(self, blocks=None):
        super().__init__(2, 2)
        self.asked = []
        if blocks is not None:
            self._repeated_blocks = blocks

    def compile(self):
        self.asked.append("whole")

    def compile_repeated_blocks(self):
        self.asked.append("blocks")


def pipeline_of(**components):
    return SimpleNamespace(components=components)


@pytest.mark.parametrize("how", ["blocks", "whole"])
def test_denoisers_are_compiled_and_nothing_else(how):
    parts = {name: Denoiser(["Block"]) for name in ("unet", "transformer_2", "vae")}
    compile_denoisers(pipeline_of(**parts, scheduler=object()), how)
    assert [part.asked for part in parts.values()] == [[how], [how], []]


def test_off_asks_for_nothing():
    unet = Denoiser(["Block"])
    compile_denoisers(pipeline_of(unet=unet), "off")
    assert unet.asked == []


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"vae": Denoiser()}, "compile: a SimpleNamespace has no denoiser to compile"),
        ({"unet": Denoiser([])}, "compile: Denoiser does not say which blocks it repeats"),
        ({"unet": Denoiser()}, "compile: Denoiser does not say which blocks it repeats"),
    ],
)
def test_what_cannot_be_compiled_is_refused(components, message):
    with pytest.raises(ValueError, match=message):
        compile_denoisers(pipeline_of(**components), "blocks")


@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_run_in_lanes_as_they_run_plainly():
    torch._dynamo.reset()
    pipeline = load_pipeline("random:sdxl", {}, device="cpu", dtype=None, compiled="blocks")
    assert torch._dynamo.utils.counters["frames"]["ok"] == 0
    expected = [plain(pipeline, call_of(pipeline, index)) for index in range(2)]
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    for index in range(2):
        (output,) = run_wave(runner_of(pipeline), [call_of(pipeline, index)])
        assert torch.equal(picture(output), expected[index])
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):
        outputs = run_wave(runner, [call_of(pipeline, index) for index in range(2)])
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.allclose(picture(output), wanted, atol=1e-5)
    assert runner.statistics()["merged_calls"] > 0
