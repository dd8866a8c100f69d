"""The host keeps pace with the device: at most two ticks, or steps of a wave, are in its queue."""

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .lane_helpers import Events


class SlowPlatform(CpuPlatform):
    """A device that works when it is waited for; `queue` holds the ends of what it was given."""

    def __init__(self):
        super().__init__()
        self.queue = []
        self.over = []
        self.marks = 0
        self.most = 0
        self.lost = None

    def record_device_event(self):
        self.marks += 1
        self.queue.append(object())
        self.most = max(self.most, len(self.queue))
        return self.queue[-1]

    def has_happened(self, event):
        return event not in self.queue

    def synchronize_event(self, event):
        if self.lost is not None:
            raise self.lost
        while event in self.queue:
            self.over.append(self.queue.pop(0))

    def wait_for_any(self, events, enough):
        if not enough():
            self.synchronize_event(min(events, key=self.queue.index))


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


def request(name="a", cancelled=lambda: False):
    return RunnerRequest(name, {"sample": torch.ones(1, 2)}, cancelled, seed=0)


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


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("merge", [False, True], ids=["interleaved", "merged"])
def test_of_a_wave_two_steps_are_queued_and_no_more(platform, count, merge):
    runner = DiffusionModelRunner(Loop(), platform, merge=merge)
    events = Events()
    for _ in range(2):  # merged calls are probed
        runner.execute_model_batch([request(str(n)) for n in range(count)], events)
        assert [output.error for output in events.outputs.values()] == [None] * count
        events.outputs.clear()
        assert len(platform.queue) == platform.most == 2
        assert platform.marks % 8 == 0, "one for each step, not for each request"


def test_waves_of_one_step_are_queued_two_at_a_time(platform):
    class Once(Loop):
        def __call__(self, sample):
            return self.unet(sample)

    runner = DiffusionModelRunner(Once(), platform)
    for wave in range(4):
        assert len(platform.queue) == min(wave, 2)
        runner.execute_model_batch([request()], Events())
    assert platform.most == 2


def test_what_is_cancelled_has_two_steps_in_the_queue_and_takes_no_more(runner, platform):
    """The flag goes up while the device takes the third step."""
    events = Events()
    taken = platform.over
    runner.execute_model_batch([request(cancelled=lambda: len(taken) >= 2)], events)
    assert events.outputs["a"].aborted
    assert events.progress[-1][1] <= len(taken) + 2


def test_a_device_that_is_found_lost_ends_the_wave(runner, platform):
    platform.lost = RuntimeError("CUDA error: device-side assert triggered")
    events = Events()
    runner.execute_model_batch([request("a"), request("b")], events)
    assert {name: output.fatal for name, output in events.outputs.items()} == dict.fromkeys(
        "ab", True
    )
    assert events.progress[-1][1] < 8
