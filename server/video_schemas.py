"""The bodies of the video routes: the fields of the OpenAI Videos API, and sidestream's own."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, Field

from .schemas import ERRORS, IMAGE_ERRORS, ErrorAnswer, RequestParams

Status = Literal["queued", "in_progress", "completed", "failed"]


class VideoParams(RequestParams):
    """Body of ``POST /v1/videos``, as JSON or as a form."""

    seconds: float | None = Field(
        None, gt=0, le=3600, allow_inf_nan=False, description="How long the video is to be."
    )
    num_frames: int | None = Field(
        None, ge=1, le=10_000, description="Instead of `seconds`; some models round it."
    )
    fps: int | None = Field(None, ge=1, le=120, description="Frames per second.")
    input_reference: UploadFile | None = Field(
        None, description="The picture to start from, for models that take one."
    )


class VideoError(BaseModel):
    """Why there is no video."""

    code: str
    message: str


class VideoObject(BaseModel):
    """A video, and how far it is."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Status
    progress: int = Field(ge=0, le=100, description="Percent.")
    created_at: int
    completed_at: int | None
    expires_at: int | None = Field(description="When it goes, if not earlier for want of room.")
    prompt: str
    size: str = Field(description="`WIDTHxHEIGHT`; `auto` while only the model knows.")
    seconds: str | None = Field(description="How long it is, as far as known.")
    remixed_from_video_id: None = None
    error: VideoError | None

    request_id: str = Field(description="Its name in `/v1/requests`.")
    seed: int | None
    fps: int
    num_frames: int | None
    queue_position: int | None = Field(description="How many wait ahead of it.")
    step: int | None = Field(description="Denoising steps taken.")
    total: int | None
    eta: float | None = Field(description="Seconds until the last step.")


class VideoList(BaseModel):
    """Videos, a page of them."""

    object: Literal["list"] = "list"
    data: list[VideoObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """Answer to a delete."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True


def _body_schema() -> dict[str, Any]:
    """Describe the two kinds of body; a file can only be in a form."""
    form = VideoParams.model_json_schema()
    fields = {name: field for name, field in form["properties"].items() if name != FILE}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {**form, "properties": fields}},
                "multipart/form-data": {"schema": form},
            },
        }
    }


FILE = "input_reference"
BODY = _body_schema()
MP4: dict[str, Any] = {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}
CREATE_ERRORS = IMAGE_ERRORS
FIND_ERRORS: dict[int | str, dict[str, Any]] = {key: ERRORS[key] for key in (400, 401, 404)}
CONTENT_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": MP4, "description": "The file."},
    206: {"content": MP4, "description": "The part of it that `Range` asks for."},
    **FIND_ERRORS,
    409: {"model": ErrorAnswer, "description": "It is not there yet, or will never be."},
    416: {"model": ErrorAnswer, "description": "The file has no such part."},
}
