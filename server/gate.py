"""`Gate`: who may come in, and whether there is room, decided before a body is read."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError
from .page_files import PATHS as PAGE_PATHS
from .service import Service

OPEN_PATHS = ("/livez", "/readyz", "/health", *PAGE_PATHS)
"""Probes have no keys, nor has whoever first opens the page."""
WORK_PATHS = ("/v1/images/generations", "/v1/images/edits")
"""Where a POST needs a place in the queue."""


def path_in_app(scope: Scope) -> str:
    """Return the path as the routes see it: below where the app is mounted."""
    path: str = scope["path"]
    rest = path.removeprefix(scope.get("root_path", ""))
    return rest if rest.startswith("/") else path


class Gate:
    """Pure-ASGI middleware: asks for a key, and refuses work that there is no room for.

    Args:
      app: what is behind.
      service: knows the keys and the engine.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._keys = [key.encode() for key in service.config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for one request, or refuse it."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        path = path_in_app(scope)
        if self._keys and path not in OPEN_PATHS:
            given = Headers(scope=scope).get("authorization", "")
            kind, _, key = given.partition(" ")
            if kind.lower() != "bearer" or not is_one_of(key.strip().encode("latin-1"), self._keys):
                raise ApiError(
                    401,
                    "a valid key is needed, as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        if scope["method"] == "POST" and path in WORK_PATHS:
            self._service.check_room()


def is_one_of(key: bytes, keys: Iterable[bytes]) -> bool:
    """Compare a key with all others, in a time that tells nothing about them."""
    found = False
    for known in keys:
        found |= hmac.compare_digest(key, known)
    return found
