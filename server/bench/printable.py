"""`printable`: what others have written, fit for a line of a terminal."""

from __future__ import annotations

LONGEST = 60


def printable(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a text in ASCII, with escapes for all that does not print.

    Args:
      text: may be of any length, and hold anything.
      longest: characters of the result.
    """
    escaped = text[: longest + 1].encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= longest else escaped[: longest - 3] + "..."
