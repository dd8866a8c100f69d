"""Bodies that are forms, and what is said to who sends something else."""

from __future__ import annotations

from fastapi import Request

from .errors import ApiError

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def content_type_of(http: Request) -> str:
    """Return what kind of body a request says that it has, without parameters."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


async def check_form(http: Request) -> None:
    """Return if a body is a form; a dependency of routes that take files.

    Raises:
      ApiError: it is something else.
    """
    kind = content_type_of(http)
    if kind not in FORMS:
        sent = f"not {kind[:64]!r}" if kind else "and the Content-Type is missing"
        raise ApiError(
            400,
            f"the body: must be a form with files ({FORMS[0]}), {sent}; with curl:"
            f" curl -F prompt='a red circle' -F image=@picture.png {http.url}",
            code="unsupported_media_type",
        )
