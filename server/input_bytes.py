"""`InputBytes`: what clients have sent and the server keeps, of all requests together.

A queue is bounded by the number of its requests, and each of them by its size; a few hundred
requests with large pictures would still be more than a machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope

from .errors import ApiError, busy

_SHARE = "sidestream.inputs"


class InputBytes:
    """How much is kept, and the most that may be.

    Args:
      limit: bytes.
      retry_after: tells the seconds after which there may be room.
    """

    def __init__(self, limit: int, retry_after: Callable[[], int]) -> None:
        self.held = 0
        self._limit = limit
        self._retry_after = retry_after

    def check_room(self, nbytes: int) -> None:
        """Return if there is room for so many bytes more.

        Raises:
          ApiError: there is none.
        """
        if nbytes > self._limit:
            raise ApiError(
                413, f"inputs may have {self._limit} bytes (max_input_bytes)", code="too_large"
            )
        if nbytes and self.held + nbytes > self._limit:
            raise busy(
                f"the inputs of all requests may have {self._limit} bytes (max_input_bytes);"
                " try again later",
                self._retry_after(),
            )

    @contextmanager
    def keep(self, nbytes: int) -> Iterator[None]:
        """Count bytes, which are here already, for as long as the block takes."""
        self.held += nbytes
        try:
            yield
        finally:
            self.held -= nbytes

    @contextmanager
    def share(self, scope: Scope) -> Iterator[InputShare]:
        """Let one request keep something for as long as the block takes."""
        share = scope[_SHARE] = InputShare(self)
        try:
            yield share
        finally:
            self.held -= share.held


class InputShare:
    """What one request keeps."""

    def __init__(self, inputs: InputBytes) -> None:
        self._inputs = inputs
        self.held = 0

    @classmethod
    def of(cls, scope: Scope) -> InputShare:
        """Return that of a request which `BodyLimit` has let in."""
        share: InputShare = scope[_SHARE]
        return share

    def take(self, nbytes: int) -> None:
        """Keep so many bytes more.

        Raises:
          ApiError: there is no room for them.
        """
        self._inputs.check_room(nbytes)
        self._inputs.held += nbytes
        self.held += nbytes
