"""What a server says of an error, in the shape of the OpenAI API: whatever it says, it is short."""

from __future__ import annotations

import json
from typing import Any

from .printable import printable

LONGEST_ERROR = 1 << 16
"""Bytes of an error that are looked at."""
LONGEST_MESSAGE = 300


def code_of(body: bytes) -> str:
    """Return the code of an error, else its type, else ``"unknown"``."""
    error = _error(body)
    for code in (error.get("code"), error.get("type")):
        if code and isinstance(code, (str, int)):
            return printable(str(code))
    return "unknown"


def message_of(body: bytes, otherwise: str) -> str:
    """Return the message of an error, or of what is told if it has none."""
    message = _error(body).get("message")
    return printable(message if isinstance(message, str) else otherwise, LONGEST_MESSAGE)


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return error if isinstance(error, dict) else {}
