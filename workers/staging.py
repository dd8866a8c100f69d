"""`StagedCopy`: from a device into host memory that it cannot reach: the way round."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

PIECE_BYTES = 4 << 20
"""Long enough that starting a transfer costs nothing beside it, short enough for caches."""


class StagedCopy:
    """Copies piece by piece through two buffers: while the device fills one, the host empties the
    other.

    Args:
      allocate: makes a buffer of so many bytes that the device can reach, uint8.
      record: marks the work issued so far on the current stream.
      wait: waits on the host for such a mark.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        record: Callable[[], Any],
        wait: Callable[[Any], None],
    ) -> None:
        self._allocate = allocate
        self._record = record
        self._wait = wait
        self._buffers: list[torch.Tensor] | None = None
        self._lock = threading.Lock()

    def copy(self, target: torch.Tensor, data: torch.Tensor) -> None:
        """Copy bytes; they are there when this returns.

        Args:
          target: uint8, one-dimensional, on the host.
          data: the same, on the device.
        """
        with self._lock:
            if self._buffers is None:
                self._buffers = [self._allocate(PIECE_BYTES) for _ in range(2)]
            filling: tuple[torch.Tensor, torch.Tensor, Any] | None = None
            for index, at in enumerate(range(0, data.numel(), PIECE_BYTES)):
                place, piece = (part[at : at + PIECE_BYTES] for part in (target, data))
                buffer = self._buffers[index % 2][: piece.numel()]
                buffer.copy_(piece, non_blocking=True)
                previous, filling = filling, (place, buffer, self._record())
                self._empty(previous)
            self._empty(filling)

    def _empty(self, filled: tuple[torch.Tensor, torch.Tensor, Any] | None) -> None:
        if filled is not None:
            place, buffer, event = filled
            self._wait(event)
            place.copy_(buffer)
