"""From the fields of a request to what the engine runs, within the limits of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine import DiffusionRequest, SamplingParams
from ..engine.strict import nearest
from .config import ServerConfig
from .errors import ApiError
from .schemas import ImageParams, RequestParams


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
    check_limits(params, config)
    check_at_most("n", params.n, config.max_n)
    if params.background == "transparent":
        raise invalid("background", "must be 'auto' or 'opaque': pictures are not transparent")
    if params.partial_images and not params.stream:
        raise invalid("partial_images", "needs 'stream'")
    if params.stream_progress and not params.stream:
        raise invalid("stream_progress", "needs 'stream'")
    width, height = read_size(params.size, config)
    if (width or 0) * (height or 0) * params.n > config.max_pixels:
        raise invalid("size", f"all pictures together may have {config.max_pixels} pixels")
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
            deadline=earliest(params.timeout_s, config.request_timeout_s),
            lora=params.lora or {},
            extra_args=dict(extra_args),
        ),
    )


def check_limits(params: RequestParams, config: ServerConfig) -> None:
    """Check what all requests share.

    Raises:
      ApiError: a field is beyond a limit.
    """
    check_at_most("num_inference_steps", params.num_inference_steps, config.max_steps)
    check_at_most("priority", params.priority, config.max_priority)
    for name in ("prompt", "negative_prompt"):
        if len(getattr(params, name) or "") > config.max_prompt_chars:
            raise invalid(name, f"must have at most {config.max_prompt_chars} characters")


def check_adapters(params: RequestParams, capabilities: Mapping[str, Any]) -> None:
    """Return if the engine has the adapters that a request wants.

    Raises:
      ApiError: it has not; names the valid ones.
    """
    names = capabilities.get("lora", [])
    for name in params.lora or ():
        if name not in names:
            hint = nearest(name, names) if names else "there are none"
            raise invalid(f"lora.{name[:64]}", f"there is no such adapter; {hint}")


def read_size(size: str | None, config: ServerConfig) -> tuple[int | None, int | None]:
    """Return (width, height), None for what the model is to choose.

    Raises:
      ApiError: a side is beyond the limit.
    """
    if size in (None, "auto"):
        return None, None
    width, height = map(int, size.split("x"))
    if max(width, height) > config.max_side:
        raise invalid("size", f"must be at most {config.max_side} wide and high")
    return width, height


def _output_options(params: ImageParams, config: ServerConfig) -> dict[str, Any]:
    quality = params.output_compression
    if params.output_format == "png":
        if quality not in (None, 100):
            raise invalid("output_compression", "is for 'jpeg' and 'webp'")
        return {"compress_level": config.png_compress_level}
    return {} if quality is None else {"quality": max(1, quality)}


def earliest(*limits: float | None) -> float | None:
    """Return the least of what there is, None if there is nothing."""
    return min((limit for limit in limits if limit is not None), default=None)


def check_at_most(name: str, value: int | None, limit: int) -> None:
    """Return if a field is within its limit.

    Raises:
      ApiError: it is not.
    """
    if value is not None and value > limit:
        raise invalid(name, f"must be at most {limit}")


def invalid(name: str, message: str) -> ApiError:
    """Say what is wrong with a field."""
    return ApiError(400, f"{name}: {message}", code="invalid_value", param=name)
