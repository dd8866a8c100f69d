"""Step mode on real pipelines: results equal plain diffusers, however requests come and go."""

import diffusers
import pytest
import torch
from diffusers import FirstBlockCacheConfig

from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import PROMPTS, Events, call_of, picture, plain, runner_of, step_through

SCHEDULERS = {
    "euler-ancestral": diffusers.EulerAncestralDiscreteScheduler,
    "dpm++": diffusers.DPMSolverMultistepScheduler,
}
FAMILIES = ["sd15:euler-ancestral", "sd15:dpm++", "sdxl", "sd3", "flux", "wan", "shapes"]
STEPS = [3, 5, 2, 4]
ARRIVALS = [0, 1, 1, 3]
KNOWN = (  # sentences that the shapes model was trained on; others amplify rounding
    "a large red circle on a white background",
    "a small blue star on a green background",
    "a large purple heart on a white background",
    "a small orange diamond below a large white circle on a blue background",
)


def family(name):
    model, _, scheduler = name.partition(":")
    source = model if model == "shapes" else f"random:{model}"
    pipeline = load_pipeline(source, {}, device="cpu", dtype=None)
    if scheduler:
        pipeline.scheduler = SCHEDULERS[scheduler].from_config(pipeline.scheduler.config)
    pipeline.prompts = KNOWN if model == "shapes" else PROMPTS
    return pipeline


def call(pipeline, index, **changes):
    prompt = getattr(pipeline, "prompts", PROMPTS)[index]
    settings = {"prompt": prompt, "num_inference_steps": STEPS[index], **changes}
    return call_of(pipeline, index, **settings)


def requests_of(pipeline):
    return [RunnerRequest(str(n), call(pipeline, n)) for n in range(len(STEPS))]


@pytest.fixture(scope="module", params=FAMILIES)
def served(request):
    """A pipeline and what it makes of four requests when called plainly."""
    pipeline = family(request.param)
    return pipeline, [plain(pipeline, call(pipeline, n)) for n in range(len(STEPS))]


def assert_equal(events, expected, tolerance=0.0):
    for index, wanted in enumerate(expected):
        result = picture(events.outputs[str(index)])
        if tolerance:
            assert torch.allclose(result, wanted, atol=tolerance, rtol=0)
        else:
            assert torch.equal(result, wanted)


def test_one_request_is_bit_equal_and_makes_one_step_in_each_tick(served):
    pipeline, expected = served
    runner = runner_of(pipeline, merge=True)
    events, ticks = step_through(runner, requests_of(pipeline)[1:2])
    assert torch.equal(picture(events.outputs["1"]), expected[1])
    assert [tick[0][:2] for tick in ticks[:-1]] == [("1", step) for step in range(1, len(ticks))]
    assert len(ticks) == STEPS[1]
    assert ticks[0][0][2] == STEPS[1]


def test_requests_that_come_and_go_are_bit_equal(served):
    pipeline, expected = served
    events, _ = step_through(runner_of(pipeline), requests_of(pipeline), arrivals=ARRIVALS)
    assert_equal(events, expected)
    assert set(events.order[:2]) == {"0", "2"}


def test_merged_requests_that_come_and_go_agree_within_rounding(served):
    pipeline, expected = served
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):  # the first time probes
        events, _ = step_through(runner, requests_of(pipeline), arrivals=ARRIVALS)
        assert_equal(events, expected, 1e-5)
    statistics = runner.statistics()
    assert statistics["refused"] == []
    assert statistics["merged_lanes"] >= 2 * 8


def test_a_preempted_request_is_bit_equal(served):
    pipeline, expected = served
    events, ticks = step_through(
        runner_of(pipeline),
        requests_of(pipeline),
        arrivals=ARRIVALS,
        rest=lambda name, tick: name == "1" and 2 <= tick < 5,
    )
    assert_equal(events, expected)
    assert len(ticks) == ARRIVALS[1] + STEPS[1] + 3
    assert events.order[-1] == "1"


def test_after_a_cancelled_request_the_next_one_is_right_at_another_size(served):
    pipeline, _ = served
    changes = {"height": 48, "width": 32, "num_inference_steps": 2}
    wanted = plain(pipeline, call(pipeline, 1, **changes))
    runner = runner_of(pipeline, merge=True)
    for ticks in range(3):
        events, flags = Events(), set()
        victim = RunnerRequest("victim", call(pipeline, 0), lambda raised=flags: bool(raised))
        runner.execute_stepwise([victim], [], events)
        for _ in range(ticks):
            runner.execute_stepwise([], ["victim"], events)
        flags.add("cancel")
        runner.execute_stepwise([], [], events)
        assert events.outputs["victim"].aborted
        after = RunnerRequest("after", call(pipeline, 1, **changes))
        step_through(runner, [after], events=events)
        assert torch.equal(picture(events.outputs["after"]), wanted)


@pytest.fixture(params=["flux", "wan"])
def cached(request):
    pipeline = load_pipeline(f"random:{request.param}", {}, device="cpu", dtype=None)
    pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.3))
    return pipeline


@pytest.mark.parametrize("rest", [(0, 0), (2, 5)], ids=["all run", "preempted"])
def test_feature_caches_are_the_requests_own_between_ticks(cached, rest):
    steps = [8, 12, 4]
    expected = [
        plain(cached, call(cached, n, num_inference_steps=count)) for n, count in enumerate(steps)
    ]
    cached.transformer.disable_cache()
    without = plain(cached, call(cached, 1, num_inference_steps=12))
    cached.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.3))
    assert not torch.equal(without, expected[1]), "the cache makes no difference here"
    runner = runner_of(cached, merge=True)
    requests = [
        RunnerRequest(str(n), call(cached, n, num_inference_steps=count))
        for n, count in enumerate(steps)
    ]
    events, _ = step_through(
        runner,
        requests,
        arrivals=[0, 1, 3],
        rest=lambda name, tick: name == "1" and rest[0] <= tick < rest[1],
    )
    assert_equal(events, expected)
