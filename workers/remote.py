"""What goes wrong in a worker, as the engine is told."""

from __future__ import annotations

import traceback

from ..ipc_ext.messages import ERROR_TEXT_LIMIT, RemoteError

ABORTED = RemoteError("Cancelled", "", aborted=True)
"""The request's cancel flag was seen."""


def remote_error(error: BaseException, *, fatal: bool = False) -> RemoteError:
    """Describe an exception."""
    text = "".join(traceback.format_exception(error))
    return RemoteError(type(error).__name__, text[-ERROR_TEXT_LIMIT:], fatal=fatal)
