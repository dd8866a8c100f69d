"""From the fields of a request to what the engine runs, within the limits of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..engine import DiffusionRequest, SamplingParams
from ..engine.strict import nearest
from .abilities import Capabilities, needs_picture, takes
from .config import ServerConfig
from .errors import ApiError, invalid, unsupported
from .schemas import ImageParams, RequestParams

ROUTES = {"image": "/v1/images/generations", "video": "/v1/videos"}
"""Where to ask for what models make."""


def make_request(
    params: ImageParams,
    request_id: str,
    config: ServerConfig,
    capabilities: Capabilities,
    extra_args: Mapping[str, Any],
) -> DiffusionRequest:
    """Check the fields against the limits, and make the request.

    Args:
      params: as they came.
      request_id: the request's name.
      config: the limits.
      capabilities: of the pipeline.
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
    width, height = read_size(params.size, config, capabilities)
    if (width or 0) * (height or 0) * params.n > config.max_pixels:
        raise invalid("size", f"all pictures together may have {config.max_pixels} pixels")
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


def check_model(
    wanted: str | None, served: str, capabilities: Capabilities, media: Literal["image", "video"]
) -> None:
    """Return if the served model is the wanted one, and makes what is wanted.

    Args:
      wanted: the model that a client has named, None if it did not.
      served: the model that there is.
      capabilities: of its pipeline.
      media: what is to be made.

    Raises:
      ApiError: it is another model, or makes something else.
    """
    if wanted not in (None, served):
        raise ApiError(
            404,
            f"there is no model {wanted!r} here, only {served!r}",
            code="model_not_found",
            param="model",
        )
    made = capabilities["media"]
    if made != media:
        hint = f": POST {ROUTES[made]}" if made in ROUTES else ""
        raise unsupported("model", f"{served!r} makes {made}, not {media}{hint}")


def check_adapters(params: RequestParams, capabilities: Capabilities) -> None:
    """Return if the engine has the adapters that a request wants.

    Raises:
      ApiError: it has not; names the valid ones.
    """
    names = capabilities.get("lora", [])
    for name in params.lora or ():
        if name not in names:
            hint = nearest(name, names) if names else "there are none"
            raise invalid(f"lora.{name[:64]}", f"there is no such adapter; {hint}")


def read_prompt(params: RequestParams, capabilities: Capabilities) -> str | None:
    """Return the prompt, None if it is empty for a pipeline that takes none.

    Raises:
      ApiError: it is empty, as no prompt of the OpenAI API may be, or for a pipeline that takes
        none it is not.
    """
    given = bool(params.prompt.strip())
    if takes(capabilities, "prompt"):
        if not given:
            raise invalid("prompt", "must not be empty")
        return params.prompt
    if given:
        raise unsupported("prompt", "the model takes none; it must be empty")
    return None


def read_size(
    size: str | None, config: ServerConfig, capabilities: Capabilities
) -> tuple[int | None, int | None]:
    """Return (width, height), None for what the model is to choose.

    Raises:
      ApiError: a side is beyond the limit, or the pipeline makes no such size.
    """
    if size in (None, "auto"):
        return None, None
    width, height = map(int, size.split("x"))
    if max(width, height) > config.max_side:
        raise invalid("size", f"must be at most {config.max_side} wide and high")
    if not takes(capabilities, "width") or not takes(capabilities, "height"):
        hint = "; what it makes is as large as its picture" if needs_picture(capabilities) else ""
        raise unsupported("size", f"the model chooses its own{hint}")
    multiple = capabilities.get("size_multiple", 1)
    near = [max(multiple, round(side / multiple) * multiple) for side in (width, height)]
    if near != [width, height]:
        message = f"must be multiples of {multiple}, such as {near[0]}x{near[1]}, not {size}"
        raise unsupported("size", message)
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
