"""What is checked and settled before a request is admitted: `prepare` turns it into the call that a
worker will make.

The worker's capabilities say which arguments the pipeline takes, so a wrong request is refused
here, before any work.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..ipc_ext.messages import CALL_LIMIT
from ..postprocess import VIDEO_TYPE, check_output_options
from .config import EngineConfig
from .errors import RequestError
from .executor.base import Capabilities, InputTensor
from .inputs import split_arguments
from .request import KNOWN_AS, SEED_LIMIT, DiffusionRequest, SamplingParams
from .strict import nearest

RESERVED = frozenset({"generator", "output_type", "return_dict", "callback_on_step_end", "callback",
                      "callback_steps", "callback_on_step_end_tensor_inputs",
                      "on_chunk"})  # fmt: skip
"""Arguments of pipelines that sidestream itself sets, or that cannot cross a process boundary."""
KINDS = {
    "image": "image-to-image",
    "strength": "image-to-image",
    "mask_image": "inpainting",
    "control_image": "ControlNet",
    "num_frames": "video",
}
"""Arguments that people give to pipelines of another kind, and this kind."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be run."""

    request: DiffusionRequest
    call: dict[str, Any]
    inputs: Sequence[InputTensor]
    seeds: tuple[int, ...]
    key: Hashable
    """Requests of equal keys may share a wave."""
    pixels: int
    """Of all its outputs together, 0 where the pipeline's size is not known."""
    steps: int | None
    """Denoising steps that it will take, None where nobody knows."""
    chunks: bool
    """Whether its caller is told finished parts of the output."""


def prepare(
    request: DiffusionRequest, capabilities: Capabilities, config: EngineConfig
) -> PreparedRequest:
    """Check a request against what the pipeline takes and settle what was left open.

    Args:
      request: as the caller made it.
      capabilities: of the worker, see `DiffusionModelRunner.capabilities`.
      config: of the engine.

    Raises:
      RequestError: it cannot be run; names the argument and the valid ones.
    """
    sampling = request.sampling
    if sampling.output_type == VIDEO_TYPE and capabilities["media"] != "video":
        raise RequestError(
            f"output_type must not be {VIDEO_TYPE!r}, which is for videos:"
            f" {capabilities['pipeline']} makes {capabilities['media']}"
        )
    check_lora(sampling.lora, capabilities)
    _check_size(sampling, capabilities)
    chunks = _streams(sampling, capabilities, config)
    arguments = _arguments(request, capabilities)
    try:
        check_output_options(sampling.output_type, sampling.output_options)
    except ValueError as error:
        raise RequestError(f"output_options: {error}") from None
    plain, inputs = split_arguments(arguments)
    size = sum(tensor.descriptor.nbytes for tensor in inputs)
    if size > config.max_input_bytes:
        raise RequestError(
            f"extra_args hold arrays of {size} bytes; at most {config.max_input_bytes} are accepted"
            " (max_input_bytes)"
        )
    if _size_of(plain) > CALL_LIMIT:
        raise RequestError(
            f"the request takes more than {CALL_LIMIT} bytes; give large data as arrays"
        )
    seed = secrets.randbelow(2**32) if sampling.seed is None else sampling.seed
    if seed + sampling.num_outputs - 1 > SEED_LIMIT:
        raise RequestError(f"seed + num_outputs must not pass {SEED_LIMIT}")
    seeds = tuple(range(seed, seed + sampling.num_outputs))
    settled = {**capabilities["defaults"], **plain}
    return PreparedRequest(
        request,
        plain,
        inputs,
        seeds,
        key=(_key(plain, inputs, sampling.output_type), tuple(sampling.lora.items())),
        pixels=_pixels(settled, capabilities) * sampling.num_outputs,
        steps=settled.get("num_inference_steps"),
        chunks=chunks,
    )


def check_lora(lora: Mapping[str, float], capabilities: Capabilities) -> None:
    """Return if there are these adapters.

    Raises:
      RequestError: there are not; names the valid ones.
    """
    names = capabilities.get("lora", ())
    for name in lora:
        if name not in names:
            shown = repr(name[:64])
            none = f"the engine was opened without any: open_engine(lora={{{shown}: PATH}})"
            hint = nearest(name, names) if names else none
            raise RequestError(f"lora: there is no adapter {shown}; {hint}")


def _check_size(sampling: SamplingParams, capabilities: Capabilities) -> None:
    """Refuse sizes that the pipeline would refuse."""
    multiple = capabilities.get("size_multiple", 1)
    least = capabilities.get("smallest_side", 1)
    for name, side in (("width", sampling.width), ("height", sampling.height)):
        if side is not None and side % multiple:
            below = side - side % multiple
            near = f"{below} and {below + multiple} are" if below else f"{multiple} is"
            raise RequestError(
                f"{name} must be a multiple of {multiple}, not {side}: the nearest {near}"
                f" what {capabilities['pipeline']} can make"
            )
        if side is not None and side < least:
            raise RequestError(
                f"{name} must be at least {least}, not {side}, for {capabilities['pipeline']}"
            )


def _streams(sampling: SamplingParams, capabilities: Capabilities, config: EngineConfig) -> bool:
    """Settle whether finished parts are told; refuse what the mode or the pipeline cannot tell."""
    previews = [name for name in ("preview_steps", "preview_every") if getattr(sampling, name)]
    wanted = [*previews, *(["streaming_output"] if sampling.streaming_output else [])]
    if wanted and config.mode != "step":
        raise RequestError(f"{wanted[0]} needs an engine of mode 'step', not {config.mode!r}")
    if len(previews) > 1:
        raise RequestError("preview_steps and preview_every exclude each other")
    if previews and not capabilities.get("previews", False):
        raise RequestError(
            f"there is no way to show {capabilities['pipeline']}'s latents, so no previews"
            f" ({previews[0]} must be 0)"
        )
    able = bool(capabilities.get("chunks", False))
    if sampling.streaming_output and not able:
        raise RequestError(
            f"streaming_output must not be true: {capabilities['pipeline']} has no parts of its"
            " output to tell before it is done; progress and previews are told without"
        )
    wanted_here = sampling.streaming_output
    return able and (config.streaming_output if wanted_here is None else wanted_here)


def _pixels(settled: dict[str, Any], capabilities: Capabilities) -> int:
    """Estimate the pixels of one output."""
    count = 1
    for name in ("width", "height"):
        value = settled.get(name) or capabilities.get(name)
        count *= value if isinstance(value, int) else 0
    frames = settled.get("num_frames")
    return count * (frames if isinstance(frames, int) else 1)


def _size_of(plain: dict[str, Any]) -> int:
    try:
        return len(msgspec.msgpack.encode(plain))
    except (OverflowError, UnicodeEncodeError) as error:
        raise RequestError(f"extra_args cannot be sent: {error}") from None


def _arguments(request: DiffusionRequest, capabilities: Capabilities) -> dict[str, Any]:
    """Name everything as the pipeline does."""
    sampling = request.sampling
    accepted = set(capabilities["arguments"])
    count = capabilities["num_outputs"]
    given: dict[str, Any] = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "width": sampling.width,
        "height": sampling.height,
        "num_inference_steps": sampling.num_inference_steps,
        "guidance_scale": sampling.guidance_scale,
    }
    for name, value in sampling.extra_args.items():
        if name in RESERVED or name in given or name == count:
            instead = f"; the parameter is {KNOWN_AS[name]}" if name in KNOWN_AS else ""
            raise RequestError(
                f"extra_args must not hold {name!r}: it has a parameter of its own or is set here"
                + instead
            )
        if not name.isidentifier():
            raise RequestError(f"extra_args must hold names of arguments, not {name!r}")
        given[name] = value
    if sampling.num_outputs != 1:
        if count is None:
            raise RequestError(
                f"num_outputs must be 1: {capabilities['pipeline']} makes one output a call"
            )
        given[count] = sampling.num_outputs
    arguments = {name: value for name, value in given.items() if value is not None}
    for name in arguments:
        if name not in accepted and not capabilities["accepts_any"]:
            raise RequestError(
                f"{capabilities['pipeline']} takes no {name!r}: {_hint(name, accepted - RESERVED)}"
            )
    missing = set(capabilities["required"]) - set(arguments)
    if capabilities.get("needs_prompt", False) and not any("embeds" in name for name in arguments):
        missing |= {"prompt"} - set(arguments)
    if missing:
        raise RequestError(f"{capabilities['pipeline']} needs {', '.join(sorted(missing))}")
    return arguments


def _hint(name: str, accepted: set[str]) -> str:
    """Return what to say of an argument that a pipeline does not take."""
    if name not in KINDS:
        return nearest(name, accepted)
    return (
        f"that is an argument of {KINDS[name]} pipelines; what a model is loaded as, its setting"
        " model_options.pipeline_class says"
    )


def _key(plain: dict[str, Any], inputs: Sequence[InputTensor], output_type: str) -> Hashable:
    """Say what must agree for requests to be worth a common wave: shapes and loop lengths, not
    contents."""
    loose = ("prompt", "negative_prompt", "guidance_scale")
    same = sorted((name, repr(value)) for name, value in plain.items() if name not in loose)
    present = tuple(name in plain for name in loose)
    shapes = tuple((t.name, t.descriptor.dtype, t.descriptor.shape) for t in inputs)
    return (tuple(same), present, shapes, output_type == "latent")
