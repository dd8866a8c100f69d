"""Admission: what a pipeline does not take is refused before any work, by name."""

import random

import numpy as np
import pytest

from sidestream.engine import DiffusionRequest, EngineConfig, RequestError
from sidestream.engine.admission import RESERVED, check_lora, prepare
from sidestream.engine.request import SEED_LIMIT
from sidestream.ipc_ext.messages import CALL_LIMIT

from .fakes import CAPABILITIES

MEBIBYTE = 1 << 20


def admit(*, prompt="a", capabilities=(), settings=(), **params):
    request = DiffusionRequest.make(prompt, **params)
    config = EngineConfig(**{"max_input_bytes": MEBIBYTE, **dict(settings)})
    return prepare(request, {**CAPABILITIES, **dict(capabilities)}, config)


def test_drawn_seeds_do_not_depend_on_the_global_generator():
    """In one process with the worker, pipelines seed it again and again."""
    drawn = []
    for _ in range(2):
        random.seed(7)
        drawn.append(admit().seeds)
    assert drawn[0] != drawn[1]


def test_a_call_has_what_was_given_and_nothing_else():
    assert admit().call == {"prompt": "a"}
    prepared = admit(
        width=64,
        height=32,
        num_inference_steps=4,
        guidance_scale=2,
        negative_prompt="blur",
        extra_args={"strength": 0.5},
    )
    assert prepared.call == {
        "prompt": "a",
        "negative_prompt": "blur",
        "width": 64,
        "height": 32,
        "num_inference_steps": 4,
        "guidance_scale": 2.0,
        "strength": 0.5,
    }


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"width": 65}, "width must be a multiple of 16, not 65: the nearest 64 and 80 are"),
        ({"width": 64, "height": 79}, "height must be a multiple of 16, not 79: the nearest 64 an"),
        ({"height": 5}, "height must be a multiple of 16, not 5: the nearest 16 is what"),
    ],
)
def test_a_size_that_the_pipeline_cannot_make_is_refused_with_the_nearest(size, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        admit(**size, capabilities={"size_multiple": 16})
    assert admit(width=64, height=80, capabilities={"size_multiple": 16}).call["height"] == 80
    assert admit(**size, capabilities={"size_multiple": 1}).call.items() >= size.items()


def test_a_size_of_which_nothing_would_be_left_is_refused():
    with pytest.raises(RequestError, match="height must be at least 16, not 15, for"):
        admit(width=16, height=15, capabilities={"smallest_side": 16})
    assert admit(width=16, height=17, capabilities={"smallest_side": 16}).call["height"] == 17


def test_an_argument_that_the_pipeline_does_not_take():
    with pytest.raises(RequestError, match="takes no 'strenth': did you mean 'strength'"):
        admit(extra_args={"strenth": 0.5})
    with pytest.raises(RequestError, match="FakePipeline takes no 'width'"):
        admit(width=64, capabilities={"arguments": ["prompt", "height"]})
    with pytest.raises(RequestError, match="takes no 'prompt'"):
        admit(capabilities={"arguments": ["image"], "required": []})


@pytest.mark.parametrize(
    ("name", "kind"),
    [("strength", "image-to-image"), ("mask_image", "inpainting"), ("num_frames", "video")],
)
def test_an_argument_of_another_kind_of_pipeline_is_told_as_that(name, kind):
    with pytest.raises(RequestError, match=f"takes no '{name}': that is an argument of {kind} "):
        admit(extra_args={name: 1}, capabilities={"arguments": ["prompt", "latents"]})


def test_only_a_video_can_be_an_mp4():
    with pytest.raises(RequestError, match="'mp4', which is for videos: FakePipeline makes"):
        admit(output_type="mp4")
    with pytest.raises(RequestError, match="output_options: fps must be 1 to 120, not 0"):
        admit(output_type="mp4", output_options={"fps": 0}, capabilities={"media": "video"})
    assert admit(output_type="mp4", capabilities={"media": "video"}).call == {"prompt": "a"}


def test_hints_hold_no_reserved_name():
    with pytest.raises(RequestError) as refusal:
        admit(extra_args={"generatr": 1})
    assert "'generator'" not in str(refusal.value)


def test_a_pipeline_that_takes_any_keyword():
    anything = {"accepts_any": True}
    assert admit(extra_args={"eta": 1.0}, capabilities=anything).call["eta"] == 1.0
    for name in ("image.0", "\ud800", ""):
        with pytest.raises(RequestError, match="extra_args must hold names of arguments"):
            admit(extra_args={name: np.zeros(1)}, capabilities=anything)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_names(name):
    with pytest.raises(RequestError, match=f"extra_args must not hold '{name}'"):
        admit(extra_args={name: None})


@pytest.mark.parametrize(
    "name", ["prompt", "width", "num_inference_steps", "num_images_per_prompt"]
)
def test_what_has_a_parameter_of_its_own_is_not_given_twice(name):
    with pytest.raises(RequestError, match=f"extra_args must not hold '{name}'"):
        admit(extra_args={name: 1})


def test_required_arguments():
    with pytest.raises(RequestError, match="FakePipeline needs prompt"):
        admit(prompt=None)
    with pytest.raises(RequestError, match="FakePipeline needs image, mask"):
        admit(capabilities={"required": ["prompt", "mask", "image"]})
    needs_image = {"required": ["image"]}
    assert admit(extra_args={"image": np.zeros((2, 2))}, capabilities=needs_image).inputs


def test_a_prompt_is_asked_for_where_the_pipeline_refuses_to_do_without():
    needing = {"required": [], "arguments": ["prompt", "prompt_embeds"], "needs_prompt": True}
    with pytest.raises(RequestError, match="FakePipeline needs prompt"):
        admit(prompt=None, capabilities=needing)
    assert admit(prompt="", capabilities=needing).call == {"prompt": ""}
    embeds = {"prompt_embeds": np.zeros((1, 2, 3))}
    assert admit(prompt=None, extra_args=embeds, capabilities=needing).inputs
    assert admit(prompt=None, capabilities=needing | {"needs_prompt": False}).call == {}


# -- outputs and seeds


def test_several_outputs_are_asked_for_in_the_pipelines_own_words():
    assert "num_images_per_prompt" not in admit().call
    assert admit(num_outputs=3).call["num_images_per_prompt"] == 3
    with pytest.raises(RequestError, match="num_outputs must be 1: FakePipeline makes one output"):
        admit(num_outputs=2, capabilities={"num_outputs": None})


def test_every_output_has_a_seed():
    assert admit(seed=5).seeds == (5,)
    assert admit(seed=5, num_outputs=3).seeds == (5, 6, 7)


def test_seeds_are_drawn_where_none_is_given():
    drawn = {admit().seeds for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 <= seed < 2**32 for (seed,) in drawn)


def test_the_last_seed():
    assert admit(seed=SEED_LIMIT).seeds == (SEED_LIMIT,)
    with pytest.raises(RequestError, match=r"seed \+ num_outputs must not pass"):
        admit(seed=SEED_LIMIT, num_outputs=2)


def test_output_options_are_checked():
    admit(output_type="jpeg", output_options={"quality": 90})
    with pytest.raises(RequestError, match=r"^output_options: quality must be 1 to 100, not 900"):
        admit(output_type="jpeg", output_options={"quality": 900})
    with pytest.raises(RequestError, match=r"^output_options: unknown option 'qualty'; did you"):
        admit(output_type="jpeg", output_options={"qualty": 90})


# -- sizes


def test_arrays_may_have_so_many_bytes_together():
    arrays = [np.zeros(600, np.uint8), np.zeros(400, np.uint8)]
    assert len(admit(extra_args={"image": arrays}, settings={"max_input_bytes": 1000}).inputs) == 2
    with pytest.raises(RequestError, match="arrays of 1000 bytes; at most 999 are accepted"):
        admit(extra_args={"image": arrays}, settings={"max_input_bytes": 999})


def test_plain_arguments_may_have_so_many_bytes_together():
    with pytest.raises(
        RequestError, match=f"more than {CALL_LIMIT} bytes; give large data as arrays"
    ):
        admit(extra_args={"strength": [0.5] * CALL_LIMIT})


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800", {"\ud800": 1}, [["\udfff"]]])
def test_plain_arguments_that_no_message_can_carry(value):
    with pytest.raises(RequestError, match="extra_args cannot be sent"):
        admit(extra_args={"strength": value})


# -- keys: what may share a wave


@pytest.mark.parametrize(
    "params",
    [
        {"prompt": "b"},
        {"seed": 9},
        {"guidance_scale": 1.0},
        {"negative_prompt": "other"},
        {"priority": 5},
        {"deadline": 1.0},
        {"output_type": "png"},
        {"request_id": "x"},
    ],
)
def test_contents_do_not_part_requests(params):
    common = {"negative_prompt": "blur", "guidance_scale": 7.5}
    assert admit(**{**common, **params}).key == admit(**common).key


@pytest.mark.parametrize(
    "params",
    [
        {"width": 64},
        {"height": 64},
        {"num_inference_steps": 3},
        {"num_outputs": 2},
        {"negative_prompt": "blur"},
        {"guidance_scale": 1.0},
        {"output_type": "latent"},
        {"extra_args": {"strength": 0.5}},
        {"extra_args": {"image": np.zeros((2, 2), np.uint8)}},
    ],
)
def test_shapes_and_loop_lengths_part_requests(params):
    assert admit(**params).key != admit().key


def test_arrays_part_requests_by_shape_and_dtype_alone():
    def key(array):
        return admit(extra_args={"image": array}).key

    base = np.zeros((2, 2), np.uint8)
    assert key(base) == key(base + 1)
    assert key(base) != key(np.zeros((2, 3), np.uint8))
    assert key(base) != key(base.astype(np.int8))
    assert key(base) != key([base])


def test_keys_can_be_compared_whatever_the_arguments_hold():
    assert len({admit(extra_args={"strength": value}).key for value in ([1], {"a": 1}, 0.5)}) == 3


def test_what_diffusers_calls_otherwise_is_told_by_its_name_here():
    with pytest.raises(RequestError, match=r"'generator'.*; the parameter is seed$"):
        admit(extra_args={"generator": 1})


def test_an_engine_without_adapters_says_how_to_open_one_with_them():
    with pytest.raises(RequestError, match=r"without any: open_engine\(lora=\{'ink': PATH\}\)$"):
        check_lora({"ink": 1.0}, CAPABILITIES)
