"""Errors in the shape of the OpenAI API: what clients are told, and with which status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..engine import (
    DeadlineExceededError,
    DiffusionRequest,
    DuplicateRequestError,
    EngineBusyError,
    EngineClosedError,
    EngineDeadError,
    ExecutionError,
    OutputError,
    RequestAborted,
    RequestError,
    SidestreamError,
    WorkerDiedError,
)
from ..engine.strict import nearest
from .schemas import FILE_FIELDS, EditParams

CLIENT_CLOSED_REQUEST = 499
"""Nginx's status for a request that its client has given up."""

_RETRY_IS_VAIN = {"x-should-retry": "false"}
"""OpenAI's clients send a request again after most errors, unless they are told not to."""


class ApiError(HTTPException):
    """A request that is answered with an error.

    Args:
      status: of HTTP.
      message: for people.
      code: for programs.
      param: the field that is at fault.
      headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the error object, as it is sent."""
        error = {
            "message": self.detail,
            "type": _type(self.status_code),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> JSONResponse:
        """Return the answer."""
        return JSONResponse(self.body(), self.status_code, self.headers)


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def invalid(name: str, message: str) -> ApiError:
    """Say what is wrong with a field."""
    return ApiError(400, f"{name}: {message}", code="invalid_value", param=name)


def unsupported(name: str, message: str) -> ApiError:
    """Say that the model cannot do what a field asks for."""
    return ApiError(422, f"{name}: {message}", code="unsupported", param=name)


def busy(message: str, retry_after: int) -> ApiError:
    """Say that there is no room now.

    Args:
      message: for people.
      retry_after: seconds until there may be some.
    """
    return ApiError(429, message, code="busy", headers={"Retry-After": str(retry_after)})


def unavailable(message: str, retry_after: int | None = None) -> ApiError:
    """Say that there is no engine to run anything.

    Args:
      message: for people.
      retry_after: seconds until there may be one; None: it will not be here.
    """
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return ApiError(503, message, code="unavailable", headers=headers)


def api_error(error: SidestreamError, *, began: bool = False) -> ApiError:
    """Find the answer to an error of the engine.

    Args:
      error: what the engine raised.
      began: whether the request had taken a denoising step.
    """
    message = str(error)
    match error:
        case DuplicateRequestError():
            return ApiError(409, message, code="duplicate_request", param="request_id")
        case RequestError():
            return ApiError(422, message, code="unsupported")
        case EngineBusyError():
            return busy(message, 1)
        case RequestAborted():
            return ApiError(CLIENT_CLOSED_REQUEST, message, code="cancelled")
        case DeadlineExceededError():
            return ApiError(504, message, code="deadline_exceeded", headers=_RETRY_IS_VAIN)
        case EngineClosedError():
            return unavailable("the engine is stopping")
        case EngineDeadError() | WorkerDiedError():
            return unavailable("the worker has died; try again later")
        case ExecutionError() if error.remote_type in ("ValueError", "TypeError") and not began:
            # So pipelines refuse arguments, such as a size that is no multiple of 8.
            return ApiError(422, message, code="unsupported")
        case OutputError():
            message = "the output could not be made into what was asked for"
            return ApiError(500, message, code="failed", headers=_RETRY_IS_VAIN)
        case _:
            return ApiError(500, "the pipeline failed", code="failed", headers=_RETRY_IS_VAIN)


def refused_field(
    error: ExecutionError, request: DiffusionRequest, capabilities: Mapping[str, Any]
) -> ApiError | None:
    """Find the field for which a pipeline has refused a request before its first step.

    Args:
      error: what came of it.
      request: what was run.
      capabilities: of the pipeline.

    Returns:
      None if no field is at fault, as far as can be told.
    """
    if error.remote_type not in ("ValueError", "TypeError", "AttributeError"):
        return None
    sampling = request.sampling
    if error.remote_type == "ValueError" and sampling.width and _OF_SIZE.search(str(error)):
        return unsupported("size", str(error))
    if not capabilities["from_image"] or capabilities["media"] != "image":
        return None
    for argument, field in (("image", "image"), ("mask_image", "mask")):
        if argument in capabilities["arguments"] and argument not in sampling.extra_args:
            return without_picture(field, f"; {error}")
    return None


_OF_SIZE = re.compile(r"\b(height|width)\b", re.IGNORECASE)


def without_picture(field: str = "image", reason: str = "") -> ApiError:
    """Say that the model works on a picture that was not sent.

    Args:
      field: where it belongs, ``"image"`` or ``"mask"``.
      reason: what else there is to say.
    """
    message = f"the model works on one, which POST /v1/images/edits takes{reason}"
    return unsupported(field, message)


def add_handlers(app: FastAPI) -> None:
    """Let an app answer every error in this shape."""
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(SidestreamError, _on_engine_error)


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if not isinstance(error, ApiError):  # the router's own, or the parser's of multipart bodies
        error = ApiError(error.status_code, str(error.detail), headers=error.headers)
    return error.response()


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    # A name that nobody knows is often that of a field that is missing.
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    first = next(unknown, problems[0])
    fields = [field.alias or name for name, field in EditParams.model_fields.items()]
    return invalid_body(first, first["loc"][1:], fields).response()


def invalid_body(
    problem: Mapping[str, Any], location: Sequence[Any], fields: Iterable[str]
) -> ApiError:
    """Say what is wrong with a body.

    Args:
      problem: an error as pydantic describes it.
      location: the names that lead to the field, from the body on.
      fields: all that there are.
    """
    if location[:1] and location[0] in FILE_FIELDS and isinstance(problem.get("input"), str):
        name = location[0]
        how = f"curl sends one with an @: -F {name}=@picture.png"
        return invalid(name, f"must be a file, in a form (multipart/form-data); {how}")
    param = ".".join(map(str, location)) or None
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {problem['ctx']['error']}")
    if problem["type"] == "extra_forbidden" and param is not None:
        elsewhere = "it belongs to POST /v1/images/edits"
        hint = elsewhere if param in fields else nearest(param, fields)
        message = f"there is no such field here; {hint}"
    if param == "size" and problem["type"].startswith("string"):
        message = "must be WIDTHxHEIGHT, such as 512x512, or auto"
    if param is None and problem["type"] in ("model_attributes_type", "dict_type"):
        message = "must be a JSON object, sent with Content-Type: application/json"
    if param is None:
        return ApiError(400, f"the body: {message}", code="invalid_value")
    return invalid(param, message)


async def _on_engine_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SidestreamError)
    return api_error(error).response()
