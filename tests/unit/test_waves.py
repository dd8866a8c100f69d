"""Waves one after the other: the next one begins its host part while the device is at work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .lane_helpers import Events


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


class Apart(CpuPlatform):
    """Passes for a device that works while the host goes on."""

    asynchronous = True


def runner_of(pipeline, platform=Apart):
    return DiffusionModelRunner(pipeline, platform(), merge=False)


def requests(*numbers, **given):
    return [RunnerRequest(str(n), {"number": n, **given}, seed=n) for n in numbers]


def run(pipeline, *waves, runner=None, cancelled=()):
    """Run waves that come up one after the other; return what was told."""
    events = Events()
    first, *rest = waves

    def upcoming():
        pipeline.log.append("asked")
        return rest.pop(0) if rest else []

    (runner or runner_of(pipeline)).execute_model_batch(first, events, upcoming)
    while rest:
        (runner or runner_of(pipeline)).execute_model_batch(rest.pop(0), events, upcoming)
    return events


def between(log, first, last):
    return log[log.index(first) : log.index(last) + 1]


def test_the_next_wave_begins_behind_the_last_call_of_this_one():
    pipeline = Pipeline()
    runner = runner_of(pipeline)
    run(pipeline, requests(1), runner=runner)  # from which it learns what the last call is
    events = run(pipeline, requests(2), requests(3), runner=runner)
    assert between(pipeline.log, "decode 2", "encode 3") == [
        "decode 2",
        "asked",
        "begin 3",
        "end 2",
        "encode 3",
    ]
    assert events.order == ["2", "3"]
    assert events.started == [["2"], ["3"]]
    assert [float(events.outputs[name].tensors["output"]) for name in "23"] == [2.0, 3.0]


def test_nobody_is_asked_before_the_last_call_nor_when_it_is_not_known():
    pipeline = Pipeline()
    run(pipeline, requests(1), requests(2))
    assert between(pipeline.log, "begin 1", "begin 2").count("asked") == 0


def test_where_the_host_is_the_device_nobody_is_asked():
    pipeline = Pipeline()
    runner = runner_of(pipeline, CpuPlatform)
    run(pipeline, requests(1), runner=runner)
    events = run(pipeline, requests(2), requests(3), runner=runner)
    assert "asked" not in pipeline.log
    assert events.order == ["2", "3"]


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_where_steps_come_last_it_is_asked_at_the_last_of_them(steps):
    pipeline = Pipeline(steps=4)
    runner = runner_of(pipeline)
    run(pipeline, requests(1, decode=False), runner=runner)
    pipeline.steps = steps
    events = run(pipeline, requests(2, decode=False), requests(3, decode=False), runner=runner)
    seen = between(pipeline.log, "begin 2", "end 2")
    before = seen[: seen.index("begin 3")] if "begin 3" in seen else seen
    assert before.count("step 2") == min(steps, 4)
    assert ("begin 3" in seen) == (steps >= 4)
    assert sorted(events.outputs) == ["2", "3"]


def test_waves_of_several_requests_wait_for_the_last_of_them():
    pipeline = Pipeline()
    runner = runner_of(pipeline)
    run(pipeline, requests(1, 2), runner=runner)
    events = run(pipeline, requests(3, 4), requests(5), runner=runner)
    seen = between(pipeline.log, "begin 3", "begin 5")
    assert [entry for entry in seen if entry.startswith("decode")] == ["decode 3", "decode 4"]
    assert sorted(events.outputs) == ["3", "4", "5"]


def test_a_request_that_ends_before_its_wave_has_the_device_is_told_at_once():
    pipeline = Pipeline()
    runner = runner_of(pipeline)
    run(pipeline, requests(1), runner=runner)
    wave = requests(3, fail=True) + requests(4)
    events = run(pipeline, requests(2), wave, runner=runner)
    assert events.order == ["3", "2", "4"]
    assert events.outputs["3"].error_type == "ValueError"
    assert events.started == [["2"], ["4"]]


def test_a_request_that_is_cancelled_while_it_waits_calls_no_component():
    pipeline = Pipeline()
    runner = runner_of(pipeline)
    run(pipeline, requests(1), runner=runner)
    waiting = RunnerRequest("3", {"number": 3}, cancelled=lambda: "end 2" in pipeline.log)
    events = run(pipeline, requests(2), [waiting], runner=runner)
    assert "begin 3" in pipeline.log
    assert "encode 3" not in pipeline.log
    assert events.outputs["3"].aborted


@pytest.mark.parametrize("numbers", [(-3, 4), (3, -4)])
def test_a_lost_device_ends_the_next_wave_too(numbers):
    pipeline = Pipeline()
    runner = runner_of(pipeline)
    run(pipeline, requests(1, 2), runner=runner)
    pipeline.log.clear()
    events = run(pipeline, requests(*numbers), requests(5), runner=runner)
    fatal = {int(name): output.fatal for name, output in events.outputs.items()}
    assert fatal == {numbers[0]: numbers[0] < 0, numbers[1]: True, 5: True}
    assert "encode 5" not in pipeline.log


def test_an_error_of_whoever_brings_the_next_wave_leaves_nothing_open():
    pipeline = Pipeline()
    runner = runner_of(pipeline)
    run(pipeline, requests(1), runner=runner)

    def upcoming():
        raise ConnectionError("the engine is gone")

    events = Events()
    with pytest.raises(ConnectionError):
        runner.execute_model_batch(requests(2), events, upcoming)
    assert "end 2" not in pipeline.log
    assert not runner._hub._open
    assert run(pipeline, requests(3), runner=runner).outputs["3"].error is None
