"""The host keeps pace with the device: at most two ticks are in its queue."""

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .lane_helpers import Events


class SlowPlatform(CpuPlatform):
    """A device that works when it is waited for; `queue` holds the ends of ticks it was given."""

    def __init__(self):
        super().__init__()
        self.queue = []
        self.most = 0
        self.lost = None

    def record_device_event(self):
        self.queue.append(object())
        self.most = max(self.most, len(self.queue))
        return self.queue[-1]

    def synchronize_event(self, event):
        if self.lost is not None:
            raise self.lost
        while event in self.queue:
            self.queue.pop(0)


class Loop:
    """Calls its denoiser eight times."""

    def __init__(self):
        self.unet = nn.Linear(2, 2)

    def __call__(self, sample):
        for _ in range(8):
            sample = self.unet(sample)
        return sample


@pytest.fixture
def platform():
    return SlowPlatform()


@pytest.fixture
def runner(platform):
    return DiffusionModelRunner(Loop(), platform)


def request(name="a"):
    return RunnerRequest(name, {"sample": torch.ones(1, 2)}, seed=0)


def test_two_ticks_are_queued_and_no_more(runner, platform):
    events = Events()
    new = [request()]
    for tick in range(8):
        assert len(platform.queue) == min(tick, 2)
        runner.execute_stepwise(new, ["a"], events)
        new = []
    assert platform.most == 2
    assert events.outputs["a"].error is None


def test_a_tick_of_nobody_waits_for_nothing(runner, platform):
    runner.execute_stepwise([request()], ["a"], Events())
    runner.execute_stepwise([], ["a"], Events())
    platform.lost = AssertionError("it waited")
    runner.execute_stepwise([], [], Events())


def test_a_device_that_is_found_lost_ends_all(runner, platform):
    events = Events()
    runner.execute_stepwise([request("a"), request("b")], ["a"], events)
    runner.execute_stepwise([], ["a"], events)
    platform.lost = RuntimeError("CUDA error: device-side assert triggered")
    assert runner.execute_stepwise([request("c")], ["a"], events) == []
    assert {name: output.fatal for name, output in events.outputs.items()} == dict.fromkeys(
        "abc", True
    )
