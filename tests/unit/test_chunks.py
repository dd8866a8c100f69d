"""Chunk-capable pipelines: windows of frames that come as they are done, and make up the whole."""

from __future__ import annotations

import pytest
import torch

from sidestream.workers.capabilities import capabilities_of
from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import picture, runner_of, step_through


@pytest.fixture(scope="module")
def wan():
    return load_pipeline("random:wan-chunks", {}, device="cpu", dtype=None)


def call_of(pipeline, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    call = {"prompt": "a cat", "generator": generator, "output_type": "pt"}
    return {**pipeline.sidestream_defaults, **call, **changes}


@pytest.mark.parametrize(
    ("frames", "window", "sizes"),
    [(13, 5, [5, 5, 3]), (10, 5, [5, 5]), (5, 9, [5]), (2, 1, [1, 1])],
)
def test_windows_make_up_the_video(wan, frames, window, sizes):
    chunks = []
    call = call_of(wan, num_frames=frames, chunk_frames=window, on_chunk=chunks.append)
    video = wan(**call).frames
    assert [chunk.shape[1] for chunk in chunks] == sizes
    assert torch.equal(torch.cat(chunks, dim=1), video)
    assert video.shape == (1, frames, 3, 32, 32)
    assert len({chunk.sum().item() for chunk in chunks}) == len(chunks), "they differ"


def test_a_video_is_the_same_whether_its_windows_are_told_or_not(wan):
    told = wan(**call_of(wan, on_chunk=lambda chunk: None)).frames
    assert torch.equal(told, wan(**call_of(wan)).frames)
    assert not torch.equal(told, wan(**call_of(wan, seed=1)).frames)


def test_latents_come_in_windows_too(wan):
    chunks = []
    latents = wan(**call_of(wan, output_type="latent", on_chunk=chunks.append)).frames
    assert torch.equal(torch.cat(chunks, dim=2), latents)


@pytest.mark.parametrize("changes", [{"chunk_frames": 6}, {"num_frames": 0}, {"output_type": "np"}])
def test_what_cannot_be_made_is_refused(wan, changes):
    with pytest.raises(ValueError, match="must be"):
        wan(**call_of(wan, **changes))


def test_who_can_tell_chunks_says_so(wan):
    assert capabilities_of(wan)["chunks"]
    assert not capabilities_of(load_pipeline("random:wan", {}, device="cpu", dtype=None))["chunks"]


@pytest.mark.parametrize("merge", [False, True])
def test_lanes_tell_each_its_own_chunks_before_they_end(wan, merge):
    chunks = {0: [], 1: []}
    requests = [
        RunnerRequest(str(seed), call_of(wan, seed, on_chunk=chunks[seed].append))
        for seed in range(2)
    ]
    events, ticks = step_through(runner_of(wan, merge=merge), requests, arrivals=[0, 2])
    for seed in range(2):
        video = picture(events.outputs[str(seed)])
        assert torch.equal(torch.cat(chunks[seed], dim=1), video)
        expected = wan(**call_of(wan, seed)).frames
        assert torch.allclose(video, expected, atol=1e-5)
    progress = [(step, total) for tick in ticks for name, step, total in tick if name == "0"]
    assert [step for step, _ in progress] == sorted({step for step, _ in progress})
    assert {total for _, total in progress} == {12}, "three windows of four steps"


@pytest.mark.parametrize(("steps", "count"), [(4, 4), (6, 3), (2, 4), (5, 2), (1, 1)])
@pytest.mark.parametrize("stepwise", [False, True])
def test_the_synthetic_pipeline_tells_parts_as_their_steps_are_done(steps, count, stepwise):
    options = {"shape": [1, 4, 3, 2, 2]}
    pipeline = load_pipeline("synthetic", options, device="cpu", dtype=None)
    seen = []
    log = []
    pipeline.denoiser.register_forward_hook(lambda *_: log.append("step"))

    def on_chunk(chunk):
        seen.append(chunk)
        log.append("chunk")

    call = {"value": 7, "num_inference_steps": steps, "num_chunks": count, "on_chunk": on_chunk}
    if stepwise:
        events, _ = step_through(runner_of(pipeline), [RunnerRequest("a", call)])
        video = picture(events.outputs["a"])
    else:
        video = pipeline(**call).images
    assert len(seen) == count
    assert torch.equal(torch.cat(seen, dim=1), video)
    done = [log[: i + 1].count("step") for i, what in enumerate(log) if what == "chunk"]
    assert done == [-(-steps * (index + 1) // count) for index in range(count)]


def test_the_synthetic_pipeline_has_no_more_chunks_than_frames():
    pipeline = load_pipeline("synthetic", {}, device="cpu", dtype=None)
    with pytest.raises(ValueError, match="num_chunks must be 1 to 3, not 4"):
        pipeline(num_chunks=4)
