"""Waves one after the other: the device has the next one's work before outputs are seen to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Events, runner_of


class Noting(nn.Module):
    """Notes its calls."""

    def __init__(self, name, log):
        super().__init__()
        self._name, self._log = name, log

    def forward(self, sample):
        self._log.append(f"{self._name} {int(sample[0])}")
        if self._name == "decode" and sample[0] < 0:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return sample


class Log(list):
    """One for all: a lane copies what is exactly a list."""


class Pipeline:
    """Encodes, makes steps, decodes; notes where its own code is."""

    def __init__(self, steps=2):
        self.log = Log()
        self.text_encoder, self.unet, self.vae = (
            Noting(name, self.log) for name in ("encode", "step", "decode")
        )
        self.steps = steps

    def __call__(self, number, fail=False, decode=True):
        self.log.append(f"begin {number}")
        if fail:
            raise ValueError("not this one")
        sample = self.text_encoder(torch.full((1,), float(number)))
        for _ in range(self.steps):
            sample = self.unet(sample)
        if decode:
            sample = self.vae(sample)
        self.log.append(f"end {number}")
        return sample


def requests(*numbers, **given):
    return [RunnerRequest(str(n), {"number": n, **given}, seed=n) for n in numbers]


class Told(Events):
    """Notes when what was put off may be done."""

    def __init__(self, log):
        super().__init__()
        self._log = log

    def settle(self):
        self._log.append("settle")


def run(pipeline, *waves, runner=None):
    """Run waves that come up one after the other; return what was told."""
    events = Told(pipeline.log)
    first, *rest = waves
    runner = runner or runner_of(pipeline)
    runner.execute_model_batch(first, events, lambda: rest.pop(0) if rest else ())
    return events


def between(log, first, last):
    return log[log.index(first) : log.index(last) + 1]


def test_what_was_put_off_is_done_behind_the_first_call_of_the_next_wave():
    pipeline = Pipeline()
    events = run(pipeline, requests(1), requests(2))
    assert between(pipeline.log, "end 1", "encode 2") == ["end 1", "begin 2", "encode 2"]
    assert pipeline.log[pipeline.log.index("encode 2") + 1] == "settle"
    assert pipeline.log[-1] == "settle"  # and at the end, as there is no next one
    assert events.order == ["1", "2"]
    assert events.started == [["1"], ["2"]]
    assert [float(events.outputs[name].tensors["output"]) for name in "12"] == [1.0, 2.0]


def test_an_error_before_the_first_call_puts_nothing_off_for_ever():
    pipeline = Pipeline()
    events = run(pipeline, requests(1), requests(2, fail=True))
    assert events.outputs["2"].error_type == "ValueError"
    assert pipeline.log[-1] == "settle"


@pytest.mark.parametrize("numbers", [(-3, 4), (3, -4)])
def test_a_lost_device_ends_the_next_wave_too(numbers):
    pipeline = Pipeline()
    events = run(pipeline, requests(*numbers), requests(5))
    fatal = {int(name): output.fatal for name, output in events.outputs.items()}
    assert fatal == {numbers[0]: numbers[0] < 0, numbers[1]: True, 5: True}
    assert "encode 5" not in pipeline.log


def test_an_error_of_whoever_brings_the_next_wave_leaves_nothing_open():
    pipeline = Pipeline()
    runner = runner_of(pipeline)

    def upcoming():
        raise ConnectionError("the engine is gone")

    events = Told(pipeline.log)
    with pytest.raises(ConnectionError):
        runner.execute_model_batch(requests(2), events, upcoming)
    assert events.outputs["2"].error is None
    assert pipeline.log[-1] == "settle"
    assert run(pipeline, requests(3), runner=runner).outputs["3"].error is None
