"""`AccessLog`: a name for each request, in and out, and one line in the log when it has ended."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .disconnect import DISCONNECTED
from .errors import CLIENT_CLOSED_REQUEST, ApiError
from .gate import OPEN_PATHS
from .service import Service

logger = logging.getLogger("sidestream.server.access")

_REQUEST_ID = "sidestream.request_id"
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(scope: Scope, wanted: str | None, is_taken: Callable[[str], bool]) -> str:
    """Settle the name of a request, which the answer's header will tell.

    Args:
      scope: of the request.
      wanted: by a field of its body.
      is_taken: whether another request has a name. Headers may name several requests alike, which
        belong to one user's action, so their names are used while they are free.
    """
    name: str = wanted or scope[_REQUEST_ID]
    if wanted is None and is_taken(name):
        name = uuid.uuid4().hex
    scope[_REQUEST_ID] = name
    return name


class AccessLog:
    """Pure-ASGI middleware: names, counts and logs requests, and answers what nobody else has.

    Args:
      app: what answers.
      service: where requests are counted.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        scope[_REQUEST_ID] = given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
        began = time.monotonic()
        status = 0
        sent = 0
        complete = False

        async def noted(message: Message) -> None:
            nonlocal status, sent, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = scope[_REQUEST_ID]
            else:
                sent += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            logger.exception("request %s failed", scope[_REQUEST_ID])
            if not status:
                error = ApiError(500, "internal error", code="internal")
                await error.response()(scope, receive, noted)
        finally:
            if not complete:
                status = CLIENT_CLOSED_REQUEST if scope.get(DISCONNECTED) else status or 503
            self._log(scope, status, time.monotonic() - began, sent)

    def _log(self, scope: Scope, status: int, seconds: float, sent: int) -> None:
        route = scope.get("route")
        path = "other" if route is None else route.path
        self._service.metrics.http_requests.labels(path, str(status)).inc()
        fields = {
            "request_id": scope[_REQUEST_ID],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            "bytes": sent,
            "client": (scope.get("client") or ["-"])[0],
        }
        level = logging.DEBUG if scope["path"] in OPEN_PATHS else logging.INFO
        logger.log(level, line_of(fields, as_json=self._service.config.json_logs))


def line_of(fields: dict[str, object], *, as_json: bool) -> str:
    """Format a line of the log: a JSON object, or ``key=value`` words."""
    if as_json:
        return json.dumps(fields)
    return " ".join(f"{name}={_word(value)}" for name, value in fields.items())


def _word(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=')
    return text if plain else json.dumps(text)
