"""After the device is lost nothing touches it, and every request is told."""

import random

import pytest
import torch

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .lane_helpers import Component, Events, picture, rows, step_through

LOST = "CUDA error: device-side assert triggered"


class DeviceGenerator:
    """The global generator of a device; once that is lost, every use of it raises."""

    device = torch.device("cuda")

    def __init__(self):
        self.lost = False
        self.touched = 0

    def _touch(self):
        if self.lost:
            self.touched += 1
            raise torch.AcceleratorError(LOST)
        return torch.zeros(1)

    def get_state(self):
        return self._touch()

    def set_state(self, state):
        self._touch()

    def manual_seed(self, seed):
        self._touch()


class Device(CpuPlatform):
    """A CPU that looks as if it had a device beside it."""

    def __init__(self):
        super().__init__()
        self.generator = DeviceGenerator()

    def default_generators(self):
        return (torch.default_generator, self.generator)


class Steps:
    """Calls its module a number of times."""

    def __init__(self, function):
        self.unet = Component(function)

    def __call__(self, sample, num_inference_steps=3):
        for _ in range(num_inference_steps):
            sample = self.unet(sample)
        return sample


def losing(platform, *, at_once):
    """Return a module function that loses the device when it sees a negative number."""

    def function(sample):
        if bool((sample < 0).any()):
            platform.generator.lost = True
            if at_once:
                raise torch.AcceleratorError(LOST)
        return sample

    return function


def wave(*good):
    ones = torch.ones(2, 8)
    return [
        RunnerRequest(str(n), {"sample": ones if fine else -ones}) for n, fine in enumerate(good)
    ]


def in_a_wave(runner, requests):
    events = Events()
    runner.execute_model_batch(requests, events)
    return events


def in_steps(runner, requests):
    return step_through(runner, requests)[0]


@pytest.fixture(params=[in_a_wave, in_steps], ids=["request mode", "step mode"])
def run(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["interleaved", "merged"])
def merge(request):
    return request.param


@pytest.mark.parametrize("at_once", [True, False], ids=["in a call", "between two calls"])
def test_every_request_is_told_and_the_device_left_alone(run, merge, at_once):
    platform = Device()
    pipeline = Steps(losing(platform, at_once=at_once))
    runner = DiffusionModelRunner(pipeline, platform, merge=merge)
    before = random.getstate(), torch.get_rng_state()
    events = run(runner, wave(True, False, True, True))
    assert {name: out.fatal for name, out in events.outputs.items()} == dict.fromkeys("0123", True)
    assert all(LOST in output.error for output in events.outputs.values())
    discovery = 0 if at_once else 1
    assert platform.generator.touched == discovery
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    calls = pipeline.unet.calls
    (later,) = run(runner, wave(True)).outputs.values()
    assert later.fatal
    assert pipeline.unet.calls == calls
    assert platform.generator.touched == discovery


def test_requests_that_wait_between_ticks_are_told_too():
    platform = Device()
    runner = DiffusionModelRunner(Steps(losing(platform, at_once=True)), platform, merge=False)
    events, (good, bad, begun) = Events(), wave(True, False, True)
    runner.execute_stepwise([good, begun], ["2"], events)
    assert runner.execute_stepwise([bad], ["1"], events) == []
    assert all(output.fatal for output in events.outputs.values())
    assert set(events.outputs) == {"0", "1", "2"}
    assert runner.execute_stepwise([], ["0", "2"], events) == []


def test_a_loss_that_shows_up_when_all_is_done_is_the_next_requests(run):
    platform = Device()
    runner = DiffusionModelRunner(Steps(losing(platform, at_once=False)), platform)
    (output,) = run(runner, wave(False)).outputs.values()
    assert output.error is None
    assert platform.generator.touched == 1
    (later,) = run(runner, wave(True)).outputs.values()
    assert later.fatal
    assert platform.generator.touched == 1


def test_what_pipelines_do_while_they_unwind_does_not_matter():
    platform = Device()

    class Tidy(Steps):
        def __call__(self, sample):
            try:
                return super().__call__(sample)
            finally:
                platform.generator._touch()

    runner = DiffusionModelRunner(Tidy(losing(platform, at_once=True)), platform, merge=False)
    events = in_a_wave(runner, wave(True, False, True))
    assert [output.fatal for output in events.outputs.values()] == [True] * 3


def test_other_errors_between_calls_are_not_swallowed():
    platform = Device()

    def broken():
        raise LookupError("not an error of the device")

    runner = DiffusionModelRunner(Steps(lambda x: x), platform, merge=False)
    requests = wave(True, True)
    requests[1].cancelled = broken
    with pytest.raises(LookupError):
        in_a_wave(runner, requests)
    assert picture(in_a_wave(runner, [RunnerRequest("a", {"sample": rows(0)})]).outputs["a"]).any()
