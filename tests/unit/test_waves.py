"""Two waves at a time: while all that is left of one waits for the device, the next is begun."""

from collections import Counter

import pytest
import torch

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Events
from .wave_bench import ALONE, Others, Streams, Waiting, known, request


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
    runner = known(pipeline, platform)
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

    before = [*[("x", 3)] * ALONE, ("y", 2)]
    runner = known(Counting(log, platform), platform, [counted(*one)[0] for one in before])
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


def test_a_wave_is_taken_outside_of_the_modes_of_the_one_that_waits(log, platform):
    class Inferring(Waiting):
        def __call__(self, sample, name, options):
            with torch.inference_mode():
                return super().__call__(sample, name, options)

    class Making(Others):
        def take(self):
            self.made = torch.ones(1)
            return super().take()

    others = Making([request("b")])
    runner = known(Inferring(log, platform), platform)
    runner.execute_model_batch([request("a")], Events(), others)
    assert log.index("b begins") < log.index("a ends")
    assert not others.made.is_inference()


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
