"""Pipelines that run their own steps: batches, ends of single requests, the example."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.step_protocol import InputBatch, StepPipeline, StepRequestState

from .lane_helpers import Component, Events, picture, rows, runner_of, step_through

EXAMPLE = Path(__file__).parents[2] / "examples" / "step_protocol.py"


def example():
    spec = importlib.util.spec_from_file_location("step_protocol_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Paint()


class Halving:
    """Halves its sample in each step, and notes its calls; prompts say where to fail."""

    def __init__(self):
        self.denoiser = Component(lambda sample: sample * 0.5)
        self.log = []
        self.error = RuntimeError("told to")

    def _note(self, name, *states):
        self.log.append((name, *(state.request_id for state in states)))
        if any(state.kwargs.get("fail") == name for state in states):
            raise self.error

    def prepare_encode(self, state):
        self._note("prepare_encode", state)
        state.data.sample = state.kwargs["sample"]
        state.total = state.kwargs.get("steps", 3)
        state.batch_key = state.data.sample.shape[1:]
        assert not torch.is_grad_enabled()

    def denoise_step(self, batch):
        self._note("denoise_step", *batch.states)
        return batch.split(self.denoiser(batch.join("sample")), "sample")

    def step_scheduler(self, state, prediction):
        self._note("step_scheduler", state)
        state.data.sample = prediction

    def post_decode(self, state):
        self._note("post_decode", state)
        return state.data.sample

    def __call__(self, sample, steps=3, fail=None):
        raise AssertionError("not called in step mode")


METHODS = ["prepare_encode", "denoise_step", "step_scheduler", "post_decode"]


def request(name, seed=0, **kwargs):
    return RunnerRequest(name, {"sample": rows(seed), **kwargs})


def requests_of(*counts):
    return [request(str(n), n, steps=steps) for n, steps in enumerate(counts)]


def test_a_runner_tells_whether_the_pipeline_runs_its_own_steps():
    synthetic = load_pipeline("synthetic", {}, device="cpu", dtype=None)
    for pipeline in (synthetic, example(), Halving()):
        assert isinstance(pipeline, StepPipeline)
        assert runner_of(pipeline).capabilities()["step_protocol"] is True
    tiny = load_pipeline("shapes", {}, device="cpu", dtype=None)
    assert runner_of(tiny).capabilities()["step_protocol"] is False


def test_requests_join_and_leave_a_batch_between_steps():
    pipeline = Halving()
    runner = runner_of(pipeline)
    events, ticks = step_through(runner, requests_of(2, 4, 1), arrivals=[0, 1, 1])
    for index, steps in enumerate((2, 4, 1)):
        assert torch.equal(picture(events.outputs[str(index)]), rows(index) * 0.5**steps)
    batches = [entry[1:] for entry in pipeline.log if entry[0] == "denoise_step"]
    assert batches == [("0",), ("0", "1", "2"), ("1",), ("1",), ("1",)]
    assert ticks[0] == [("0", 1, 2)]
    assert ticks[1] == [("1", 1, 4)]
    assert events.order == ["0", "2", "1"]
    assert runner.statistics()["merged_lanes"] == 3


def test_a_tick_prepares_first_and_decodes_last():
    pipeline = Halving()
    step_through(runner_of(pipeline), requests_of(1, 1))
    assert [name for name, *_ in pipeline.log] == [
        *("prepare_encode", "prepare_encode", "denoise_step"),
        *("step_scheduler", "step_scheduler", "post_decode", "post_decode"),
    ]


def test_requests_that_do_not_fit_together_are_batched_apart():
    pipeline = Halving()
    odd = RunnerRequest("odd", {"sample": rows(5)[:, :3]})
    events, _ = step_through(runner_of(pipeline), [request("a"), odd, request("b", 1)])
    assert torch.equal(picture(events.outputs["odd"]), rows(5)[:, :3] * 0.125)
    batches = {entry[1:] for entry in pipeline.log if entry[0] == "denoise_step"}
    assert batches == {("a", "b"), ("odd",)}


def test_a_request_that_is_not_scheduled_stays_where_it_is():
    pipeline, events = Halving(), Events()
    runner = runner_of(pipeline)
    both = [request("a"), request("b", 1)]
    assert runner.execute_stepwise(both, ["a"], events) == [("a", 1, 3)]
    assert runner.execute_stepwise([], ["a", "unknown"], events) == [("a", 2, 3)]
    assert runner.execute_stepwise([], ["b", "a"], events) == [("b", 1, 3)]
    assert runner.execute_stepwise([], ["a", "b"], events) == [("b", 2, 3)]
    assert runner.execute_stepwise([], ["b"], events) == []
    assert torch.equal(picture(events.outputs["b"]), rows(1) * 0.125)


@pytest.mark.parametrize("method", METHODS)
def test_an_error_ends_the_request_whose_call_raised_it(method):
    pipeline = Halving()
    runner = runner_of(pipeline)
    wave = [request("a"), request("bad", 1, fail=method), request("b", 2)]
    events, _ = step_through(runner, wave)
    assert events.outputs["bad"].error_type == "RuntimeError"
    assert "told to" in events.outputs["bad"].error
    for name, seed in (("a", 0), ("b", 2)):
        assert torch.equal(picture(events.outputs[name]), rows(seed) * 0.125)
    assert runner.statistics()["fallbacks"] == (method == "denoise_step")


def test_a_batch_without_memory_runs_separately():
    def limited(sample):
        if len(sample) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return sample * 0.5

    pipeline = Halving()
    pipeline.denoiser = Component(limited)
    runner, emptied = runner_of(pipeline), []
    runner._platform.empty_cache = lambda: emptied.append(True)
    events, _ = step_through(runner, requests_of(1, 1))
    for index in range(2):
        assert torch.equal(picture(events.outputs[str(index)]), rows(index) * 0.5)
    assert emptied == [True]


@pytest.mark.parametrize("method", METHODS)
def test_a_lost_device_ends_all_open_requests(method):
    pipeline = Halving()
    pipeline.error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    runner, events = runner_of(pipeline), Events()
    runner.execute_stepwise([request("waiting")], [], events)
    step_through(runner, [request("bad", 1, fail=method), request("other", 2)], events=events)
    assert {name: output.fatal for name, output in events.outputs.items()} == dict.fromkeys(
        ("waiting", "bad", "other"), True
    )
    calls = len(pipeline.log)
    runner.execute_stepwise([request("later")], ["later"], events)
    assert events.outputs["later"].fatal
    assert len(pipeline.log) == calls


def test_cancelling_before_each_call():
    pipeline = Halving()
    total = len(METHODS[:1]) + 2 * 3 + 1
    for allowed in range(total + 1):
        pipeline.log.clear()
        asked = request("a")
        asked.cancelled = lambda k=allowed: len(pipeline.log) >= k
        events, _ = step_through(runner_of(pipeline), [asked])
        assert events.outputs["a"].aborted is (allowed < total)
        assert len(pipeline.log) == allowed


def test_a_request_that_waits_is_cancelled_in_the_next_tick():
    flags, events = set(), Events()
    runner = runner_of(Halving())
    waiting = request("waiting")
    waiting.cancelled = lambda: "waiting" in flags
    runner.execute_stepwise([waiting, request("a")], ["waiting", "a"], events)
    flags.add("waiting")
    runner.execute_stepwise([], ["a"], events)
    assert events.outputs["waiting"].aborted


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: setattr(p, "prepare_encode", lambda state: None), "total number of steps"),
        (lambda p: setattr(p, "denoise_step", lambda batch: []), "0 predictions for 1 request"),
        (lambda p: preparing(p, total=4.0), "cannot be interpreted as an integer"),
        (lambda p: preparing(p, batch_key=[8]), "unhashable"),
        (lambda p: preparing(p, total="x"), "cannot be interpreted as an integer"),
        (lambda p: preparing(p, total=1 << 70), "at most 1000000 are counted"),
        (lambda p: preparing(p, step=2.5), "cannot be interpreted as an integer"),
    ],
)
def test_a_pipeline_that_breaks_the_protocol_is_told_so(spoil, message):
    pipeline = Halving()
    spoil(pipeline)
    runner = runner_of(pipeline)
    events, _ = step_through(runner, [request("a"), request("b")])
    assert message in events.outputs["a"].error
    assert set(events.outputs) == {"a", "b"}


def test_a_pipeline_may_write_into_the_name_of_a_request():
    pipeline = Halving()
    preparing(pipeline, request_id="somebody else")
    events, _ = step_through(runner_of(pipeline), [request("a"), request("b")])
    assert {name: output.error for name, output in events.outputs.items()} == {"a": None, "b": None}


def preparing(pipeline, **fields):
    """Let a pipeline set something else in `prepare_encode`."""
    prepare = pipeline.prepare_encode

    def changed(state):
        prepare(state)
        for name, value in fields.items():
            setattr(state, name, value)

    pipeline.prepare_encode = changed


def test_a_number_of_steps_may_be_of_another_library():
    pipeline = Halving()
    preparing(pipeline, total=np.int64(2))
    runner, events = runner_of(pipeline), Events()
    (progress,) = runner.execute_stepwise([request("a")], ["a"], events)
    assert progress == ("a", 1, 2)
    assert type(progress[2]) is int


def test_an_error_of_the_listener_is_not_the_requests():
    def fail(output):
        raise ConnectionError("nobody is there")

    runner = runner_of(Halving())
    with pytest.raises(ConnectionError):
        step_through(runner, requests_of(1), events=Events(fail))


def test_open_requests_have_names_of_their_own_and_can_be_abandoned():
    runner, events = runner_of(Halving()), Events()
    runner.execute_stepwise([request("a")], ["a"], events)
    with pytest.raises(ValueError, match="'a' is open already"):
        runner.execute_stepwise([request("a")], ["a"], events)
    runner.abandon_steps()
    assert runner.execute_stepwise([], ["a"], events) == []
    assert events.outputs == {}


def test_batches_join_and_split_by_rows():
    states = [StepRequestState({}), StepRequestState({})]
    states[0].data.x, states[1].data.x = rows(0, 1), rows(1, 3)
    batch = InputBatch(states)
    first, second = batch.split(batch.join("x") * 2, "x")
    assert torch.equal(first, rows(0, 1) * 2)
    assert torch.equal(second, rows(1, 3) * 2)
    assert InputBatch(states[:1]).join("x") is states[0].data.x


def test_the_synthetic_pipeline_gives_what_its_call_gives():
    pipeline = load_pipeline("synthetic", {"steps": 3}, device="cpu", dtype=None)
    widths = []
    pipeline.denoiser.register_forward_hook(lambda m, a, result: widths.append(len(result)))

    def calls():
        return [
            {"prompt": "a", "value": 7},
            {"prompt": ["b", "c"], "num_inference_steps": 5, "height": 16},
            {"prompt": "d", "generator": torch.Generator().manual_seed(9)},
        ]

    expected = [pipeline(**call).images for call in calls()]
    widths.clear()
    wave = [RunnerRequest(str(n), call) for n, call in enumerate(calls())]
    events, _ = step_through(runner_of(pipeline), wave)
    for n, wanted in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)
    assert widths == [4, 4, 4, 2, 2]


def test_the_synthetic_pipeline_fails_as_told():
    options = {"steps": 3, "fail_at_step": 1}
    pipeline = load_pipeline("synthetic", options, device="cpu", dtype=None)
    wave = [RunnerRequest(name, {"prompt": name}) for name in ("good", "fail", "fine")]
    wave.append(RunnerRequest("odd", {"nonsense": 1}))
    events, _ = step_through(runner_of(pipeline), wave)
    assert "at step 1" in events.outputs["fail"].error
    assert events.outputs["odd"].error_type == "TypeError"
    assert picture(events.outputs["good"]).shape == picture(events.outputs["fine"]).shape


def test_the_example_paints_what_its_call_paints():
    pipeline = example()

    def calls():
        return [
            {"prompt": prompt, "generator": torch.Generator().manual_seed(n), **more}
            for n, (prompt, more) in enumerate(
                [("teal", {}), ("red", {"num_inference_steps": 3}), ("tan", {"width": 32})]
            )
        ]

    expected = [pipeline(**call)[0] for call in calls()]
    runner = DiffusionModelRunner(pipeline, runner_of(pipeline)._platform)
    wave = [RunnerRequest(str(n), call) for n, call in enumerate(calls())]
    events, _ = step_through(runner, wave, arrivals=[0, 2, 2])
    for n, wanted in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)
    red = picture(events.outputs["1"])
    assert torch.allclose(red, torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), atol=1e-6)
    assert runner.statistics()["merged_calls"] > 0
