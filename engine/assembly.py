"""Putting a request's output together from the pieces that a worker sends.

A tensor that came whole with the last message is not copied: its buffer is the lease on the ring
memory. What came before that is gathered in memory of its own, and each piece is given back as soon
as it is copied: an output that is not complete holds no room that its own rest may need.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..ipc_ext.messages import TensorPiece
from ..ipc_ext.tensors import HostTensor, TensorDescriptor
from .claims import ProtocolError


class PieceSource(Protocol):
    """Where pieces lie."""

    def lease(self, piece: TensorPiece) -> Any:
        """Return a read-only buffer whose last reference gives the piece back."""
        ...

    def release(self, piece: TensorPiece) -> None:
        """Give a piece back unread."""
        ...


class _Gathering:
    """A tensor of which the first bytes have come."""

    def __init__(self, descriptor: TensorDescriptor) -> None:
        self.descriptor = descriptor
        # Not a bytearray: that touches every page at once, a second for each GiB on the event loop.
        self.memory = np.empty(descriptor.nbytes, np.uint8).data
        self.filled = 0


class OutputAssembly:
    """The tensors of one output, complete or not."""

    def __init__(self) -> None:
        self._whole: dict[str, HostTensor] = {}
        self._gathering: dict[str, _Gathering] = {}

    def add(self, piece: TensorPiece, source: PieceSource, *, last: bool) -> None:
        """Take a piece; those of one tensor come in order.

        Args:
          piece: what came.
          source: where it lies.
          last: whether it came with the last message of the output.

        Raises:
          ProtocolError: it does not follow what came, or does not fit what its descriptor says.
        """
        nbytes = piece.descriptor.nbytes
        size = piece.handle.nbytes
        gathering = self._gathering.get(piece.name)
        follows = piece.name not in self._whole and (
            piece.at == 0
            if gathering is None
            else (piece.at, piece.descriptor) == (gathering.filled, gathering.descriptor)
        )
        if not follows or piece.at + size > nbytes:
            source.release(piece)
            raise ProtocolError(
                f"a piece of {size} bytes at {piece.at} does not fit {piece.name!r}"
            )
        lease = source.lease(piece)
        if size == nbytes:
            self._finish(piece, lease if last else bytearray(lease))
            return
        if gathering is None:
            gathering = self._gathering[piece.name] = _Gathering(piece.descriptor)
        gathering.memory[piece.at : piece.at + size] = lease
        gathering.filled += size
        if gathering.filled == nbytes:
            del self._gathering[piece.name]
            self._finish(piece, gathering.memory)

    def _finish(self, piece: TensorPiece, buffer: Any) -> None:
        self._whole[piece.name] = HostTensor(buffer, piece.descriptor.dtype, piece.descriptor.shape)

    def tensors(self) -> dict[str, HostTensor]:
        """Return the tensors by name.

        Raises:
          ProtocolError: one is not complete.
        """
        if self._gathering:
            raise ProtocolError(f"output ended before {', '.join(self._gathering)} was complete")
        return self._whole

    def move(self, old: dict[str, HostTensor], new: dict[str, HostTensor]) -> None:
        """Put copies in the place of `old`, unless it was handed out or dropped meanwhile."""
        if self._whole is old:
            self._whole = new

    def drop(self) -> None:
        """Forget everything; the leases go with their last reference."""
        self._whole = {}
        self._gathering = {}
