"""Errors inside pipelines: they end one request, with a traceback, and nothing else."""

import gc
import weakref

import pytest
import torch

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Component, Events, picture, rows, run_wave, runner_of


class Steps:
    """Calls its module a number of times, with a request's own tag."""

    def __init__(self, function):
        self.unet = Component(function)

    def __call__(self, sample, tag=None, num_inference_steps=3):
        for _ in range(num_inference_steps):
            sample = self.unet(sample, tag)
        return sample


def failing(error):
    """Return a module function that fails for rows that begin with a negative number."""

    def function(sample, tag):
        if bool((sample[:, 0] < 0).any()):
            raise error
        return sample * 0.5

    return function


def sample(good, count=2):
    values = torch.arange(count * 8, dtype=torch.float32).reshape(count, 8) + 1
    return values if good else -values


def test_an_error_ends_its_request_with_the_traceback():
    pipeline = Steps(failing(KeyError("no such layer")))
    runner = runner_of(pipeline)
    (output,) = run_wave(runner, [{"sample": sample(False)}])
    assert output.error_type == "KeyError"
    assert "no such layer" in output.error
    assert "in failing" not in output.error
    assert "raise error" in output.error
    assert "in __call__" in output.error
    assert not output.fatal
    assert not output.aborted
    assert picture(run_wave(runner, [{"sample": sample(True)}])[0]).shape == (2, 8)


def test_an_error_in_the_pipelines_own_code_ends_its_request():
    class Wrong(Steps):
        def __call__(self, sample):
            raise ValueError("height must be divisible by 8")

    (output,) = run_wave(runner_of(Wrong(lambda x, tag: x)), [{"sample": sample(True)}])
    assert (output.error_type, output.fatal) == ("ValueError", False)
    assert "divisible by 8" in output.error


def test_unknown_arguments_end_the_request():
    (output,) = run_wave(runner_of(Steps(lambda x, tag: x)), [{"nonsense": 1}])
    assert output.error_type == "TypeError"
    assert "nonsense" in output.error


@pytest.mark.parametrize("merge", [False, True], ids=["interleaved", "merged"])
def test_only_the_guilty_request_of_a_wave_fails(merge):
    pipeline = Steps(failing(RuntimeError("bad rows")))
    runner = runner_of(pipeline, merge=merge)
    run_wave(runner, [{"sample": sample(True)}, {"sample": sample(True) + 1}])
    wave = [{"sample": sample(True)}, {"sample": sample(False)}, {"sample": sample(True) * 2}]
    first, second, third = run_wave(runner, wave)
    assert torch.equal(picture(first), sample(True) / 8)
    assert second.error_type == "RuntimeError"
    assert torch.equal(picture(third), sample(True) / 4)
    if merge:
        assert runner.statistics()["fallbacks"] == 1
        assert runner.statistics()["refused"] == []


def test_a_merged_call_that_fails_by_itself_is_not_tried_again():
    def narrow(sample, tag):
        if len(sample) > 4:
            raise RuntimeError("at most four rows")
        return sample * 0.5

    runner = runner_of(Steps(narrow), merge=True)
    run_wave(runner, [{"sample": sample(True)}, {"sample": sample(True) + 1}])
    wave = [{"sample": sample(True) + n} for n in range(3)]
    for output in run_wave(runner, wave):
        assert output.error is None
    statistics = runner.statistics()
    assert statistics["fallbacks"] == 1
    assert "at most four rows" in statistics["refused"][0]["reason"]


def test_out_of_memory_ends_its_request_and_frees_its_tensors():
    kept = []

    class Hungry(Steps):
        def __call__(self, sample, tag=None):
            large = torch.zeros(1000)
            kept.append(weakref.ref(large))
            return super().__call__(sample, tag)

    pipeline = Hungry(failing(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")))
    runner, events = runner_of(pipeline), Events()
    emptied = []
    runner._platform.empty_cache = lambda: emptied.append(kept[0]() is None)
    gc.disable()
    try:
        runner.execute_model_batch([RunnerRequest("a", {"sample": sample(False)})], events)
    finally:
        gc.enable()
    output = events.outputs["a"]
    assert output.error_type == "OutOfMemoryError"
    assert not output.fatal
    assert emptied == [True], "the cache was emptied while the request still held memory"
    assert picture(run_wave(runner, [{"sample": sample(True)}])[0]).shape == (2, 8)


def test_when_a_merged_call_is_too_large_smaller_ones_are_made():
    widths = []

    def limited(sample, tag):
        widths.append(len(sample))
        if len(sample) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return sample * 0.5

    runner = runner_of(Steps(limited), merge=True)
    run_wave(runner, [{"sample": sample(True) + n} for n in range(2)])
    widths.clear()
    for n, output in enumerate(run_wave(runner, [{"sample": sample(True) + n} for n in range(4)])):
        assert torch.equal(picture(output), (sample(True) + n) / 8)
    assert widths == [8, 2, 2, 2, 2, 4, 4, 4, 4]


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: unspecified launch failure"),
    ],
    ids=["accelerator error", "runtime error"],
)
def test_a_lost_device_ends_the_whole_wave_and_says_so(error):
    pipeline = Steps(failing(error))
    runner = runner_of(pipeline)
    wave = [{"sample": sample(True)}, {"sample": sample(False)}, {"sample": sample(True)}]
    outputs = run_wave(runner, wave)
    assert [output.fatal for output in outputs] == [True, True, True]
    assert pipeline.unet.calls == 2, "components were called on a device that is lost"
    (later,) = run_wave(runner, [{"sample": sample(True)}])
    assert later.fatal
    assert pipeline.unet.calls == 2


def test_a_device_that_is_lost_outside_of_a_component_is_lost_too():
    class Waiting(Steps):
        def __call__(self, sample):
            sample = self.unet(sample, None)
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    pipeline = Waiting(lambda x, tag: x)
    outputs = run_wave(runner_of(pipeline), [{"sample": sample(True)} for _ in range(3)])
    assert [output.fatal for output in outputs] == [True, True, True]
    assert pipeline.unet.calls == 1


def test_a_pipeline_that_cannot_be_copied_fails_its_requests():
    class Scheduler:
        def set_timesteps(self):
            pass

        def step(self):
            pass

        def __deepcopy__(self, memo):
            raise TypeError("cannot be copied")

    pipeline = Steps(lambda x, tag: x)
    pipeline.scheduler = Scheduler()
    for output in run_wave(runner_of(pipeline), [{"sample": sample(True)}] * 2):
        assert output.error_type == "TypeError"
    pipeline.scheduler = None
    assert run_wave(runner_of(pipeline), [{"sample": sample(True)}])[0].error is None


def test_a_lane_that_ends_is_reported_while_the_others_go_on():
    order = []
    pipeline = Steps(lambda x, tag: order.append(tag) or x)
    wave = [
        RunnerRequest("long", {"sample": rows(1), "tag": "long", "num_inference_steps": 4}),
        RunnerRequest("short", {"sample": rows(2), "tag": "short", "num_inference_steps": 1}),
    ]
    events = Events(lambda output: order.append(f"{output.request_id} done"))
    runner_of(pipeline).execute_model_batch(wave, events)
    assert order.index("short done") < order.index("long done")
    assert order.count("long") == 4
    assert order.index("short done") <= 2


def test_interrupts_of_the_worker_pass_through():
    runner = runner_of(Steps(failing(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        run_wave(runner, [{"sample": sample(True)}, {"sample": sample(False)}])
    assert picture(run_wave(runner, [{"sample": sample(True)}])[0]).shape == (2, 8)
