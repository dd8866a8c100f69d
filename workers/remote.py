"""What goes wrong in a worker, as the engine is told."""

from __future__ import annotations

import traceback

from ..ipc_ext.messages import ERROR_TEXT_LIMIT, RemoteError

ABORTED = RemoteError("Cancelled", "", aborted=True)
"""The request's cancel flag was seen."""


_TYPE_LIMIT = 256


def remote_error(error: BaseException, *, fatal: bool = False) -> RemoteError:
    """Describe an exception."""
    text = "".join(traceback.format_exception(error))
    return as_remote(type(error).__name__, text, fatal=fatal)


def as_remote(type_name: str, text: str, *, fatal: bool = False) -> RemoteError:
    """Describe an exception by its class name and traceback, whatever they hold: this can always be
    sent."""
    return RemoteError(
        _unicode(type_name)[:_TYPE_LIMIT], _unicode(text)[-ERROR_TEXT_LIMIT:], fatal=fatal
    )


def _unicode(text: str) -> str:
    """Escape lone surrogates, as in the names of files: UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
