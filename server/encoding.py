"""From pictures to bodies of answers, off the event loop.

A body is a list of pieces. Base64 of a large picture at once would hold Python's lock for tens of
milliseconds, and so would joining. In pieces, with the lock given up between them, the event loop
hardly waits.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import Image
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE = 3 << 18
"""Bytes of a picture in a piece; a multiple of 3, so that pieces of base64 join."""


def base64_pieces(data: bytes) -> Iterator[bytes]:
    """Encode in pieces, and let other threads run after each."""
    view = memoryview(data)
    for start in range(0, len(view), PIECE):
        yield base64.b64encode(view[start : start + PIECE])
        time.sleep(0)  # gives the lock up


def size_of(picture: bytes) -> str:
    """Return the size of an encoded picture as ``WIDTHxHEIGHT``, read from its header."""
    with Image.open(io.BytesIO(picture)) as image:
        return f"{image.width}x{image.height}"


def answer_pieces(
    pictures: Sequence[bytes], first_seed: int, fields: Mapping[str, Any]
) -> list[bytes]:
    """Make the JSON body of an answer with pictures.

    Args:
      pictures: encoded.
      first_seed: of the first picture; the next ones count up.
      fields: what else is in the answer.
    """
    pieces = [b'{"data":[']
    for index, picture in enumerate(pictures):
        pieces.append(b',{"b64_json":"' if index else b'{"b64_json":"')
        pieces += base64_pieces(picture)
        pieces.append(b'","seed":%d}' % (first_seed + index))
    size = size_of(pictures[0])
    pieces.append(b"]," + json.dumps({"size": size, **fields}).encode()[1:])
    return pieces


def event_pieces(kind: str, picture: bytes, fields: Mapping[str, Any]) -> list[bytes]:
    """Make a server-sent event with a picture."""
    head = json.dumps({"type": kind, "size": size_of(picture), **fields})[:-1]
    start = f'event: {kind}\ndata: {head}, "b64_json":"'
    return [start.encode(), *base64_pieces(picture), b'"}\n\n']


def plain_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Make a server-sent event without a picture."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


class PiecesResponse(Response):
    """An answer of JSON in pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        length = str(sum(map(len, pieces)))
        super().__init__(media_type="application/json", headers={"content-length": length})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, each piece when the client has taken the one before."""
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
