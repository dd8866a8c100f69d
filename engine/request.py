"""What a caller asks for: `DiffusionRequest` and `SamplingParams`."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, ClassVar

from ..postprocess import MISSING_PYAV, OUTPUT_TYPES, VIDEO_TYPE, has_pyav
from .errors import RequestError
from .strict import (
    Strict,
    choice,
    elsewhere,
    flag,
    names_of,
    nearest,
    number,
    option,
    table,
    text,
    whole,
)

PROMPT_LIMIT = 20_000
"""Characters of a prompt; text encoders read some hundred tokens at most."""
SEED_LIMIT = 2**63 - 1
SCALE_LIMIT = 100
"""Of an adapter; what makes sense is about 1."""
KNOWN_AS = {
    "num_images_per_prompt": "num_outputs",
    "num_videos_per_prompt": "num_outputs",
    "generator": "seed",
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "output_format": "output_type",
}
"""What users of diffusers may call a parameter, with its name here."""


def _output_type(value: Any) -> Any:
    """Accept what can be made here."""
    output_type = choice(*OUTPUT_TYPES)(value)
    if output_type == VIDEO_TYPE and not has_pyav():
        raise ValueError(f"a type other than {VIDEO_TYPE!r}: {MISSING_PYAV}")
    return output_type


def _lora(value: Any) -> Any:
    """Accept adapters with their scales; names alone stand for the scale 1."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        value = dict.fromkeys(value, 1.0)
    scale = number(-SCALE_LIMIT, SCALE_LIMIT)
    try:
        return {name: scale(strength) for name, strength in table()(value).items()}
    except ValueError:
        raise ValueError(
            f"a table of adapters and their scales, from -{SCALE_LIMIT} to {SCALE_LIMIT}"
        ) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams(Strict):
    """How a request is to be sampled. None leaves a value to the pipeline.

    Raises:
      RequestError: a name is unknown (the message suggests the nearest) or a value is not valid.
    """

    error: ClassVar[type[ValueError]] = RequestError
    noun: ClassVar[str] = "sampling parameter"
    belongs: ClassVar[str] = "a request: engine.generate(..., {}=...)"

    width: int | None = option(None, whole(1, 16_384, optional=True), "width of the output, pixels")
    height: int | None = option(
        None, whole(1, 16_384, optional=True), "height of the output, pixels"
    )
    num_inference_steps: int | None = option(
        None, whole(1, 10_000, optional=True), "denoising steps"
    )
    guidance_scale: float | None = option(
        None, number(0, 1000, optional=True), "classifier-free guidance"
    )
    seed: int | None = option(
        None,
        whole(0, SEED_LIMIT, optional=True),
        "seed of the first output, the next ones count up; None: drawn at random",
    )
    num_outputs: int = option(1, whole(1, 64), "outputs for this prompt")
    output_type: str = option("pil", _output_type, "what `DiffusionResult.outputs` holds")
    output_options: dict[str, Any] = option({}, table(), "options of the encoder, such as quality")
    preview_steps: int = option(
        0, whole(0, 10_000), "previews, evenly spaced over the steps; needs mode 'step'"
    )
    preview_every: int = option(
        0, whole(0, 10_000), "a preview after every so many steps; needs mode 'step'"
    )
    streaming_output: bool | None = option(
        None,
        flag(optional=True),
        "tell finished parts as they come (`Chunk`); needs mode 'step', and a pipeline that has"
        " such parts; None: as configured",
    )
    lora: dict[str, float] = option(
        {},
        _lora,
        "adapters at work in it, with their scales; one or several names alone: of scale 1",
    )
    deadline: float | None = option(
        None, number(0, optional=True), "seconds from submission until DeadlineExceededError"
    )
    extra_args: dict[str, Any] = option(
        {},
        table(),
        "further arguments of the pipeline: plain data, arrays, PIL images, or lists of these",
    )


def _hint(name: str) -> str:
    """Return what to say of a name that is no field of a request."""
    valid = names_of(DiffusionRequest) | names_of(SamplingParams)
    if name in KNOWN_AS:
        return f"did you mean {KNOWN_AS[name]!r}?"
    further = "(further arguments of the pipeline go into extra_args)"
    return elsewhere(name, valid) or f"{nearest(name, valid)} {further}"


def _sampling(value: Any) -> Any:
    if not isinstance(value, SamplingParams):
        raise ValueError("SamplingParams")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffusionRequest(Strict):
    """One request.

    Args:
      prompt: the text; None for pipelines that take none.
      negative_prompt: what to keep away from.
      sampling: see `SamplingParams`.
      request_id: the caller's name for the request, unique in the engine while it lives; one is
        made up when left out.
      priority: higher goes first. Waiting raises it, so nothing starves.
    """

    error: ClassVar[type[ValueError]] = RequestError
    noun: ClassVar[str] = "request parameter"
    belongs: ClassVar[str] = "a request: engine.generate(..., {}=...)"

    prompt: str | None = dataclasses.field(
        default=None,
        kw_only=False,
        metadata={"check": text(PROMPT_LIMIT, optional=True, empty=True)},
    )
    negative_prompt: str | None = option(
        None, text(PROMPT_LIMIT, optional=True, empty=True), "what to keep away from"
    )
    sampling: SamplingParams = dataclasses.field(
        default_factory=SamplingParams, metadata={"check": _sampling}
    )
    request_id: str = dataclasses.field(
        default_factory=lambda: uuid.uuid4().hex, metadata={"check": text(256)}
    )
    priority: int = option(0, whole(-1_000_000, 1_000_000), "higher goes first")

    @classmethod
    def make(cls, prompt: str | DiffusionRequest | None = None, **params: Any) -> DiffusionRequest:
        """Make a request from a prompt and any fields of `DiffusionRequest` and `SamplingParams`.

        Raises:
          RequestError: as these two do.
        """
        if isinstance(prompt, DiffusionRequest):
            if params:
                raise RequestError(
                    f"a DiffusionRequest is complete; {', '.join(params)} cannot be given beside it"
                )
            return prompt
        own, sampling_names = names_of(cls), names_of(SamplingParams)
        sampling: dict[str, Any] = {}
        request: dict[str, Any] = {}
        for name, value in params.items():
            if name in own:
                request[name] = value
            elif name in sampling_names:
                sampling[name] = value
            else:
                raise RequestError(f"unknown parameter {name!r}: {_hint(name)}")
        if sampling:
            if "sampling" in request:
                raise RequestError(f"{', '.join(sampling)} cannot be given beside sampling")
            request["sampling"] = SamplingParams(**sampling)
        return cls(prompt, **request)
