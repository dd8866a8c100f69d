"""Putting a request's output together from the pieces that a worker sends.

A tensor that came whole is not copied: its buffer is the lease on the ring memory. One that came in
several pieces is gathered in memory of its own, and each piece is given back as soon as it is
copied.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..ipc_ext.messages import TensorPiece
from ..ipc_ext.tensors import HostTensor
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
    """A tensor of which some pieces have come."""

    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(nbytes)
        self.missing = nbytes


class OutputAssembly:
    """The tensors of one output, complete or not."""

    def __init__(self) -> None:
        self._whole: dict[str, HostTensor] = {}
        self._gathering: dict[str, _Gathering] = {}

    def add(self, piece: TensorPiece, source: PieceSource) -> None:
        """Take a piece.

        Raises:
          ProtocolError: it does not fit what its descriptor says.
        """
        nbytes = piece.descriptor.nbytes
        size = piece.handle.nbytes
        if piece.name in self._whole or piece.at + size > nbytes:
            source.release(piece)
            raise ProtocolError(
                f"a piece of {size} bytes at {piece.at} does not fit {piece.name!r}"
            )
        lease = source.lease(piece)
        if size == nbytes:
            self._finish(piece, lease)
            return
        gathering = self._gathering.setdefault(piece.name, _Gathering(nbytes))
        gathering.memory[piece.at : piece.at + size] = lease
        gathering.missing -= size
        if not gathering.missing:
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
