"""`AccessLog`: a name for each request, in and out, and one line in the log when it has ended."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .disconnect import DISCONNECTED
from .errors import CLIENT_CLOSED_REQUEST, ApiError
from .exchange import CURRENT, Exchange
from .gate import OPEN_PATHS, path_in_app
from .log_lines import exchange_fields, line_of
from .service import Service

logger = logging.getLogger("sidestream.server.access")

_REQUEST_ID = "sidestream.request_id"
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_QUIET_PATHS = (*OPEN_PATHS, "/metrics", "/v1/timeline")
"""What is asked for all the time, and not worth a line or a span."""


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
    """Pure-ASGI middleware: names, counts, traces and logs requests, and answers what nobody else
    has.

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
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        scope[_REQUEST_ID] = given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
        client = (scope.get("client") or ["-"])[0]
        exchange = Exchange(scope[_REQUEST_ID], scope["method"], scope["path"], client)
        exchange.quiet = path_in_app(scope) in _QUIET_PATHS
        token = CURRENT.set(exchange)
        try:
            with self._span(exchange, scope, headers):
                await self._run(exchange, scope, receive, send)
        finally:
            CURRENT.reset(token)
            self._log(exchange)

    async def _run(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        complete = False

        async def noted(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = scope[_REQUEST_ID]
            else:
                exchange.sent += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            logger.exception("request %s failed", scope[_REQUEST_ID])
            if not exchange.status:
                error = ApiError(500, "internal error", code="internal")
                await error.response()(scope, receive, noted)
        finally:
            if not complete:
                gone = scope.get(DISCONNECTED)
                exchange.status = CLIENT_CLOSED_REQUEST if gone else exchange.status or 503
            exchange.request_id = scope[_REQUEST_ID]
            exchange.route = getattr(scope.get("route"), "path", None)
            exchange.ended = time.monotonic_ns()

    def _span(
        self, exchange: Exchange, scope: Scope, headers: Headers
    ) -> AbstractContextManager[None]:
        telemetry = self._service.telemetry
        if telemetry is None or exchange.quiet:
            return nullcontext()
        return telemetry.exchange(exchange, scope, headers)

    def _log(self, exchange: Exchange) -> None:
        route = exchange.route or "other"
        self._service.metrics.http_requests.labels(route, str(exchange.status)).inc()
        fields = exchange_fields(exchange)
        level = logging.DEBUG if exchange.quiet and exchange.status != 401 else logging.INFO
        if logger.isEnabledFor(level):
            line = line_of(fields, as_json=self._service.config.json_logs)
            logger.log(level, "%s", line, extra={"fields": fields})
