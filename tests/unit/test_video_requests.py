"""From the fields of a video request to the call of a pipeline, whatever pipeline it is."""

import pytest
from PIL import Image

from sidestream.server import ServerConfig
from sidestream.server.errors import ApiError
from sidestream.server.video_requests import check_reference, make_video_request, plan_of
from sidestream.server.video_schemas import VideoParams

CAPABILITIES = {
    "arguments": ["prompt", "height", "width", "num_frames", "num_inference_steps"],
    "defaults": {"num_frames": 81},
    "accepts_any": False,
    "height": 480,
    "width": 832,
    "from_image": False,
}


def make(fields=(), *, capabilities=(), limits=(), picture=None):
    params = VideoParams(prompt="x", **dict(fields))
    config = ServerConfig(**dict(limits))
    return make_video_request(params, "a", config, {**CAPABILITIES, **dict(capabilities)}, picture)


def with_rate(name, **defaults):
    """Describe a pipeline that wants to know the frames per second."""
    return {"arguments": [*CAPABILITIES["arguments"], name], "defaults": defaults}


def test_what_is_not_given_is_left_to_the_model():
    request = make()
    assert request.sampling.extra_args == {}
    assert (request.sampling.width, request.sampling.height) == (None, None)
    assert request.sampling.output_type == "mp4"
    assert request.sampling.output_options == {"fps": 16}
    assert plan_of(request, CAPABILITIES) == ("832x480", 81)


def test_all_fields_arrive():
    picture = Image.new("RGB", (8, 8))
    fields = {
        "size": "64x32",
        "seconds": 2,
        "fps": 8,
        "seed": 3,
        "num_inference_steps": 5,
        "guidance_scale": 2,
        "negative_prompt": "blur",
        "timeout_s": 9,
        "priority": -1,
    }
    request = make(fields, picture=picture, limits={"request_timeout_s": 10})
    sampling = request.sampling
    assert (request.request_id, request.prompt, request.negative_prompt) == ("a", "x", "blur")
    assert (sampling.width, sampling.height, sampling.seed) == (64, 32, 3)
    assert (sampling.num_inference_steps, sampling.guidance_scale) == (5, 2.0)
    assert (sampling.deadline, request.priority) == (9, -1)
    assert sampling.extra_args == {"num_frames": 16, "image": picture}
    assert plan_of(request, CAPABILITIES) == ("64x32", 16)


def test_a_plan_tells_what_nobody_knows():
    unknown = {"height": None, "width": None, "defaults": {}}
    assert plan_of(make(capabilities=unknown), {**CAPABILITIES, **unknown}) == ("auto", None)


@pytest.mark.parametrize("name", ["frame_rate", "fps"])
@pytest.mark.parametrize(
    ("fields", "default", "fps"),
    [({}, 25, 25), ({}, 23.976, 24), ({}, None, 16), ({}, 0.2, 1), ({"fps": 8}, 25, 8)],
)
def test_a_pipeline_that_wants_to_know_the_frame_rate_does(name, fields, default, fps):
    sampling = make(fields, capabilities=with_rate(name, **{name: default})).sampling
    assert sampling.output_options == {"fps": fps}
    assert sampling.extra_args == {name: fps}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "832x480"}, "size"),
        ({"size": "832x480", "num_frames": 2}, "size"),
        ({"num_frames": 3}, "num_frames"),
        ({"seconds": 1}, "seconds"),
    ],
)
def test_pixels_of_all_frames_are_counted_with_what_the_model_adds(fields, param):
    with pytest.raises(ApiError) as refusal:
        make(fields, limits={"max_video_pixels": 832 * 480})
    assert (refusal.value.status_code, refusal.value.param) == (400, param)
    make(limits={"max_video_pixels": 1})  # whoever runs the server has chosen the model
    make({"num_frames": 1}, limits={"max_video_pixels": 832 * 480})


def test_a_model_without_frames_to_choose_takes_none():
    for fields, param in (({"num_frames": 3}, "num_frames"), ({"seconds": 1}, "seconds")):
        with pytest.raises(ApiError) as refusal:
            make(fields, capabilities={"arguments": ["prompt"]})
        assert (refusal.value.status_code, refusal.value.param) == (422, param)
    anything = {"arguments": ["prompt"], "accepts_any": True}
    assert make({"num_frames": 3}, capabilities=anything).sampling.extra_args == {"num_frames": 3}


def test_a_model_that_starts_from_a_picture_needs_one():
    own = {"arguments": ["prompt", "image"], "media": "video", "from_image": True}
    starting = {**CAPABILITIES, **own}
    with pytest.raises(ApiError, match="needs a picture") as refusal:
        check_reference(VideoParams(prompt="x"), starting)
    assert (refusal.value.status_code, refusal.value.param) == (400, "input_reference")
    check_reference(VideoParams(prompt="x"), {**starting, "image_optional": True})
