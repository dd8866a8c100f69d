"""Requests: how they are made from loose parameters, and what they refuse."""

import dataclasses
import math
import re

import pytest

from sidestream.engine import DiffusionRequest, RequestError, SamplingParams

REFUSED = {
    "width": [0, 16_385, 512.0, "512"],
    "height": [0, 16_385, True],
    "num_inference_steps": [0, 10_001],
    "guidance_scale": [-0.5, 1001, math.nan],
    "seed": [-1, 2**63, 1.0],
    "num_outputs": [0, 65, None],
    "output_type": ["gif", None, ["pil"]],
    "output_options": [None, {1: 2}],
    "preview_steps": [-1, 1.5, None],
    "preview_every": [-1, True],
    "streaming_output": ["yes", 1],
    "lora": [None, {"a": "1"}, {"a": True}, {"a": math.nan}, {"a": 101}, {1: 1.0}, [1], [["a"]], 5],
    "deadline": [-1, math.inf],
    "extra_args": ["eta=1", {1: 2}],
}


def test_every_sampling_parameter_is_tested_here():
    assert set(REFUSED) == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n in REFUSED for v in REFUSED[n]])
def test_a_wrong_sampling_parameter_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=rf"^{name} must be \S.*, not ."):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", "x" * 20_001),
        ("prompt", "\ud800"),
        ("prompt", ["a", "b"]),
        ("negative_prompt", b"ugly"),
        ("request_id", ""),
        ("request_id", "\udfff"),
        ("request_id", "x" * 257),
        ("priority", 0.5),
        ("priority", 1_000_001),
        ("sampling", {"steps": 4}),
    ],
)
def test_a_wrong_request_parameter_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=rf"^{name} must be \S.*, not .") as refusal:
        DiffusionRequest(**{name: value})
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("given", "scales"),
    [
        ("style", {"style": 1.0}),
        (["style", "detail"], {"style": 1.0, "detail": 1.0}),
        ({"style": 1, "detail": -0.5}, {"style": 1.0, "detail": -0.5}),
        ({}, {}),
    ],
)
def test_adapters_are_kept_with_their_scales_in_order(given, scales):
    lora = DiffusionRequest.make("a circle", lora=given).sampling.lora
    assert list(lora.items()) == list(scales.items())


def test_make_sorts_parameters_into_request_and_sampling():
    request = DiffusionRequest.make(
        "a circle", seed=7, width=64, priority=2, negative_prompt="blur"
    )
    assert request == DiffusionRequest(
        "a circle",
        negative_prompt="blur",
        priority=2,
        request_id=request.request_id,
        sampling=SamplingParams(seed=7, width=64),
    )


def test_a_complete_request_passes_through():
    request = DiffusionRequest("a circle")
    assert DiffusionRequest.make(request) is request
    with pytest.raises(RequestError, match="seed, width cannot be given beside it"):
        DiffusionRequest.make(request, seed=1, width=2)


def test_sampling_is_given_whole_or_loose():
    sampling = SamplingParams(seed=3)
    assert DiffusionRequest.make("a", sampling=sampling).sampling is sampling
    with pytest.raises(RequestError, match="seed cannot be given beside sampling"):
        DiffusionRequest.make("a", sampling=sampling, seed=4)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sed", "seed"),
        ("priorty", "priority"),
        ("steps", "num_inference_steps"),
        ("num_images_per_prompt", "did you mean 'num_outputs'"),
        ("generator", "did you mean 'seed'"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest(name, hint):
    with pytest.raises(RequestError, match=f"unknown parameter '{name}'.*{hint}"):
        DiffusionRequest.make("a", **{name: 1})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_num_seqs", "it belongs to the engine: open_engine(..., max_num_seqs=...)"),
        ("executor", "it belongs to the engine: open_engine(..., executor=...)"),
        (
            "modle",
            "did you mean 'model'? That belongs to the engine: open_engine(..., model=...)",
        ),
    ],
)
def test_an_unknown_parameter_may_belong_to_the_engine(name, hint):
    with pytest.raises(RequestError, match=f"^unknown parameter '{name}': {re.escape(hint)}$"):
        DiffusionRequest.make("a", **{name: 1})


def test_unknown_fields_say_whose_they_are():
    with pytest.raises(
        RequestError, match="unknown sampling parameter 'widht': did you mean 'width'"
    ):
        SamplingParams(widht=1)
    with pytest.raises(
        RequestError, match="unknown request parameter 'promt': did you mean 'prompt'"
    ):
        DiffusionRequest(promt="a")


def test_requests_are_named_apart():
    assert DiffusionRequest("a").request_id != DiffusionRequest("a").request_id


def test_a_prompt_may_be_empty_or_absent():
    assert DiffusionRequest("").prompt == ""
    assert DiffusionRequest().prompt is None
