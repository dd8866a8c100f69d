"""`VideoFile`: a video as it is sent, the whole of it or the part that a player asks for."""

from __future__ import annotations

import re

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError

PIECE = 1 << 18
"""Bytes of a file that are sent at a time."""
_ONE_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*", re.IGNORECASE)


class VideoFile(Response):
    """An answer that is a file, each piece sent when the client has taken the one before.

    Args:
      data: the file.
      etag: its name, quoted; no other file has it.
      wanted: the header ``Range``, if there is one.
      if_range: the header ``If-Range``: a part is of use only beside others of this file.

    Raises:
      ApiError: the file has no such part.
    """

    def __init__(
        self, data: bytes, etag: str, wanted: str | None = None, if_range: str | None = None
    ) -> None:
        part = None
        if wanted is not None and if_range in (None, etag):
            part = part_of(wanted, len(data))
        self._data = data
        self._part = range(len(data)) if part is None else part
        headers = {
            "content-length": str(len(self._part)),
            "accept-ranges": "bytes",
            "etag": etag,
        }
        if part is not None:
            headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{len(data)}"
        super().__init__(
            status_code=200 if part is None else 206, media_type="video/mp4", headers=headers
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        if scope["method"] != "HEAD":
            for begin in range(self._part.start, self._part.stop, PIECE):
                piece = self._data[begin : min(begin + PIECE, self._part.stop)]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def part_of(wanted: str, size: int) -> range | None:
    """Return the part of a file that a ``Range`` asks for (RFC 9110, 14.1.2).

    Args:
      wanted: the header.
      size: of the file, bytes.

    Returns:
      None if the whole file is to be sent, as for what is no range, and for several of them.

    Raises:
      ApiError: the file has no such part.
    """
    match = _ONE_RANGE.fullmatch(wanted)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":
        part = range(max(0, size - int(last)), size)
    elif last == "":
        part = range(int(first), size)
    elif int(last) < int(first):
        return None
    else:
        part = range(int(first), min(int(last) + 1, size))
    if not part:
        raise ApiError(
            416,
            f"Range: the file has {size} bytes",
            code="invalid_value",
            param="Range",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return part
