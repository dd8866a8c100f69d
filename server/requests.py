"""What is served, and where requests stand: ``/v1/models`` and ``/v1/requests``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path

from ..engine import DiffusionEngine
from .abilities import EDIT_ARGUMENTS, needs_picture, takes
from .config import ServerConfig
from .errors import ApiError
from .schemas import ERRORS, CancelAnswer, ModelList, ModelObject, RequestStatus
from .service import Service
from .video_schemas import FILE

RequestName = Annotated[str, Path(min_length=1, max_length=128)]


def request_routes(service: Service) -> APIRouter:
    """Make the routes that tell and cancel."""
    router = APIRouter(responses=ERRORS)

    @router.get("/v1/models", tags=["models"])
    async def list_models() -> ModelList:
        """List the served model."""
        return ModelList(data=[_model(service)])

    @router.get("/v1/models/{model:path}", tags=["models"])
    async def get_model(model: str) -> ModelObject:
        """Describe a served model."""
        served = _model(service)
        if model != served.id:
            raise ApiError(404, f"there is no model {model!r} here", code="model_not_found")
        return served

    @router.get("/v1/requests/{request_id}", tags=["requests"])
    async def get_request(request_id: RequestName) -> RequestStatus:
        """Tell where a request stands."""
        record = service.requests.find(request_id)
        if record is None:
            raise ApiError(404, f"there is no request {request_id!r}", code="request_not_found")
        engine = service.engine
        waiting = engine is not None and record.state == "queued"
        return RequestStatus(
            id=record.request_id,
            state=record.state,
            created_at=int(record.created),
            queue_position=engine.queue_position(request_id) if engine and waiting else None,
            step=record.step,
            total=record.total,
            eta=record.eta,
        )

    @router.post("/v1/requests/{request_id}/cancel", tags=["requests"])
    async def cancel_request(request_id: RequestName) -> CancelAnswer:
        """Cancel a request; answers when the worker has let go of it. Idempotent."""
        cancelled = await service.abort(request_id)
        return CancelAnswer(id=request_id, cancelled=cancelled)

    return router


def _model(service: Service) -> ModelObject:
    engine = service.ready_engine()
    return ModelObject(
        id=service.model_name,
        created=int(service.started),
        pipeline=engine.capabilities["pipeline"],
        media=engine.capabilities["media"],
        accepts_image="image" in engine.capabilities["arguments"],
        needs_image=needs_picture(engine.capabilities),
        mode=engine.config.mode,
        parameters=_parameters(engine),
        defaults=_defaults(engine.capabilities),
        lora=engine.capabilities.get("lora", []),
        limits=_limits(service.config),
    )


_ARGUMENTS = {
    "prompt": "prompt",
    "negative_prompt": "negative_prompt",
    "size": "height",
    "num_inference_steps": "num_inference_steps",
    "guidance_scale": "guidance_scale",
    "seed": "generator",
}
"""What pipelines call the fields of a body."""


def _parameters(engine: DiffusionEngine) -> list[str]:
    """Return the fields that change what the model makes."""
    capabilities = engine.capabilities
    fields = [field for field, name in _ARGUMENTS.items() if takes(capabilities, name)]
    if capabilities.get("lora"):
        fields.append("lora")
    if capabilities["media"] == "video":
        of_videos = {"seconds": "num_frames", FILE: "image"}
        return fields + [field for field, name in of_videos.items() if takes(capabilities, name)]
    arguments = capabilities["arguments"]
    if "image" in arguments:
        fields += [field for field, name in EDIT_ARGUMENTS.items() if name in arguments]
    if capabilities["num_outputs"] is not None:
        fields.append("n")
    if engine.config.mode == "step" and capabilities.get("previews", False):
        fields.append("partial_images")
    return fields


def _defaults(capabilities: Mapping[str, Any]) -> dict[str, str | float]:
    """Return what the model takes where a body says nothing."""
    defaults: dict[str, str | float] = {}
    width, height = capabilities["width"], capabilities["height"]
    if width and height:
        defaults["size"] = f"{width}x{height}"
    for name in ("num_inference_steps", "guidance_scale"):
        value = capabilities["defaults"].get(name)
        if type(value) in (int, float) and math.isfinite(value):
            defaults[name] = value
    return defaults


def _limits(config: ServerConfig) -> dict[str, int]:
    return {
        "n": config.max_n,
        "num_inference_steps": config.max_steps,
        "side": config.max_side,
        "pixels": config.max_pixels,
        "prompt": config.max_prompt_chars,
    }
