"""From tensors on the device to bytes in the output ring, which the engine maps too.

A tensor of up to a quarter of the ring is copied in one piece, and read where it lies. Larger ones,
or very many, go piece by piece, each given back by the engine as soon as it has copied it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ..ipc_ext import Handle, PayloadRing, RingShutDown
from ..ipc_ext.messages import TensorPiece
from ..ipc_ext.tensors import TensorDescriptor
from . import faults
from .platform import Mark, Platform, bytes_of

PIECE_BYTES = 4 << 20
"""Of an output that is too large to travel in place; the engine copies so much in about a
millisecond."""
PIECES_LIMIT = 64
"""Pieces in one message, which has to fit into the result ring."""

FASTEST = 64e9
"""Bytes that a device copies to the host in a second, at best: PCIe 5."""

Tensors = dict[str, torch.Tensor]
Pieces = tuple[TensorPiece, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies that the device makes, or has made."""

    pieces: Pieces
    end: Mark


class RingWriter:
    """Writes into one ring, on the current stream of the thread that calls it.

    Args:
      ring: where tensors go.
      platform: of the device that they are on.
    """

    def __init__(self, ring: PayloadRing, platform: Platform) -> None:
        self._ring = ring
        self._platform = platform

    def begin(self, tensors: Tensors) -> Transfer | None:
        """Have the device copy tensors, without waiting for anything.

        Args:
          tensors: by name.

        Returns:
          What to `finish` or to `abandon`; None if there is no room now, if the tensors are too
          large to travel in place, or if the host would have to copy.

        Raises:
          Exception: what the device raised; no piece is left behind.
        """
        flat = {name: bytes_of(tensor) for name, tensor in tensors.items()}
        nbytes = sum(data.numel() for data in flat.values())
        if not self.is_direct or nbytes > self._ring.chunk_bytes or len(flat) > PIECES_LIMIT:
            return None
        pieces: list[TensorPiece] = []
        for name, data in flat.items():
            handle = self._ring.reserve(data.numel())
            if handle is None:
                self.release(pieces)
                return None
            pieces.append(TensorPiece(name, _describe(tensors[name]), handle))
        faults.point("reserved")
        try:
            for data, piece in zip(flat.values(), pieces, strict=True):
                self._copy(data, piece.handle)
            return Transfer(tuple(pieces), self._platform.mark())
        except BaseException:
            self._withdraw(pieces)
            raise

    @property
    def is_direct(self) -> bool:
        """Whether the device copies into the ring by itself."""
        return self._platform.writes_to(self._ring.address)

    def finish(self, transfer: Transfer) -> Pieces:
        """Wait for copies, and return what is to be sent.

        Raises:
          Exception: what the device raised; no piece is left behind.
        """
        nbytes = sum(piece.handle.nbytes for piece in transfer.pieces)
        time.sleep(nbytes / FASTEST)  # meanwhile nothing can have happened
        try:
            self._platform.synchronize_event(transfer.end.event)
        except BaseException:
            self.release(transfer.pieces)
            raise
        self._commit(transfer.pieces)
        return transfer.pieces

    def abandon(self, transfer: Transfer) -> None:
        """Give the room of copies that nobody wants back, once the device is done with it."""
        with suppress(Exception):  # a device that is lost copies nothing any more
            self._platform.synchronize_event(transfer.end.event)
        self.release(transfer.pieces)

    def write(self, tensors: Tensors, send_part: Callable[[Pieces], None]) -> Pieces:
        """Copy tensors, and wait for room and for the copies.

        Args:
          tensors: by name.
          send_part: sends pieces ahead, of tensors that do not fit as a whole.

        Returns:
          The pieces that are not sent yet; the caller sends them.

        Raises:
          RingShutDown: the segment was shut.
          Exception: what the device raised; no piece is left behind.
        """
        flat = {name: bytes_of(tensor) for name, tensor in tensors.items()}
        in_place = sum(data.numel() for data in flat.values()) <= self._ring.chunk_bytes
        limit = self._ring.chunk_bytes if in_place else min(PIECE_BYTES, self._ring.chunk_bytes)
        pieces: list[TensorPiece] = []

        def send() -> None:
            if pieces:
                self._finish(pieces)
                send_part(tuple(pieces))
                pieces.clear()

        try:
            for name, data in flat.items():
                descriptor = _describe(tensors[name])
                for at in range(0, max(data.numel(), 1), limit):
                    part = data if data.numel() <= limit else data[at : at + limit]
                    handle = self._ring.reserve(part.numel())
                    if handle is None:
                        send()  # never wait for room while holding some
                        handle = self._ring.reserve_wait(part.numel())
                    pieces.append(TensorPiece(name, descriptor, handle, at))
                    faults.point("reserved")
                    self._copy(part, handle)
                    if not in_place or len(pieces) == PIECES_LIMIT:
                        send()
            self._finish(pieces)
        except RingShutDown:
            raise
        except BaseException:
            self._withdraw(pieces)
            raise
        return tuple(pieces)

    def write_if_roomy(self, name: str, tensor: torch.Tensor) -> TensorPiece | None:
        """Copy a tensor that can be done without: only if it leaves half of the ring to others.

        Returns:
          Its only piece, or None if the ring is too full or too small for it.
        """
        data = bytes_of(tensor)
        if data.numel() > self._ring.chunk_bytes or not self.is_roomy(data.numel()):
            return None
        handle = self._ring.reserve(data.numel())
        if handle is None:
            return None
        piece = TensorPiece(name, _describe(tensor), handle)
        try:
            self._copy(data, handle)
            self._finish([piece])
        except RingShutDown:
            raise
        except BaseException:
            self._withdraw([piece])
            raise
        return piece

    def is_roomy(self, nbytes: int) -> bool:
        """Whether half of the ring is free beside so many bytes."""
        return 2 * (self._ring.free_bytes - nbytes) >= self._ring.capacity

    def release(self, pieces: Sequence[TensorPiece]) -> None:
        """Give the room of pieces back that are not to be sent."""
        for piece in pieces:
            self._ring.release(piece.handle)

    def _copy(self, data: torch.Tensor, handle: Handle) -> None:
        if data.numel():
            target = torch.frombuffer(self._ring.view(handle), dtype=torch.uint8)
            self._platform.copy_to_host(target, data)

    def _finish(self, pieces: Sequence[TensorPiece]) -> None:
        self._platform.synchronize_event(self._platform.record_device_event())
        self._commit(pieces)

    def _commit(self, pieces: Sequence[TensorPiece]) -> None:
        faults.point("copied")
        for piece in pieces:
            self._ring.commit(piece.handle)

    def _withdraw(self, pieces: Sequence[TensorPiece]) -> None:
        """Give room back that copies under way may still go to."""
        with suppress(Exception):
            self._platform.synchronize_event(self._platform.record_device_event())
        self.release(pieces)


def _describe(tensor: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor(_name_of(tensor.dtype), tuple(tensor.shape))


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
