"""What cannot be merged in general, or not in the obvious way: in step mode each kind has its rule.

Where a kind cannot be merged its requests run unmerged, and right.
"""

from types import SimpleNamespace

import pytest
import torch
from diffusers import StableDiffusionPAGPipeline

from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import (
    Component,
    call_of,
    picture,
    plain,
    rows,
    run_wave,
    runner_of,
    step_through,
)

STEPS = 3


class Steps:
    """Calls its module once in each step, with the sample and what the request brings along."""

    def __init__(self, function):
        self.unet = Component(function)

    def __call__(self, sample, num_inference_steps=STEPS, **arguments):
        for _ in range(num_inference_steps):
            sample = self.unet(sample, **arguments)
        return sample


def check(pipeline, calls, tolerance=1e-6):
    """Run calls in ticks, one coming later, and compare with plain calls; return statistics."""
    with torch.no_grad():
        expected = [pipeline(**call()) for call in calls]
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):  # the first time probes
        requests = [RunnerRequest(str(n), call()) for n, call in enumerate(calls)]
        events, _ = step_through(runner, requests, arrivals=[*[0] * (len(calls) - 1), 1])
        for n, wanted in enumerate(expected):
            result = picture(events.outputs[str(n)])
            assert torch.allclose(result, wanted, atol=tolerance, rtol=0)
    return runner.statistics()


def calls_with(*arguments, count=2):
    """Return three calls, whose arguments are made anew for each use."""
    return [
        lambda n=n, make=make: {"sample": rows(n, count), **make()}
        for n, make in enumerate(arguments)
    ]


def refused(statistics, reason):
    (plan,) = statistics["refused"]
    return statistics["merged_calls"] == 0 and reason in plan["reason"]


# ---------------------------------------------------------------------- what is not merged


def test_a_cache_object_among_the_arguments_is_one_requests():
    def attend(sample, cache):
        cache.past.append(sample)
        return torch.stack(cache.past).mean(0) * 0.9

    statistics = check(
        Steps(attend), calls_with(*[lambda: {"cache": SimpleNamespace(past=[])}] * 3)
    )
    assert (statistics["merged_calls"], statistics["probes"]) == (0, 0)


def test_a_packed_sequence_has_no_batch_axis():
    """All tokens of a request see each other; the first dimension counts tokens."""

    def attend(sample, positions):
        rotated = sample * positions[:, None].cos()
        return torch.softmax(rotated @ rotated.T, -1) @ sample

    positions = [lambda: {"positions": torch.arange(6.0)}] * 3
    assert refused(check(Steps(attend), calls_with(*positions, count=6)), "differ")


def test_a_mask_object_describes_one_request():
    mask = [lambda n=n: {"mask": SimpleNamespace(keep=n)} for n in range(3)]
    statistics = check(Steps(lambda sample, mask: sample * 0.5 + mask.keep), calls_with(*mask))
    assert (statistics["merged_calls"], statistics["probes"]) == (0, 0)


def test_prompts_of_different_lengths_meet_only_their_like():
    widths = []

    def attend(sample, prompt):
        widths.append(len(sample))
        return sample * 0.5 + prompt.mean(1)

    def prompt(seed, length):
        numbers = torch.Generator().manual_seed(seed)
        return lambda: {"prompt": torch.randn(2, length, 8, generator=numbers.manual_seed(seed))}

    statistics = check(Steps(attend), calls_with(prompt(1, 5), prompt(2, 7), prompt(3, 5)))
    assert statistics["merged_calls"] == statistics["merged_lanes"] / 2 > 0
    assert set(widths) == {2, 4}


# ---------------------------------------------------------------------- what is merged with care


def test_the_batch_axis_may_be_the_second():
    def attend(sample, layers):
        return sample * 0.5 + layers[0] * 2 - layers[1]

    layers = [lambda n=n: {"layers": torch.stack([rows(n), rows(n + 9)])} for n in range(3)]
    assert check(Steps(attend), calls_with(*layers))["merged_calls"] > 0


def test_chunks_of_a_batch_stay_together():
    def perturbed(sample):
        negative, positive, changed = sample.chunk(3)
        return torch.cat([negative, positive + negative.roll(1, -1), changed - positive]) * 0.5

    statistics = check(Steps(perturbed), calls_with(*[dict] * 3, count=6))
    assert statistics["merged_calls"] > 0


@pytest.mark.parametrize("equal", [True, False])
def test_what_is_repeated_inside_is_shared_while_it_is_equal(equal):
    def padded(sample, padding):
        return sample * 0.5 + padding.repeat(len(sample), 1)

    padding = [lambda n=n: {"padding": rows(0 if equal else n, 1)} for n in range(3)]
    statistics = check(Steps(padded), calls_with(*padding, count=1))
    assert (statistics["merged_calls"] > 0) is equal


@pytest.mark.parametrize(
    "function",
    [
        lambda sample, parts: sample * 0.5 + torch.stack([part.mean(0) for part in parts]),
        lambda sample, parts: sample * 0.5 + parts[0] - parts[1],
    ],
    ids=["one entry for each sample", "one entry for each layer"],
)
def test_lists_are_read_both_ways(function):
    parts = [lambda n=n: {"parts": [rows(n + 3), rows(n + 6)]} for n in range(3)]
    assert check(Steps(function), calls_with(*parts))["merged_calls"] > 0


@pytest.mark.parametrize("equal", [True, False])
def test_a_folded_batch_is_joined_also_when_it_is_equal(equal):
    def folded(sample, frames):
        return sample * 0.5 + frames.reshape(len(sample), 3, 8).mean(1)

    frames = [lambda n=n: {"frames": rows(0 if equal else n, 6)} for n in range(3)]
    assert check(Steps(folded), calls_with(*frames))["merged_calls"] > 0


# ---------------------------------------------------------------------- what requests share


def check_pictures(pipeline, count=3, **changes):
    calls = [call_of(pipeline, n, num_inference_steps=2 + n, **changes) for n in range(count)]
    expected = [
        plain(pipeline, call_of(pipeline, n, num_inference_steps=2 + n, **changes))
        for n in range(count)
    ]
    requests = [RunnerRequest(str(n), call) for n, call in enumerate(calls)]
    events, _ = step_through(runner_of(pipeline), requests, arrivals=[0, 1, 1])
    for n, wanted in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)


def test_processors_that_a_request_sets_and_resets_are_its_own():
    """The first request to end resets the processors, while the others are in their steps."""
    parts = load_pipeline("random:sd15", {}, device="cpu", dtype=None)
    pipeline = StableDiffusionPAGPipeline(
        **parts.components, requires_safety_checker=False, pag_applied_layers=["mid", "up"]
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.sidestream_defaults = parts.sidestream_defaults
    before = pipeline.unet.attn_processors
    check_pictures(pipeline, pag_scale=3.0)
    assert pipeline.unet.attn_processors == before


@pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning")
def test_casts_of_a_shared_module_do_not_reach_the_others():
    pipeline = load_pipeline("random:sdxl", {}, device="cpu", dtype=None)
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
        part.to(torch.float16)
    pipeline.vae.register_to_config(force_upcast=True)
    check_pictures(pipeline)
    assert pipeline.vae.dtype == torch.float16


def test_a_memo_on_the_pipeline_is_made_by_each_request():
    class Remembering(Steps):
        empty = None

        def __call__(self, sample, num_inference_steps=STEPS):
            if self.empty is None:
                self.empty = self.unet(torch.zeros_like(sample))
            return super().__call__(sample + self.empty, num_inference_steps)

    pipeline = Remembering(lambda sample: sample * 0.5 + 1)
    runner = runner_of(pipeline)
    wanted = Remembering(lambda sample: sample * 0.5 + 1)(rows(0))
    for _ in range(2):
        events, _ = step_through(runner, [RunnerRequest("a", {"sample": rows(0)})])
        assert torch.equal(picture(events.outputs["a"]), wanted)
    assert pipeline.empty is None
    assert pipeline.unet.calls == 2 * (STEPS + 1)


def test_two_public_calls_do_not_see_each_other():
    """A documented limit: state that one request leaves on the pipeline is gone with it."""

    class Inverting(Steps):
        inverted = None

        def __call__(self, sample, invert=False):
            if invert:
                self.inverted = self.unet(sample)
                return self.inverted
            if self.inverted is None:
                raise RuntimeError("call invert first")
            return self.unet(self.inverted)

    runner = runner_of(Inverting(lambda sample: -sample))
    first, second = run_wave(runner, [{"sample": rows(0), "invert": True}, {"sample": rows(0)}])
    assert torch.equal(picture(first), -rows(0))
    assert "call invert first" in second.error
