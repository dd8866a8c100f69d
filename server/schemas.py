"""The bodies of requests and answers: the fields of the OpenAI Images API, and sidestream's own.

Limits that are settings of the server are checked in `limits`, since a schema is the same for all
servers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from ..engine.request import SEED_LIMIT
from .adapters import Lora

OutputFormat = Literal["png", "jpeg", "webp"]
RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
Size = Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$")]


class RequestParams(BaseModel):
    """Fields that all requests share."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(description="What to make.")
    model: str | None = Field(None, description="Name of the served model.")
    size: Size | None = Field(
        None, description="`WIDTHxHEIGHT` in pixels, or `auto`: the model's own."
    )
    seed: int | None = Field(
        None, ge=0, le=SEED_LIMIT, description="Of the first output; the next ones count up."
    )
    num_inference_steps: int | None = Field(None, ge=1, le=10_000, description="Denoising steps.")
    guidance_scale: float | None = Field(
        None, ge=0, le=1000, allow_inf_nan=False, description="Guidance."
    )
    negative_prompt: str | None = Field(None, description="What to keep away from.")
    lora: Lora | None = Field(
        None, description="Adapters with their scales, or the name of one; see `/v1/models`."
    )
    priority: int = Field(
        0, ge=-1_000_000, le=1_000_000, description="Higher goes first, up to the server's limit."
    )
    timeout_s: float | None = Field(
        None, gt=0, le=1e6, description="Seconds after which the request is given up (504)."
    )
    request_id: RequestId | None = Field(
        None, description="A name for it; else that of the header `X-Request-Id`."
    )


class ImageParams(RequestParams):
    """Fields that generations and edits share."""

    n: int = Field(1, ge=1, le=64, description="Pictures to make.")
    quality: Literal["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"] | None = (
        Field(None, description="Accepted for compatibility; `num_inference_steps` decides.")
    )
    background: Literal["auto", "opaque", "transparent"] | None = Field(
        None, description="`transparent` is refused: pictures are opaque."
    )
    output_format: OutputFormat = Field("png", description="Kind of the files.")
    output_compression: int | None = Field(
        None, ge=0, le=100, description="Quality of JPEG and WebP; 100 is best."
    )
    response_format: Literal["b64_json"] | None = Field(
        None, description="Pictures come in the answer; there are no URLs."
    )
    stream: bool | None = Field(None, description="Answer with server-sent events.")
    partial_images: int | None = Field(
        None,
        ge=0,
        le=3,
        description="Previews to send; needs `stream`, and an engine in step mode.",
    )
    stream_progress: bool = Field(False, description="Send `progress` events too; needs `stream`.")
    user: str | None = Field(None, max_length=256, description="Ignored.")
    safety_identifier: str | None = Field(None, max_length=256, description="Ignored.")
    moderation: Literal["auto", "low"] | None = Field(None, description="Ignored.")
    style: Literal["vivid", "natural"] | None = Field(None, description="Ignored.")


class GenerationParams(ImageParams):
    """Body of ``POST /v1/images/generations``."""


class EditParams(ImageParams):
    """Body of ``POST /v1/images/edits``, a form with files."""

    image: list[UploadFile] = Field(default_factory=list, description="The picture to edit.")
    images: list[UploadFile] = Field(
        default_factory=list, alias="image[]", description="Several pictures, in their order."
    )
    mask: UploadFile | None = Field(
        None, description="What may change: where it is transparent, else where it is white."
    )
    input_fidelity: Literal["low", "high"] | None = Field(None, description="Ignored.")
    strength: float | None = Field(
        None, ge=0, le=1, description="How much of the picture may change."
    )


FILE_FIELDS = ("image", "image[]", "mask", "input_reference")
"""Fields that are files, in the forms of edits and of videos."""


class ImageDatum(BaseModel):
    """One picture of an answer."""

    b64_json: str
    seed: int


class ImagesAnswer(BaseModel):
    """Answer of both image routes."""

    created: int
    data: list[ImageDatum]
    size: str
    quality: str
    background: str
    output_format: OutputFormat
    request_id: str
    timings: dict[str, float] = Field(description="Seconds of each phase.")


class ServerSentEvent(BaseModel):
    """An event of an answer with `stream`."""

    event: str = Field(
        description="`image_generation.partial_image`, `.progress` or `.completed`, those of edits"
        " with `image_edit` in its place, or `error`."
    )
    data: str = Field(description="A JSON object with `type` and `b64_json`, or `error`.")


class RequestStatus(BaseModel):
    """What is known of a request."""

    id: str
    object: Literal["request"] = "request"
    state: Literal["queued", "running", "completed", "failed", "cancelled"]
    created_at: int
    queue_position: int | None = Field(description="How many wait ahead of it.")
    step: int | None = Field(description="Denoising steps taken.")
    total: int | None
    eta: float | None = Field(description="Seconds until the last step.")


class CancelAnswer(BaseModel):
    """Answer to a cancel."""

    id: str
    cancelled: bool = Field(description="Whether the request was here.")


class ModelObject(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "sidestream"
    pipeline: str
    media: str
    accepts_image: bool
    needs_image: bool = Field(
        description="Whether it is certain that it makes nothing without one; others may say so"
        " when they are asked."
    )
    mode: str
    parameters: list[str] = Field(
        description="Fields of `/v1/images/generations`, `/v1/images/edits` or `/v1/videos` that"
        " change what it makes."
    )
    defaults: dict[str, str | float] = Field(description="Of these fields, as far as known.")
    lora: list[str] = Field(description="Adapters that the field `lora` can name.")
    limits: dict[str, int] = Field(description="Of the server: the most of each.")


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Answer of every error."""

    error: ErrorObject


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {
        "model": ErrorAnswer,
        "description": "Not valid; `param` names the field.",
    },
    401: {"model": ErrorAnswer, "description": "A key is needed."},
    404: {"model": ErrorAnswer, "description": "There is no such thing."},
    503: {"model": ErrorAnswer, "description": "The engine starts, stops, or has died."},
}
IMAGE_ERRORS: dict[int | str, dict[str, Any]] = {
    **ERRORS,
    408: {"model": ErrorAnswer, "description": "The body took too long."},
    409: {"model": ErrorAnswer, "description": "There is a request of this name."},
    413: {"model": ErrorAnswer, "description": "The body or a picture is too large."},
    422: {"model": ErrorAnswer, "description": "The model cannot do this."},
    429: {"model": ErrorAnswer, "description": "The queue is full; see `Retry-After`."},
    499: {"model": ErrorAnswer, "description": "Somebody cancelled it."},
    500: {"model": ErrorAnswer, "description": "The pipeline failed."},
    504: {"model": ErrorAnswer, "description": "`timeout_s` passed."},
}
