"""What a pipeline can be asked for, found out from its signature."""

import inspect
import itertools
import re
from typing import Any

from .asking import is_of_diffusers, refusal_of
from .lanes.view import is_scheduler
from .size_rule import size_multiple, smallest_side

_OUTPUT_COUNTS = ("num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt")
CHUNK_ARGUMENT = "on_chunk"
"""Of a pipeline's call: a function that it calls with each finished part of its output: a tensor,
or anything that it may return. The pipeline does not change the part afterwards."""
_OPTIONAL_IMAGE = re.compile(r"^ *image \(.*\*optional\*", re.MULTILINE)
"""As diffusers writes it."""
_PLAIN = (bool, int, float, str, type(None))


def capabilities_of(pipeline: Any) -> dict[str, Any]:
    """Describe a pipeline in plain values that can be sent anywhere.

    Args:
        pipeline: Any object called like a diffusers pipeline. Its attribute `sidestream_defaults`
            (a dict
            of call arguments), if it has one, goes before the defaults of its signature.

    Returns:
        `pipeline` (class name), `arguments` (names, in order), `required` (names), `defaults` (name
        to value), `accepts_any` (takes further keywords), `height` and `width` (pixels or None),
        `size_multiple` (what both have to be multiples of; see `size_multiple`), `smallest_side`
        (what neither may be below; see `smallest_side`), `needs_prompt` (it refuses to work without
        a prompt, though its signature has a default), `image_optional` (its documentation says that
        it need not start from an image),
        `media` ("image", "video" or "audio"), `num_outputs` (the argument that says how many, or
        None), `has_scheduler`, `from_image` (it starts from an image; its signature need not say
        so: diffusers gives the argument a default and refuses it later), `chunks` (it tells parts
        of its output as they are done, by calling its argument `on_chunk`), `lora` (the adapters
        that requests can choose from; its attribute `sidestream_lora`).
    """
    parameters = _parameters(pipeline)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = [p.name for p in named]
    defaults = {p.name: p.default for p in named if _is_plain(p.default)}
    defaults.update(getattr(pipeline, "sidestream_defaults", None) or {})
    height, width = _size(pipeline, defaults)
    return {
        "pipeline": type(pipeline).__name__,
        "arguments": names,
        "required": [p.name for p in named if p.default is p.empty and p.name not in defaults],
        "defaults": defaults,
        "accepts_any": _accepts_any(pipeline, parameters),
        "height": height,
        "width": width,
        "size_multiple": size_multiple(pipeline),
        "smallest_side": smallest_side(pipeline),
        "needs_prompt": "prompt" in names and _needs_prompt(pipeline, named),
        "image_optional": _OPTIONAL_IMAGE.search(_documentation(pipeline)) is not None,
        "media": _media(pipeline, names),
        "num_outputs": next((name for name in _OUTPUT_COUNTS if name in names), None),
        "has_scheduler": is_scheduler(getattr(pipeline, "scheduler", None)),
        "chunks": CHUNK_ARGUMENT in names,
        "lora": list(getattr(pipeline, "sidestream_lora", ())),
        "from_image": "image" in itertools.takewhile(_is_no_sampling_argument, names),
    }


def _needs_prompt(pipeline: Any, parameters: list[inspect.Parameter]) -> bool:
    nothing: dict[str, Any] = {p.name: None for p in parameters if p.default is p.empty}
    return "`prompt`" in refusal_of(pipeline, **nothing | {"prompt": None})


def _documentation(pipeline: Any) -> str:
    return type(pipeline).__call__.__doc__ or ""


def _parameters(pipeline: Any) -> list[inspect.Parameter]:
    call = pipeline if inspect.isroutine(pipeline) else type(pipeline).__call__
    parameters = list(inspect.signature(call).parameters.values())
    return parameters if call is pipeline else parameters[1:]


def _accepts_any(pipeline: Any, parameters: list[inspect.Parameter]) -> bool:
    """Whether a call takes keywords that its signature does not name. Pipelines of diffusers have
    `**kwargs` too, but only to warn of names that they took in former releases."""
    if is_of_diffusers(pipeline):
        return False
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _is_no_sampling_argument(name: str) -> bool:
    """Whether an argument is among those before the sampling: what a pipeline works on."""
    return name not in ("height", "width", "num_inference_steps")


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _media(pipeline: Any, names: list[str]) -> str:
    declared = getattr(pipeline, "sidestream_media", None)
    if declared is not None:
        return str(declared)
    if "num_frames" in names or "Video" in type(pipeline).__name__:
        return "video"
    if any(name.startswith("audio_") for name in names):
        return "audio"
    return "image"


def _size(pipeline: Any, defaults: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the default height and width as the pipeline itself would choose them."""
    height, width = defaults.get("height"), defaults.get("width")
    if height is None or width is None:
        sample = getattr(pipeline, "default_sample_size", None) or _sample_size(pipeline)
        scale = getattr(pipeline, "vae_scale_factor", None)
        if isinstance(sample, (list, tuple)) and len(sample) == 2 and scale:
            height, width = height or sample[0] * scale, width or sample[1] * scale
        elif isinstance(sample, int) and scale:
            height, width = height or sample * scale, width or sample * scale
    return height, width


def _sample_size(pipeline: Any) -> Any:
    for name in ("unet", "transformer"):
        config = getattr(getattr(pipeline, name, None), "config", None)
        size = getattr(config, "sample_size", None)
        if size is not None:
            return size
    return None
