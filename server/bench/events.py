"""`EventReader`: follows the server-sent events of an answer without keeping its pictures."""

from __future__ import annotations

from collections.abc import Callable

from .errors import LONGEST_ERROR, code_of

LONGEST_LINE = 1 << 27
"""Bytes; a line holds a picture, and one of 4096 x 4096 pixels can be 65 MiB in base64."""


class EventReader:
    """Takes bytes as they come, and holds no more than the beginning of one line.

    Args:
      on_partial: called at the first partial image.
    """

    def __init__(self, on_partial: Callable[[], object]) -> None:
        self.code: str | None = "incomplete"
        """What went wrong so far, None if nothing did."""
        self._on_partial: Callable[[], object] | None = on_partial
        self._event = b""
        self._line = b""
        self._length = 0

    @property
    def is_too_long(self) -> bool:
        """True within a line that is longer than any picture."""
        return self._length > LONGEST_LINE

    def feed(self, data: bytes) -> None:
        """Take what follows."""
        for piece in data.splitlines(keepends=True):
            self._length += len(piece)
            self._line += piece[: LONGEST_ERROR - len(self._line)]
            if piece.endswith((b"\n", b"\r")):
                self._take(self._line)
                self._line, self._length = b"", 0

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.strip()
            if self._event.endswith(b".completed"):
                self.code = None
            elif self._event.endswith(b".partial_image") and self._on_partial is not None:
                self._on_partial()
                self._on_partial = None
        elif name == b"data" and self._event == b"error":
            self.code = code_of(value)
