"""``POST /v1/images/generations`` and ``POST /v1/images/edits``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import trio
from fastapi import APIRouter, Depends, Form, Request
from starlette.responses import Response

from ..engine import Completed, DiffusionRequest, DiffusionResult
from .abilities import EDIT_ARGUMENTS, needs_picture
from .access_log import request_id_of
from .encoding import PiecesResponse, answer_pieces
from .errors import invalid, unsupported, without_picture
from .event_stream import ImageEventStream
from .forms import check_form
from .input_bytes import InputShare
from .limits import check_adapters, make_request
from .metrics import phases_of
from .schemas import (
    IMAGE_ERRORS,
    EditParams,
    GenerationParams,
    ImageParams,
    ImagesAnswer,
    ServerSentEvent,
)
from .service import Service
from .uploads import opaque, read_picture, repaint_mask

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ImagesAnswer,
        "content": {"text/event-stream": {"schema": ServerSentEvent.model_json_schema()}},
        "description": "The pictures; with `stream`, as server-sent events.",
    },
    **IMAGE_ERRORS,
}


def image_routes(service: Service) -> APIRouter:
    """Make the routes that make pictures."""
    router = APIRouter(tags=["images"])

    @router.post("/v1/images/generations", responses=ANSWERS, response_model=None)
    async def create_image(params: GenerationParams, http: Request) -> Response:
        """Make pictures of a prompt."""
        service.check_model(params.model, "image")
        if needs_picture(service.ready_engine().capabilities):
            raise without_picture()
        return await _answer(service, params, http, {}, "image_generation")

    @router.post(
        "/v1/images/edits",
        responses=ANSWERS,
        response_model=None,
        dependencies=[Depends(check_form)],
    )
    async def edit_image(
        params: Annotated[EditParams, Form(media_type="multipart/form-data")], http: Request
    ) -> Response:
        """Make pictures of a prompt from pictures."""
        service.check_model(params.model, "image")
        inputs = await _inputs(service, params, InputShare.of(http.scope))
        return await _answer(service, params, http, inputs, "image_edit")

    return router


async def _answer(
    service: Service,
    params: ImageParams,
    http: Request,
    inputs: Mapping[str, Any],
    kind: str,
) -> Response:
    """Run a request and make the answer.

    Args:
      kind: of server-sent events, before the dot.
    """
    capabilities = service.ready_engine().capabilities
    check_adapters(params, capabilities)
    request_id = request_id_of(http.scope, params.request_id, service.requests.is_live)
    request = make_request(params, request_id, service.config, capabilities, inputs)
    fields: dict[str, Any] = {
        "quality": params.quality or "auto",
        "background": "opaque",
        "output_format": params.output_format,
        "request_id": request_id,
    }
    if params.stream:
        return ImageEventStream(service, request, kind, fields, progress=params.stream_progress)
    result = await _result(service, request)
    pictures = service.pictures_of(result)
    fields |= {"created": int(time.time()), "timings": phases_of(result.timings)}
    with service.encoding():
        pieces = await trio.to_thread.run_sync(answer_pieces, pictures, result.seed, fields)
    return PiecesResponse(pieces)


async def _result(service: Service, request: DiffusionRequest) -> DiffusionResult:
    async with service.run(request) as events:
        async for event in events:
            if isinstance(event, Completed):
                return event.result
    raise AssertionError("a stream ends with its result, or raises")


async def _inputs(service: Service, params: EditParams, share: InputShare) -> dict[str, Any]:
    """Decode the pictures of a form, and name them as pipelines do."""
    config = service.config
    accepted = service.ready_engine().capabilities["arguments"]
    files = params.image + params.images
    if not files:
        raise invalid("image", "is needed: a file, with curl -F image=@picture.png")
    if len(files) > config.max_images:
        raise invalid("image", f"at most {config.max_images}")
    given = {"image": files, "mask": params.mask, "strength": params.strength}
    for name, argument in EDIT_ARGUMENTS.items():
        if given[name] is not None and argument not in accepted:
            hint = ": POST /v1/images/generations" if argument == "image" else ""
            raise unsupported(name, f"the model does not take it{hint}")
    limit = min(config.max_image_pixels, config.max_pixels // params.n)
    pictures = [await read_picture(file, "image", limit, share, opaque) for file in files]
    inputs: dict[str, Any] = {"image": pictures[0] if len(pictures) == 1 else pictures}
    if params.mask is not None:
        inputs["mask_image"] = await read_picture(params.mask, "mask", limit, share, repaint_mask)
    if params.strength is not None:
        inputs["strength"] = params.strength
    return inputs
