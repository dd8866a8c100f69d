"""Arrivals, ticks, cancels, errors and uses of the thread in any order: each request ends once."""

import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Component, Events, Mixer, picture, rows, runner_of


class Scheduler:
    def set_timesteps(self, count):
        self.timesteps = [float(step) for step in range(count, 0, -1)]

    def step(self, prediction, sample):
        return sample * 0.5 + prediction * 0.25


class Guided:
    """Encodes, makes steps of one or two calls, draws random numbers, decodes; fails as told."""

    def __init__(self):
        self.text_encoder = Component(lambda x: x + 1)
        self.unet = Mixer()
        self.vae = Component(lambda x: x * 2)
        self.scheduler = Scheduler()

    def __call__(self, sample, num_inference_steps, guided, fail_at=None):
        condition = self.text_encoder(sample)
        self.scheduler.set_timesteps(num_inference_steps)
        for index, time in enumerate(self.scheduler.timesteps):
            if index == fail_at:
                raise ValueError("as told")
            timestep = torch.tensor([time] * len(sample))
            prediction = self.unet(sample, timestep, condition)
            if guided:
                prediction = prediction + self.unet(sample, timestep, -condition)
            sample = self.scheduler.step(prediction, sample) + torch.randn(())
        return self.vae(sample)


CALLS = st.fixed_dictionaries(
    {
        "num_inference_steps": st.integers(1, 5),
        "guided": st.booleans(),
        "fail_at": st.sampled_from([None, None, None, 0, 2]),
        "count": st.integers(1, 2),
    }
)


class StepMode(RuleBasedStateMachine):
    """A runner, and what its requests must come to."""

    merge = False
    open_requests = Bundle("open_requests")

    def __init__(self):
        super().__init__()
        self.runner = runner_of(Guided(), merge=self.merge)
        self.events = Events()
        self.new = []
        self.calls = {}
        self.cancelled = set()
        self.steps = {}

    @rule(target=open_requests, call=CALLS)
    def arrive(self, call):
        name = str(len(self.calls))
        self.calls[name] = call
        kwargs = {key: value for key, value in call.items() if key != "count"}
        kwargs["sample"] = rows(int(name), call["count"])
        flag = self.cancelled.__contains__
        self.new.append(RunnerRequest(name, kwargs, lambda: flag(name), seed=int(name)))
        return name

    @rule(name=open_requests)
    def cancel(self, name):
        if name not in self.events.outputs:
            self.cancelled.add(name)

    @rule(names=st.lists(open_requests, max_size=4), unknown=st.booleans())
    def tick(self, names, unknown):
        scheduled = [*names, *(["nobody"] if unknown else [])]
        new, self.new = self.new, []
        before = {name: self.steps.get(name, 0) for name in names}
        told = self.runner.execute_stepwise(new, scheduled, self.events)
        there = [name for name in dict.fromkeys(names) if name not in self.events.outputs]
        assert [name for name, _, _ in told] == there
        for name, step, total in told:
            assert step == before[name] + 1
            assert total == self.calls[name]["num_inference_steps"]
            self.steps[name] = step
        assert self.cancelled <= set(self.events.outputs)

    @rule()
    def use_the_thread(self):
        self.runner.release_thread()
        torch.randn(3)

    @rule()
    def run_a_wave(self):
        kwargs = {"sample": rows(0), "num_inference_steps": 1, "guided": False}
        wave, events = [RunnerRequest("wave", kwargs, seed=0)], Events()
        self.runner.execute_model_batch(wave, events)
        self._check(picture(events.outputs["wave"]), kwargs, seed=0)

    def teardown(self):
        for _ in range(6):
            new, self.new = self.new, []
            self.runner.execute_stepwise(new, list(self.calls), self.events)
        assert set(self.events.outputs) == set(self.calls)
        for name, output in self.events.outputs.items():
            call = self.calls[name]
            fails = call["fail_at"] is not None and call["fail_at"] < call["num_inference_steps"]
            if name in self.cancelled:
                assert output.aborted
            elif fails:
                assert output.error_type == "ValueError"
            else:
                kwargs = {key: value for key, value in call.items() if key != "count"}
                kwargs["sample"] = rows(int(name), call["count"])
                self._check(picture(output), kwargs, seed=int(name))

    def _check(self, result, kwargs, seed):
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            wanted = Guided()(**kwargs)
        assert torch.allclose(result, wanted, atol=1e-5 if self.merge else 0.0, rtol=0)


class MergedStepMode(StepMode):
    """The same, with merged calls."""

    merge = True


few = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)
TestStepMode = StepMode.TestCase
TestStepMode.settings = few
TestMergedStepMode = MergedStepMode.TestCase
TestMergedStepMode.settings = few
