"""From the body of ``POST /v1/videos`` to what the engine runs, within the limits of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request
from PIL import Image
from pydantic import ValidationError

from ..engine import DiffusionRequest, SamplingParams
from .abilities import Capabilities, needs_picture, takes
from .config import ServerConfig
from .errors import invalid, invalid_body, unsupported
from .forms import FORMS, content_type_of
from .limits import check_limits, earliest, read_prompt, read_size
from .video_schemas import FILE, VideoParams

FRAME_RATES = ("frame_rate", "fps")
"""What pipelines call the frames per second, if they want to know them."""
NOT_TAKEN = "the model does not take it"


@asynccontextmanager
async def video_params(http: Request) -> AsyncIterator[VideoParams]:
    """Read a body, JSON or a form; its file is open within the block.

    Raises:
      ApiError: it is not valid.
    """
    try:
        if content_type_of(http) in FORMS:
            async with http.form(max_files=1) as form:
                yield VideoParams.model_validate(dict(form))
        else:
            yield VideoParams.model_validate_json(await http.body())
    except ValidationError as error:
        problem = error.errors()[0]
        raise invalid_body(problem, problem["loc"], VideoParams.model_fields) from None


def make_video_request(
    params: VideoParams,
    request_id: str,
    config: ServerConfig,
    capabilities: Capabilities,
    picture: Image.Image | None,
) -> DiffusionRequest:
    """Check the fields against the limits, and make the request.

    Args:
      params: as they came.
      request_id: the request's name.
      config: the limits.
      capabilities: of the pipeline.
      picture: to start from.

    Raises:
      ApiError: a field is beyond a limit; names the field and the limit.
      RequestError: the engine accepts no such value.
    """
    check_limits(params, config)
    width, height = read_size(params.size, config, capabilities)
    fps, extra = _frame_rate(params, config, capabilities)
    frames = _frames(params, fps, config, capabilities)
    _check_pixels(params, (width, height, frames), config, capabilities)
    if frames is not None:
        extra["num_frames"] = frames
    if picture is not None:
        extra["image"] = picture
    return DiffusionRequest(
        read_prompt(params, capabilities),
        negative_prompt=params.negative_prompt,
        request_id=request_id,
        priority=params.priority,
        sampling=SamplingParams(
            width=width,
            height=height,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=params.guidance_scale,
            seed=params.seed,
            output_type="mp4",
            output_options={"fps": fps},
            streaming_output=False,  # parts would be encoded, and nobody sees them
            deadline=earliest(params.timeout_s, config.request_timeout_s),
            lora=params.lora or {},
            extra_args=extra,
        ),
    )


def check_reference(params: VideoParams, capabilities: Capabilities) -> None:
    """Return if there is a picture to start from where the pipeline needs one, and only where it
    takes one.

    Raises:
      ApiError: otherwise.
    """
    if params.input_reference is None:
        if needs_picture(capabilities):
            raise invalid(FILE, "the model needs a picture to start from")
    elif not takes(capabilities, "image"):
        raise unsupported(FILE, NOT_TAKEN)


def _frame_rate(
    params: VideoParams, config: ServerConfig, capabilities: Capabilities
) -> tuple[int, dict[str, Any]]:
    """Return the frames per second, and what the pipeline is told of them."""
    name = next((name for name in FRAME_RATES if name in capabilities["arguments"]), None)
    if name is None:
        return params.fps or config.video_fps, {}
    own = capabilities["defaults"].get(name) or config.video_fps
    fps = params.fps or min(max(1, round(own)), 120)
    return fps, {name: fps}


def _frames(
    params: VideoParams, fps: int, config: ServerConfig, capabilities: Capabilities
) -> int | None:
    """Return how many frames there are to be, None if the model is to choose."""
    if params.seconds is None and params.num_frames is None:
        return None
    if params.seconds is not None and params.num_frames is not None:
        raise invalid("num_frames", "cannot be given beside 'seconds'")
    if not takes(capabilities, "num_frames"):
        raise unsupported(_length_field(params), NOT_TAKEN)
    frames = params.num_frames or max(1, round((params.seconds or 0) * fps))
    if frames > config.max_frames:
        raise invalid(
            _length_field(params), f"a video may have {config.max_frames} frames, not {frames}"
        )
    return frames


def _check_pixels(
    params: VideoParams,
    given: tuple[int | None, int | None, int | None],
    config: ServerConfig,
    capabilities: Capabilities,
) -> None:
    """Check the pixels of the whole video; what was not given is the model's own, and as good as
    one where nobody knows it."""
    if not any(given):
        return  # the server's operator has chosen the model
    own = (capabilities["width"], capabilities["height"], _own_frames(capabilities))
    pixels = 1
    for side, default in zip(given, own, strict=True):
        pixels *= side or default or 1
    if pixels > config.max_video_pixels:
        name = "size" if given[0] else _length_field(params)
        raise invalid(name, f"all frames together may have {config.max_video_pixels} pixels")


def plan_of(request: DiffusionRequest, capabilities: Capabilities) -> tuple[str, int | None]:
    """Return what is known of a video before it is made: its size or ``auto``, and its frames."""
    sampling = request.sampling
    width, height = (getattr(sampling, side) or capabilities[side] for side in ("width", "height"))
    frames = sampling.extra_args.get("num_frames") or _own_frames(capabilities)
    return (f"{width}x{height}" if width and height else "auto"), frames


def _own_frames(capabilities: Capabilities) -> int | None:
    """Return how many frames the model makes unless it is told, None if nobody knows."""
    frames = capabilities["defaults"].get("num_frames")
    return frames if isinstance(frames, int) else None


def _length_field(params: VideoParams) -> str:
    return "num_frames" if params.seconds is None else "seconds"
