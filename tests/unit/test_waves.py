"""Two waves at a time: while all that is left of one waits for the device, the next is begun."""

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from sidestream.workers.lanes import LaneCancelled
from sidestream.workers.lanes.waits import current_lane
from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .lane_helpers import Events


@dataclass
class Event:
    """Behind what a stream was given.

    Attributes:
        behind: The events that come before it.
        over: The device has done the work in front of it.
    """

    behind: list["Event"]
    over: bool

    def happened(self):
        if self.over and all(event.happened() for event in self.behind):
            self.behind = []
        return self.over and not self.behind

    def happen(self):
        for event in self.behind:
            event.happen()
        self.over, self.behind = True, []


class Streams(CpuPlatform):
    """A device with two streams that does nothing until somebody waits for it, and then no more
    than that."""

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.current = 0
        self.behind = {0: [], 1: []}
        self.works = {0: False, 1: False}
        self.events = []

    def work(self):
        self.works[self.current] = True

    @contextmanager
    def forward_stream(self, number):
        before, self.current = self.current, number
        yield
        self.current = before

    def record_device_event(self):
        event = Event(self.behind[self.current], not self.works[self.current])
        self.behind[self.current], self.works[self.current] = [event], False
        self.events.append(event)
        return event

    def wait_event(self, event):
        self.behind[self.current].append(event)

    def has_happened(self, event):
        return event.happened()

    def synchronize_event(self, event):
        event.happen()

    def wait_for_any(self, events, enough):
        assert events, "nothing to wait for"
        if not enough():
            self.log.append("idle")
            min(events, key=self.events.index).happen()

    @property
    def steps_queued(self):
        return sum(not event.over for event in self.events)


class Waiting:
    """Calls its network twice for each request, then waits for the device, then maybe calls it
    again; writes everything down."""

    def __init__(self, log, platform):
        self.unet = nn.Linear(2, 2)
        self.unet.register_forward_hook(lambda *_: platform.work())
        self.tell = log.append

    def __call__(self, sample, name, options):
        return self.paint(sample, name, **options)

    def paint(self, sample, name, steps=2, more=0, early=False, fail=False, change=False):
        self.tell(f"{name} begins")
        for step in range(steps):
            sample = self.unet(sample)
            self.tell(f"{name} {step}")
            if early and step == 0:
                current_lane().give_way_to_device()
        try:
            current_lane().give_way_to_device()
        except LaneCancelled:
            self.tell(f"{name} cancelled")
            raise
        if fail:
            raise ValueError("after the wait")
        if change:
            self.unet.bias.requires_grad_(False)
            self.unet.extra = 1
        for step in range(more):
            sample = self.unet(sample)
            self.tell(f"{name} more {step}")
        self.tell(f"{name} ends")
        return sample


class Others:
    """Waves that come later."""

    def __init__(self, *waves):
        self.waves = list(waves)
        self.blocked = False

    def is_there(self):
        return bool(self.waves) and not self.blocked

    def take(self):
        return self.waves.pop(0)


def request(name, cancelled=lambda: False, **options):
    sample = torch.full((1, 2), float(ord(name)))
    return RunnerRequest(
        name, {"sample": sample, "name": name, "options": options}, cancelled, seed=0
    )


@pytest.fixture
def log():
    return []


@pytest.fixture
def platform(log):
    return Streams(log)


@pytest.fixture
def pipeline(log, platform):
    return Waiting(log, platform)


@pytest.fixture
def run(pipeline, platform, log):
    runner = DiffusionModelRunner(pipeline, platform)
    # It knows from the first one how many calls a request makes.
    runner.execute_model_batch([request("z")], Events())
    log.clear()

    def run(first, *others):
        events = Events()
        runner.execute_model_batch(first, events, Others(*others))
        return events

    run.runner = runner
    return run


def expected(pipeline, name, calls=2):
    sample = torch.full((1, 2), float(ord(name)))
    with torch.no_grad():
        for _ in range(calls):
            sample = pipeline.unet(sample)
    return sample


def test_the_next_wave_is_begun_while_one_waits(run, log, pipeline):
    events = run([request("a")], [request("b")], [request("c")])
    assert log.index("b 1") < log.index("a ends") < log.index("c begins") < log.index("b ends")
    assert events.order == ["a", "b", "c"]
    for name in "abc":
        (tensor,) = events.outputs[name].tensors.values()
        assert torch.equal(tensor, expected(pipeline, name))


def test_a_wait_is_over_when_the_wave_s_own_work_is(run, log, platform):
    """The second wave's is in the queue still."""
    left = []
    events = Events(lambda output: left.append(platform.steps_queued))
    run.runner.execute_model_batch([request("a")], events, Others([request("b")]))
    assert left[0] > 0
    assert events.outputs["a"].waited is not None


def test_no_wave_is_begun_in_the_middle_of_another(run, log):
    run([request("a", early=True)], [request("b")])
    assert log.index("a 1") < log.index("b begins") < log.index("a ends")


def test_of_requests_that_say_their_steps_these_count(log, platform):
    """The one before made two, so without them the first wait would be near the end."""

    class Counting(Waiting):
        def __call__(self, sample, name, num_inference_steps):
            return self.paint(sample, name, steps=num_inference_steps, early=True)

    def counted(name, steps):
        sample = torch.ones(1, 2)
        kwargs = {"sample": sample, "name": name, "num_inference_steps": steps}
        return [RunnerRequest(name, kwargs, seed=0)]

    runner = DiffusionModelRunner(Counting(log, platform), platform)
    for name, steps in (("x", 3), ("y", 2)):
        runner.execute_model_batch(counted(name, steps), Events())
    runner.execute_model_batch(counted("a", 3), Events(), Others(counted("b", 1)))
    assert log.index("a 2") < log.index("b begins") < log.index("a ends")


def test_a_wave_that_comes_while_one_waits_is_begun(run, log, platform):
    others = Others([request("b")])
    others.blocked = True
    platform.wait_for_any, wait = (
        lambda events, enough: others.__setattr__("blocked", False),
        (platform.wait_for_any),
    )

    def come(events, enough):
        others.blocked, platform.wait_for_any = False, wait
        assert enough()

    platform.wait_for_any = come
    run.runner.execute_model_batch([request("a")], Events(), others)
    assert log.index("b 1") < log.index("a ends")


def test_calls_after_the_wait_come_in_turn(run, log, pipeline):
    events = run([request("a", more=2)], [request("b", more=1)])
    assert log.index("b begins") < log.index("a more 0")
    for name, calls in (("a", 4), ("b", 3)):
        (tensor,) = events.outputs[name].tensors.values()
        assert torch.equal(tensor, expected(pipeline, name, calls))


def test_an_error_after_the_wait_is_that_request_s_own(run, log):
    events = run([request("a", fail=True)], [request("b")])
    assert "after the wait" in events.outputs["a"].error
    assert events.outputs["b"].error is None


def test_what_waits_can_be_cancelled(run, log):
    gone = []
    events = Events()

    class Cancelling(Others):
        def take(self):
            gone.append("a")
            return super().take()

    first = request("a", cancelled=lambda: bool(gone))
    run.runner.execute_model_batch([first], events, Cancelling([request("b")]))
    assert events.outputs["a"].aborted
    assert "a cancelled" in log
    assert "a ends" not in log
    assert events.outputs["b"].error is None


def test_who_changes_a_module_is_alone(run, log, pipeline):
    """Neither beside the first wave, nor with another one beside it."""
    change = {"change": True, "more": 1}
    events = run([request("a", **change)], [request("b", **change)], [request("c")])
    assert [events.outputs[name].error for name in "ab"] == [None, None]
    assert log.index("b 1") < log.index("a ends") < log.index("b more 0")
    assert "c begins" not in log


def test_calls_that_take_the_thread_for_too_long_wait_for_the_first_wave(run, log, platform):
    """The device does a's work while b's first call is being made, and a is late."""
    platform.time_of = lambda mark: 0
    work = platform.work

    def long_call():
        if platform.current == 1:
            platform.behind[0][0].happen()
        work()

    platform.work = long_call
    run([request("a")], [request("b")])
    assert log.index("b 0") < log.index("a ends")
    platform.work = work
    log.clear()
    run([request("c")], [request("d")])
    assert log.index("d begins") < log.index("c ends") < log.index("d 0")


def test_a_lost_device_ends_both_waves(run, platform):
    wait = platform.wait_for_any

    def fail(events, enough):
        if enough() or len(events) == 1:
            return wait(events, enough)
        raise RuntimeError("CUDA error: device-side assert triggered")

    platform.wait_for_any = fail
    events = run([request("a")], [request("b")])
    assert {name: output.fatal for name, output in events.outputs.items()} == {"a": True, "b": True}


def test_a_failure_to_tell_ends_both_waves(run, log):
    def fail(output):
        raise ConnectionError("nobody listens")

    with pytest.raises(ConnectionError):
        run.runner.execute_model_batch([request("a")], Events(fail), Others([request("b")]))
    assert "b cancelled" in log
    log.clear()
    assert run([request("d")]).order == ["d"]


@pytest.mark.parametrize("looks", [1, 2, 3, 5, 8])
def test_a_device_that_goes_on_between_two_looks_is_not_waited_for_in_vain(
    run, log, platform, looks
):
    """Each event has happened when somebody has looked so often; waiting for none would not end."""
    asked = Counter()

    def look(event):
        asked[id(event)] += 1
        if asked[id(event)] >= looks:
            event.happen()
        return event.happened()

    platform.has_happened = look
    events = run([request("a", steps=8)], [request("b", steps=8)], [request("c", steps=8)])
    assert events.order == ["a", "b", "c"][: len(events.order)]


def test_steps_of_both_waves_keep_pace(run, platform, log):
    most = []
    work = platform.work

    def count():
        most.append(platform.steps_queued)
        work()

    platform.work = count
    run([request("a", steps=8)], [request("b", steps=8)])
    assert max(most) <= 4
    assert log.index("a 7") < log.index("b begins") < log.index("a ends") < log.index("b 4")


def test_in_step_mode_a_lane_waits_as_ever(run, log, platform):
    events = Events()
    new = [request("a"), request("b")]
    while len(events.outputs) < 2:
        run.runner.execute_stepwise(new, ["a", "b"], events)
        new = []
    assert "idle" not in log
    assert [events.outputs[name].error for name in "ab"] == [None, None]


# ---------------------------------------------------------------------- what may not overlap


class Keeping(Waiting):
    """Returns one buffer, again and again."""

    def __init__(self, log, platform):
        super().__init__(log, platform)
        self.buffer = torch.empty(1, 2)

    def paint(self, sample, name, **options):
        return self.buffer.copy_(super().paint(sample, name, **options))


class Static(nn.Module):
    """Leaves its results in the same memory, as engines of other makers do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("out", torch.empty(1, 2))

    def forward(self, sample):
        return self.out.copy_(sample + 1)


class StaticComponent(Waiting):
    def __init__(self, log, platform):
        super().__init__(log, platform)
        self.unet = Static()
        self.unet.register_forward_hook(lambda *_: platform.work())


class Passing(Waiting):
    """Its network returns what it is given, which is the caller's own."""

    def __init__(self, log, platform):
        super().__init__(log, platform)
        self.unet = nn.Identity()
        self.unet.register_forward_hook(lambda *_: platform.work())

    def paint(self, sample, name, **options):
        return super().paint(sample, name, **options) + 1


class OnDevice(Waiting):
    """Holds memory of a device that is not the host's."""

    def __init__(self, log, platform):
        super().__init__(log, platform)
        self.cache = [torch.empty(2, device="meta")]


@pytest.mark.parametrize("kind", [Keeping, StaticComponent, OnDevice])
def test_waves_do_not_overlap_where_memory_is_used_again(kind, log, platform):
    runner = DiffusionModelRunner(kind(log, platform), platform)
    for name in "xyz":
        runner.execute_model_batch([request(name)], Events())
    log.clear()
    runner.execute_model_batch([request("a")], Events(), others := Others([request("b")]))
    assert others.is_there()
    assert "b begins" not in log


class Direct(Waiting):
    """Returns what its last component returns, which is called once for each request."""

    def __init__(self, log, platform):
        super().__init__(log, platform)
        self.vae = nn.Linear(2, 2)

    def paint(self, sample, name, **options):
        sample = self.vae(super().paint(sample, name, **options))
        current_lane().give_way_to_device()
        return sample


@pytest.mark.parametrize("kind", [Waiting, Passing, Direct])
def test_they_overlap_where_it_is_not(kind, log, platform):
    runner = DiffusionModelRunner(kind(log, platform), platform)
    for name in "xyz":
        runner.execute_model_batch([request(name)], Events())
    runner.execute_model_batch([request("a")], Events(), others := Others([request("b")]))
    assert not others.is_there()


def test_the_first_request_of_a_size_is_alone(log, platform):
    class Sized(Waiting):
        def __call__(self, sample, name, width):
            return self.paint(sample, name)

    def sized(name, width):
        kwargs = {"sample": torch.ones(1, 2), "name": name, "width": width}
        return [RunnerRequest(name, kwargs, seed=0)]

    runner = DiffusionModelRunner(Sized(log, platform), platform)
    for name in "yz":
        runner.execute_model_batch(sized(name, 8), Events())
    for first, second, width in (("a", "b", 8), ("c", "d", 16), ("e", "f", 16)):
        others = Others(sized(second, width))
        runner.execute_model_batch(sized(first, width), Events(), others)
        assert others.is_there() == (first == "c")
