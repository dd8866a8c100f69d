"""The schedule of ticks: what runs when, who waits for whom, how requests end."""

import gc

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Component, Events, picture, rows, run_wave, runner_of, step_through


class Scheduler:
    def set_timesteps(self, count):
        self.timesteps = list(range(count))

    def step(self, sample):
        return sample * 0.5


class Logging(nn.Module):
    """Adds one, and notes the batch size of each call under a name."""

    def __init__(self, log, name):
        super().__init__()
        self.log, self.name = log, name

    def forward(self, sample, kind="plain"):
        self.log.append((self.name, len(sample)))
        return sample + 1

    def decode(self, sample):
        self.log.append((f"{self.name}.decode", len(sample)))
        return sample + 1


class Pipeline:
    """Encodes, makes steps, each of `calls` component calls and a scheduler step, and decodes."""

    calls = ("unet",)
    decodes = 1

    def __init__(self):
        self.log = []
        self.scheduler = Scheduler()
        for name in ("text_encoder", "controlnet", "unet", "model", "vae"):
            setattr(self, name, Logging(self.log, name))

    def __call__(self, sample, num_inference_steps=3):
        self.scheduler.set_timesteps(num_inference_steps)
        sample = self.text_encoder(sample)
        for _ in self.scheduler.timesteps:
            for name in self.calls:
                sample = getattr(self, name)(sample)
            sample = self.scheduler.step(sample)
        for _ in range(self.decodes):
            sample = self.vae.decode(sample)
        return sample


def request(name, seed=0, steps=3):
    return RunnerRequest(name, {"sample": rows(seed), "num_inference_steps": steps})


def requests_of(*steps):
    return [request(str(n), n, count) for n, count in enumerate(steps)]


def warmed(pipeline):
    """Return a runner that knows how the pipeline's calls are merged."""
    runner = runner_of(pipeline, merge=True)
    run_wave(runner, requests_of(1, 1))
    pipeline.log.clear()
    return runner


def names(log):
    return [name for name, _ in log]


# ---------------------------------------------------------------------- phases and steps


def test_a_tick_encodes_first_and_decodes_last():
    pipeline = Pipeline()
    runner, events = warmed(pipeline), Events()
    runner.execute_stepwise([request("a", 0, 1), request("b", 1, 3)], ["a", "b"], events)
    first = [("text_encoder", 4), ("unet", 4), ("vae.decode", 2)]
    assert pipeline.log == first
    pipeline.log.clear()
    runner.execute_stepwise([request("c", 2, 2)], ["b", "c"], events)
    assert pipeline.log == [("text_encoder", 2), ("unet", 4)]
    pipeline.log.clear()
    assert runner.execute_stepwise([], ["b", "c"], events) == []
    assert pipeline.log == [("unet", 4), ("vae.decode", 4)]
    for index, (name, steps) in enumerate((("a", 1), ("b", 3), ("c", 2))):
        wanted = Pipeline()(rows(index), steps)
        assert torch.equal(picture(events.outputs[name]), wanted)


def test_a_tick_tells_where_its_requests_stand_and_passes_strangers_over():
    runner, events = runner_of(Pipeline()), Events()
    a, b = requests_of(3, 2)
    assert runner.execute_stepwise([a, b], ["1", "nobody", "0"], events) == [
        ("1", 1, 2),
        ("0", 1, 3),
    ]
    assert runner.execute_stepwise([], ["0", "0", "1"], events) == [("0", 2, 3)]
    assert runner.execute_stepwise([], ["1", "0"], events) == []
    assert events.order == ["1", "0"]
    assert events.progress == [("1", 2, 2), ("0", 3, 3)], "the last step is told, others returned"
    assert runner.execute_stepwise([], ["0", "1"], events) == []


def test_a_request_that_is_not_scheduled_calls_nothing():
    pipeline = Pipeline()
    runner, events = runner_of(pipeline), Events()
    assert runner.execute_stepwise(requests_of(3, 3), ["1"], events) == [("1", 1, 3)]
    assert names(pipeline.log) == ["text_encoder", "unet"]
    assert runner.execute_stepwise([], [], events) == []
    assert len(pipeline.log) == 2


@pytest.mark.parametrize(
    ("calls", "logged"),
    [
        (("unet", "unet"), ["unet", "unet"]),
        (("controlnet", "unet"), ["controlnet", "unet"]),
        (("model",), ["model"]),
    ],
    ids=["two calls", "two components", "an unknown name"],
)
def test_a_step_is_all_calls_up_to_the_next_one_that_repeats(calls, logged):
    pipeline = Pipeline()
    pipeline.calls, pipeline.decodes = calls, 3
    runner, events = runner_of(pipeline), Events()
    runner.execute_stepwise([request("a")], ["a"], events)
    assert names(pipeline.log) == ["text_encoder", *logged]
    pipeline.log.clear()
    assert runner.execute_stepwise([], ["a"], events) == [("a", 2, 3)]
    assert names(pipeline.log) == logged
    pipeline.log.clear()
    assert runner.execute_stepwise([], ["a"], events) == []
    assert names(pipeline.log) == [*logged, *["vae.decode"] * 3]


def test_without_a_scheduler_a_step_is_a_call_of_the_denoiser():
    class Unscheduled(Pipeline):
        def __call__(self, sample, num_inference_steps):
            for _ in range(num_inference_steps):
                sample = self.unet(self.controlnet(sample))
            return self.vae(sample)

    pipeline = Unscheduled()
    pipeline.scheduler = None
    events, ticks = step_through(runner_of(pipeline), [request("a", steps=3)])
    assert [tick for tick in ticks if tick] == [[("a", 1, 3)], [("a", 2, 3)]]
    assert torch.equal(picture(events.outputs["a"]), pipeline(rows(0), 3))


@pytest.mark.parametrize("calls", [["text_encoder", "vae"], ["unet", "controlnet"] * 3])
def test_a_pipeline_without_steps_runs_to_its_end_in_one_tick(calls):
    class Filter(Pipeline):
        def __call__(self, sample, num_inference_steps):
            for name in calls:
                sample = getattr(self, name)(sample)
            return sample

    events, ticks = step_through(runner_of(Filter()), requests_of(1, 1))
    assert ticks == [[]]
    assert picture(events.outputs["1"]).shape == rows(1).shape


# ---------------------------------------------------------------------- who waits for whom


def test_requests_wait_only_for_those_that_are_scheduled():
    """The guided halves of a step are separate calls, which meet whoever else is there."""

    class Guided(Pipeline):
        def __call__(self, sample, num_inference_steps):
            self.scheduler.set_timesteps(num_inference_steps)
            for _ in self.scheduler.timesteps:
                negative = self.unet(sample, kind="negative")
                sample = self.scheduler.step(negative + self.unet(sample, kind="positive"))
            return sample

    pipeline = Guided()
    runner = runner_of(pipeline, merge=True)
    run_wave(runner, requests_of(2, 2))
    pipeline.log.clear()
    events = Events()
    runner.execute_stepwise(requests_of(4, 4, 4), ["0", "1", "2"], events)
    assert [width for _, width in pipeline.log] == [6, 6]
    pipeline.log.clear()
    runner.execute_stepwise([], ["0", "2"], events)
    assert [width for _, width in pipeline.log] == [4, 4]
    runner.execute_stepwise([], ["1"], events)
    pipeline.log.clear()
    runner.execute_stepwise([], ["0", "1", "2"], events)
    assert [width for _, width in pipeline.log] == [6, 6]


class Casting(Pipeline):
    """Casts its autoencoder for all of a call, or just for decoding."""

    def __init__(self):
        super().__init__()
        self.vae = nn.Linear(8, 8)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            nn.init.normal_(self.vae.weight)

    def __call__(self, sample, num_inference_steps, whole=False):
        self.scheduler.set_timesteps(num_inference_steps)
        if whole:
            self.vae.to(torch.float64)
        for _ in self.scheduler.timesteps:
            sample = self.scheduler.step(self.unet(sample))
            if whole:
                self.vae(sample.double())
        if not whole:
            self.vae.to(torch.float64)
        sample = self.vae(sample.double())
        self.vae.to(torch.float32)
        return sample


def test_requests_that_cast_a_module_after_their_steps_take_turns():
    pipeline = Casting()
    expected = [pipeline(rows(n), 2).detach() for n in range(3)]
    events, _ = step_through(runner_of(pipeline), requests_of(2, 2, 2))
    for n, wanted in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)
    assert pipeline.vae.weight.dtype == torch.float32


def test_a_request_that_has_cast_a_module_goes_on_alone_also_when_it_is_not_scheduled():
    pipeline = Casting()
    expected = [pipeline(rows(0), 4, whole=True).detach(), pipeline(rows(1), 2).detach()]
    pipeline.log.clear()
    runner, events = runner_of(pipeline), Events()
    caster, other = requests_of(4, 2)
    caster.kwargs["whole"] = True
    assert runner.execute_stepwise([caster], ["0"], events) == [("0", 1, 4)]
    assert len(pipeline.log) == 1, "alone, it makes one step at a time"
    assert runner.execute_stepwise([other], ["1"], events) == [("1", 1, 2)]
    assert events.order == ["0"], "nobody can run before the module is back"
    runner.execute_stepwise([], ["1"], events)
    for n, wanted in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)


# ---------------------------------------------------------------------- ends


def test_a_request_is_cancelled_before_any_of_its_calls():
    pipeline = Pipeline()
    for allowed in range(6):
        pipeline.log.clear()
        asked = request("a")
        asked.cancelled = lambda k=allowed: len(pipeline.log) >= k
        events, _ = step_through(runner_of(pipeline), [asked])
        assert events.outputs["a"].aborted is (allowed < 5)
        assert len(pipeline.log) == min(allowed, 5)


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_is_not_scheduled_is_cancelled_in_the_next_tick(begun):
    cleaned, flags = [], set()

    class Tidy(Pipeline):
        def __call__(self, sample, num_inference_steps):
            try:
                return super().__call__(sample, num_inference_steps)
            finally:
                cleaned.append(len(sample))

    pipeline = Tidy()
    runner, events = runner_of(pipeline), Events()
    victim, other = requests_of(3, 3)
    victim.cancelled = lambda: bool(flags)
    runner.execute_stepwise([victim, other], ["0", "1"] if begun else ["1"], events)
    flags.add("cancel")
    calls = len(pipeline.log)
    runner.execute_stepwise([], [], events)
    assert events.outputs["0"].aborted
    assert (cleaned, len(pipeline.log)) == ([2] if begun else [], calls)
    runner.execute_stepwise([], ["0", "1"], events)
    runner.execute_stepwise([], ["0", "1"], events)
    assert torch.equal(picture(events.outputs["1"]), Pipeline()(rows(1), 3))


@pytest.mark.parametrize("merge", [False, True], ids=["interleaved", "merged"])
def test_only_the_guilty_request_fails(merge):
    def function(sample):
        if bool((sample[:, 0] > 50).any()):
            raise RuntimeError("bad rows")
        return sample * 2

    pipeline = Pipeline()
    pipeline.unet = Component(function)
    runner = runner_of(pipeline, merge=merge)
    run_wave(runner, requests_of(1, 1))
    bad = RunnerRequest("bad", {"sample": rows(2).abs() + 60, "num_inference_steps": 3})
    odd = RunnerRequest("odd", {"nonsense": 1})
    events, _ = step_through(runner, [*requests_of(3, 2), bad, odd], arrivals=[0, 0, 1, 1])
    assert events.outputs["bad"].error_type == "RuntimeError"
    assert events.outputs["odd"].error_type == "TypeError"
    for n, steps in enumerate((3, 2)):
        wanted = run_wave(runner_of(pipeline), requests_of(3, 2))[n]
        assert torch.equal(picture(events.outputs[str(n)]), picture(wanted)), steps


def test_open_requests_have_names_of_their_own():
    runner, events = runner_of(Pipeline()), Events()
    runner.execute_stepwise([request("a")], ["a"], events)
    with pytest.raises(ValueError, match="'a' is open already"):
        runner.execute_stepwise([request("a")], ["a"], events)
    step_through(runner, [request("a")])


def test_abandoned_requests_unwind_and_nobody_is_told():
    cleaned = []

    class Tidy(Pipeline):
        def __call__(self, sample, num_inference_steps):
            try:
                return super().__call__(sample, num_inference_steps)
            finally:
                cleaned.append(True)

    runner, events = runner_of(Tidy()), Events()
    runner.execute_stepwise(requests_of(3, 3, 3), ["0", "1"], events)
    runner.abandon_steps()
    assert cleaned == [True, True]
    assert events.outputs == {}
    assert runner.execute_stepwise([], ["0", "1", "2"], events) == []
    runner.abandon_steps()
    step_through(runner, requests_of(2))


def test_all_requests_are_unwound_when_the_listener_fails():
    def fail(output):
        raise ConnectionError("nobody is there")

    runner = runner_of(Pipeline())
    with pytest.raises(ConnectionError):
        step_through(runner, requests_of(1, 3), events=Events(fail))
    events, _ = step_through(runner, requests_of(1, 3))
    assert len(events.outputs) == 2


def test_interrupts_of_the_worker_pass_through_and_unwind_all_requests():
    def interrupted(sample):
        if bool((sample > 50).any()):
            raise KeyboardInterrupt
        return sample

    pipeline = Pipeline()
    pipeline.unet = Component(interrupted)
    runner, events = runner_of(pipeline), Events()
    runner.execute_stepwise(requests_of(3, 3), ["0", "1"], events)
    bad = RunnerRequest("bad", {"sample": rows(2).abs() + 60, "num_inference_steps": 3})
    with pytest.raises(KeyboardInterrupt):
        runner.execute_stepwise([bad], ["0", "bad"], events)
    assert events.outputs == {}
    assert runner.execute_stepwise([], ["0", "1", "bad"], events) == []
    step_through(runner, requests_of(3, 3))


def test_a_wave_that_fails_leaves_the_requests_of_step_mode_alone():
    def fail(output):
        raise ConnectionError("nobody is there")

    runner, events = runner_of(Pipeline()), Events()
    runner.execute_stepwise(requests_of(3), ["0"], events)
    with pytest.raises(ConnectionError):
        runner.execute_model_batch(requests_of(1, 3), Events(fail))
    while runner.execute_stepwise([], ["0"], events):
        pass
    assert torch.equal(picture(events.outputs["0"]), Pipeline()(rows(0), 3))


def test_a_wave_may_run_between_two_ticks():
    pipeline = Pipeline()
    runner, events = runner_of(pipeline, merge=True), Events()
    runner.execute_stepwise(requests_of(3, 3), ["0", "1"], events)
    outputs = run_wave(runner, requests_of(2, 4, 1))
    for n, steps in enumerate((2, 4, 1)):
        assert torch.equal(picture(outputs[n]), Pipeline()(rows(n), steps))
    while runner.execute_stepwise([], ["0", "1"], events):
        pass
    for n in range(2):
        assert torch.equal(picture(events.outputs[str(n)]), Pipeline()(rows(n), 3))


def test_nothing_is_left_for_the_collector():
    runner = runner_of(Pipeline(), merge=True)
    step_through(runner, requests_of(2, 3), arrivals=[0, 1])
    gc.collect()
    gc.disable()
    try:
        step_through(runner, requests_of(2, 3), arrivals=[0, 1])
        assert gc.collect() == 0
    finally:
        gc.enable()
