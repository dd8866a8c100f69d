"""The runner on real pipelines: results equal plain diffusers, alone, interleaved and merged."""

import diffusers
import pytest
import torch

from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import Events, call_of, picture, plain, run_wave, runner_of

SCHEDULERS = {
    "default": None,
    "euler-ancestral": diffusers.EulerAncestralDiscreteScheduler,
    "dpm++": diffusers.DPMSolverMultistepScheduler,
    "heun": diffusers.HeunDiscreteScheduler,
}
FAMILIES = [
    "sd15",
    "sd15:euler-ancestral",
    "sd15:dpm++",
    "sd15:heun",
    "sdxl",
    "sd3",
    "flux",
    "wan",
]


def family(name: str):
    model, _, scheduler = name.partition(":")
    pipeline = load_pipeline(f"random:{model}", {}, device="cpu", dtype=None)
    kind = SCHEDULERS[scheduler or "default"]
    if kind is not None:
        pipeline.scheduler = kind.from_config(pipeline.scheduler.config)
    return pipeline


@pytest.fixture(scope="module", params=FAMILIES)
def served(request):
    """A pipeline and what it makes of four requests when called plainly."""
    pipeline = family(request.param)
    return pipeline, [plain(pipeline, call_of(pipeline, index)) for index in range(4)]


def test_one_request_is_bit_equal_to_plain_diffusers(served):
    pipeline, expected = served
    (output,) = run_wave(runner_of(pipeline, merge=True), [call_of(pipeline, 0)])
    assert torch.equal(picture(output), expected[0])


def test_interleaved_requests_are_bit_equal_to_plain_diffusers(served):
    pipeline, expected = served
    outputs = run_wave(runner_of(pipeline), [call_of(pipeline, index) for index in range(4)])
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(picture(output), wanted)


def test_merged_requests_agree_within_rounding(served):
    pipeline, expected = served
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):  # the first wave probes, the second one merges everything it can
        outputs = run_wave(runner, [call_of(pipeline, index) for index in range(4)])
        for output, wanted in zip(outputs, expected, strict=True):
            assert torch.allclose(picture(output), wanted, atol=1e-5, rtol=0)
    statistics = runner.statistics()
    assert statistics["refused"] == []
    steps = pipeline.sidestream_defaults["num_inference_steps"]
    assert statistics["merged_calls"] > steps
    assert statistics["merged_lanes"] == 4 * statistics["merged_calls"]


def test_requests_of_different_sizes_and_steps_share_a_wave(served):
    pipeline, _ = served
    changes = [{}, {"height": 48, "width": 32}, {"num_inference_steps": 2}, {}]

    def wave():
        return [call_of(pipeline, index, **change) for index, change in enumerate(changes)]

    expected = [plain(pipeline, call) for call in wave()]
    outputs = run_wave(runner_of(pipeline, merge=True), wave())
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.allclose(picture(output), wanted, atol=1e-5, rtol=0)


def test_progress_counts_denoising_steps(served):
    pipeline, _ = served
    runner, events = runner_of(pipeline), Events()
    runner.execute_model_batch([RunnerRequest("a", call_of(pipeline, 0))], events)
    total = len(events.progress)
    assert total >= pipeline.sidestream_defaults["num_inference_steps"]
    assert events.progress == [("a", step, total) for step in range(1, total + 1)]


def test_several_outputs_for_each_request_are_merged_by_row(served):
    pipeline, _ = served
    name = runner_of(pipeline).capabilities()["num_outputs"]

    def wave():
        return [call_of(pipeline, index, **{name: 1 + index % 2}) for index in range(3)]

    expected = [plain(pipeline, call) for call in wave()]
    outputs = run_wave(runner_of(pipeline, merge=True), wave())
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.allclose(picture(output), wanted, atol=1e-5, rtol=0)


def test_latents_are_returned_by_name(served):
    pipeline, _ = served
    (output,) = run_wave(runner_of(pipeline), [call_of(pipeline, 0, output_type="latent")])
    assert output.error is None
    assert list(output.tensors) == ["latents"]
    wanted = plain(pipeline, call_of(pipeline, 0, output_type="latent"))
    assert torch.equal(output.tensors["latents"], wanted)
