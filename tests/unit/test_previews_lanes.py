"""Previews of lanes in step mode: taken where they are wanted, of the request that wants them."""

from __future__ import annotations

import functools

import pytest
import torch

from sidestream.workers import clean_sample as estimates, previews
from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.previews import PreviewTap, is_preview_step, previewer_of

from .lane_helpers import Events, picture, runner_of, step_through

PROMPTS = (
    "a large red circle on a black background",
    "a large blue heart on a white background",
    "a large white square on a green background",
    "a large black circle on an orange background",
)


@pytest.fixture(scope="module")
def shapes():
    return load_pipeline("shapes", {}, device="cpu", dtype=None)


@pytest.fixture
def captures(monkeypatch):
    """Steps of which an estimate was taken."""
    taken = []

    def counting(step):
        taken.append(step)
        return estimates.clean_sample(step)

    monkeypatch.setattr(previews, "clean_sample", counting)
    return taken


class Gallery:
    """Draws previews at once, and keeps them."""

    def __init__(self, pipeline):
        self._pipeline = pipeline
        self._previewer = previewer_of(pipeline)
        self.shown = {}

    def request(self, index, *, cancelled=lambda: False, steps=6, **how):
        """Make a request that is watched, if it is said how often."""
        name = f"request-{index}"
        call = {
            **self._pipeline.sidestream_defaults,
            "prompt": PROMPTS[index],
            "num_inference_steps": steps,
            "generator": torch.Generator().manual_seed(index),
            "output_type": "pt",
        }
        tap = PreviewTap(
            functools.partial(is_preview_step, **how),
            functools.partial(self._previewer.draw, call=call),
            functools.partial(self._show, name),
        )
        return RunnerRequest(name, call, cancelled=cancelled, tap=tap if how else None)

    def _show(self, name, step, draw):
        self.shown.setdefault(name, []).append((step, draw()))

    def steps(self, index):
        return [step for step, _ in self.shown.get(f"request-{index}", [])]


def distance(preview, final):
    """Mean difference of a preview and a picture (1, 3, H, W) in [0, 1], of 255."""
    return (preview.float() - final[0].movedim(0, -1) * 255).abs().mean()


def test_nothing_is_captured_for_requests_without_previews(shapes, captures):
    gallery = Gallery(shapes)
    step_through(runner_of(shapes), [gallery.request(0), gallery.request(1, every=2)])
    assert len(captures) == 2
    assert gallery.steps(0) == []
    assert gallery.steps(1) == [2, 4]


def test_captures_are_as_many_as_previews(shapes, captures):
    gallery = Gallery(shapes)
    requests = [gallery.request(0, steps=7, every=3), gallery.request(1, steps=4, every=1)]
    step_through(runner_of(shapes), requests)
    assert (gallery.steps(0), gallery.steps(1)) == ([3, 6], [1, 2, 3])
    assert len(captures) == 5


def test_a_watched_request_comes_out_the_same(shapes):
    gallery = Gallery(shapes)
    outputs = []
    for how in ({}, {"every": 1}):
        events, _ = step_through(runner_of(shapes), [gallery.request(0, **how)])
        outputs.append(picture(events.outputs["request-0"]))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("merge", [False, True])
def test_previews_of_requests_side_by_side_are_never_swapped(shapes, merge):
    gallery = Gallery(shapes)
    requests = [gallery.request(index, steps=6 + index, every=1) for index in range(4)]
    runner = runner_of(shapes, merge=merge)
    events, _ = step_through(runner, requests, arrivals=[0, 1, 1, 3])
    finals = [picture(events.outputs[request.request_id]) for request in requests]
    for index, request in enumerate(requests):
        shown = gallery.shown[request.request_id]
        assert [step for step, _ in shown] == list(range(1, 6 + index))
        last = shown[-1][1]
        distances = torch.stack([distance(last, final) for final in finals])
        assert distances[index] < 10
        assert all(d > 40 for i, d in enumerate(distances) if i != index)
        assert distance(last, finals[index]) < distance(shown[0][1], finals[index])


def test_a_cancelled_request_shows_nothing_more(shapes):
    gallery = Gallery(shapes)
    cancelled = set()
    requests = [
        gallery.request(0, every=1, cancelled=lambda: 0 in cancelled),
        gallery.request(1, every=1),
    ]
    runner = runner_of(shapes)
    events = Events()
    names = [request.request_id for request in requests]
    runner.execute_stepwise(requests, names, events)
    runner.execute_stepwise([], names, events)
    cancelled.add(0)
    step_through(runner, [], events=events)
    while "request-1" not in events.outputs:
        runner.execute_stepwise([], names, events)
    assert events.outputs["request-0"].aborted
    assert gallery.steps(0) == [1, 2]
    assert gallery.steps(1) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3", "flux", "wan"])
def test_every_family_shows_what_it_is_at(family):
    pipeline = load_pipeline(f"random:{family}", {}, device="cpu", dtype=None)
    gallery = Gallery(pipeline)
    events, _ = step_through(runner_of(pipeline), [gallery.request(0, steps=5, every=1)])
    final = picture(events.outputs["request-0"])
    shown = gallery.shown["request-0"]
    assert [step for step, _ in shown] == [1, 2, 3, 4]
    for _, preview in shown:
        assert preview.shape == (*final.shape[-2:], 3)
    if family != "wan":
        distances = [distance(preview, final) for _, preview in shown]
        assert distances[-1] < 4
        assert distances[-1] < distances[0]
