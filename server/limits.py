"""From the fields of a request to what the engine runs, within the limits of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine import DiffusionRequest, SamplingParams
from .config import ServerConfig
from .errors import ApiError
from .schemas import ImageParams


def make_request(
    params: ImageParams, request_id: str, config: ServerConfig, extra_args: Mapping[str, Any]
) -> DiffusionRequest:
    """Check the fields against the limits, and make the request.

    Args:
      params: as they came.
      request_id: the request's name.
      config: the limits.
      extra_args: further arguments of the pipeline, such as pictures.

    Raises:
      ApiError: a field is beyond a limit; names the field and the limit.
      RequestError: the engine accepts no such value.
    """
    _at_most("n", params.n, config.max_n)
    _at_most("num_inference_steps", params.num_inference_steps, config.max_steps)
    _at_most("priority", params.priority, config.max_priority)
    for name in ("prompt", "negative_prompt"):
        if len(getattr(params, name) or "") > config.max_prompt_chars:
            raise _invalid(name, f"must have at most {config.max_prompt_chars} characters")
    if params.background == "transparent":
        raise _invalid("background", "must be 'auto' or 'opaque': pictures are not transparent")
    if params.partial_images and not params.stream:
        raise _invalid("partial_images", "needs 'stream'")
    if params.stream_progress and not params.stream:
        raise _invalid("stream_progress", "needs 'stream'")
    width, height = _size(params.size, params.n, config)
    return DiffusionRequest(
        params.prompt,
        negative_prompt=params.negative_prompt,
        request_id=request_id,
        priority=params.priority,
        sampling=SamplingParams(
            width=width,
            height=height,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=params.guidance_scale,
            seed=params.seed,
            num_outputs=params.n,
            output_type=params.output_format,
            output_options=_output_options(params, config),
            preview_steps=params.partial_images or 0,
            deadline=_earliest(params.timeout_s, config.request_timeout_s),
            extra_args=dict(extra_args),
        ),
    )


def _size(size: str | None, n: int, config: ServerConfig) -> tuple[int | None, int | None]:
    """Return (width, height), None for what the model is to choose."""
    if size in (None, "auto"):
        return None, None
    width, height = map(int, size.split("x"))
    if max(width, height) > config.max_side:
        raise _invalid("size", f"must be at most {config.max_side} wide and high")
    if width * height * n > config.max_pixels:
        raise _invalid("size", f"all pictures together may have {config.max_pixels} pixels")
    return width, height


def _output_options(params: ImageParams, config: ServerConfig) -> dict[str, Any]:
    quality = params.output_compression
    if params.output_format == "png":
        if quality not in (None, 100):
            raise _invalid("output_compression", "is for 'jpeg' and 'webp'")
        return {"compress_level": config.png_compress_level}
    return {} if quality is None else {"quality": max(1, quality)}


def _earliest(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _at_most(name: str, value: int | None, limit: int) -> None:
    if value is not None and value > limit:
        raise _invalid(name, f"must be at most {limit}")


def _invalid(name: str, message: str) -> ApiError:
    return ApiError(400, f"{name}: {message}", code="invalid_value", param=name)
