"""The page at ``/``: a playground of plain files, read when the server starts.

It is open to everybody, and holds nothing but code; what it calls asks for a key as ever.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from .errors import ApiError

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES))
PATHS = ("/", *(f"/page/{name}" for name in NAMES))
"""Where the page is."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text becomes markup
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cache-Control": "no-cache",  # kept, but asked about: a new release is seen at once
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, as it is sent."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> PageFile:
        """Read a file of the package."""
        body = path.read_bytes()
        return cls(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def answer(self, http: Request) -> Response:
        """Send it, or say that the client has it already."""
        headers = {**HEADERS, "ETag": self.etag}
        known = http.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def page_routes() -> APIRouter:
    """Make the routes of the page."""
    router = APIRouter(include_in_schema=False)
    files = {name: PageFile.read(FOLDER / name) for name in NAMES}

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(http: Request) -> Response:
        """Show the page."""
        return files[INDEX].answer(http)

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def part(name: str, http: Request) -> Response:
        """Send a file that the page needs."""
        if name not in files:
            raise ApiError(404, f"there is no {name!r} here", code="not_found")
        return files[name].answer(http)

    return router
