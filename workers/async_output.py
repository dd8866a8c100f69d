"""The async output thread: takes a forward's tensors from the device to the output ring while the
next forward runs.

The forward's thread hands over (tensors, device event) and goes on. Here the side stream waits for
the event, runs the device stage, and copies into ring memory that the engine maps too; then
OUTPUT_READY. The queue is bounded: when outputs pile up, because the ring is full, say, the
forward's thread waits, and so in the end does admission.

An output of up to a quarter of the ring travels in place: the engine reads where the copy wrote. A
larger one, or one of very many tensors, goes piece by piece, each given back by the engine as soon
as it has copied it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..ipc_ext import Handle, PayloadRing, RingShutDown
from ..ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    NewRequestData,
    RemoteError,
    TensorPiece,
    Timings,
)
from ..ipc_ext.tensors import TensorDescriptor
from . import faults
from .platform import Mark, Platform, bytes_of
from .remote import ABORTED, remote_error

PIECE_BYTES = 4 << 20
"""Of an output that is too large to travel in place; the engine copies so much in about a
millisecond."""
PIECES_LIMIT = 64
"""Pieces in one message, which has to fit into the result ring."""

Tensors = dict[str, torch.Tensor]


class Send(Protocol):
    """How messages leave the worker."""

    def __call__(self, message: AsyncDiffusionOutput, *, droppable: bool = False) -> None: ...


@dataclass(slots=True)
class PendingOutput:
    """An output on its way."""

    request: NewRequestData
    tensors: Tensors
    forward_start: Mark
    forward_end: Mark


class AsyncOutputThread(threading.Thread):
    """Runs until `close`.

    Args:
      ring: where outputs go.
      platform: of the device.
      device_stage: (tensors, output type) -> tensors, run on the side stream.
      is_cancelled: whether nobody wants a request any more.
      send: how messages leave the worker.
      limit: outputs that may wait.
    """

    def __init__(
        self,
        ring: PayloadRing,
        platform: Platform,
        device_stage: Callable[[Tensors, str], Tensors],
        is_cancelled: Callable[[NewRequestData], bool],
        send: Send,
        limit: int,
    ) -> None:
        super().__init__(name="sidestream-output", daemon=True)
        self._ring = ring
        self._platform = platform
        self._device_stage = device_stage
        self._is_cancelled = is_cancelled
        self._send = send
        self._queue: queue.Queue[PendingOutput | None] = queue.Queue(limit)
        self._over = False

    def submit(self, output: PendingOutput) -> None:
        """Hand an output over; blocks while too many wait.

        Raises:
          RingShutDown: the thread has ended, since the segment was shut.
        """
        if self._over:
            raise RingShutDown("the output thread has ended")
        self._queue.put(output)

    def close(self) -> None:
        """Deliver what waits, then end."""
        if self.is_alive():
            self._queue.put(None)
            self.join()

    def run(self) -> None:
        try:
            with self._platform.side_stream():
                while (output := self._queue.get()) is not None:
                    self._deliver(output)
                    del output  # the device memory is free before the next wait, not after it
        except RingShutDown:
            pass  # nobody is left to deliver to
        finally:
            self._over = True
            while not self._queue.empty():  # a `submit` that waits for room gets it
                self._queue.get()

    def _deliver(self, output: PendingOutput) -> None:
        request = output.request
        if self._is_cancelled(request):
            self._finish(request, error=ABORTED)
            return
        try:
            self._transfer(output)
        except RingShutDown:
            raise
        except Exception as error:  # this request's failure, told to its caller
            self._finish(request, error=remote_error(error, fatal=self._platform.is_fatal(error)))

    def _transfer(self, output: PendingOutput) -> None:
        request = output.request
        self._platform.wait_event(output.forward_end.event)
        tensors = self._device_stage(output.tensors, request.output_type)
        flat = {name: bytes_of(tensor) for name, tensor in tensors.items()}
        in_place = sum(data.numel() for data in flat.values()) <= self._ring.chunk_bytes
        limit = self._ring.chunk_bytes if in_place else min(PIECE_BYTES, self._ring.chunk_bytes)
        copy_start = time.monotonic_ns()
        pieces: list[TensorPiece] = []
        try:
            for name, data in flat.items():
                descriptor = _describe(tensors[name])
                for at in range(0, max(data.numel(), 1), limit):
                    part = data[at : at + limit]
                    handle = self._ring.reserve(part.numel())
                    if handle is None:
                        self._send_part(request, pieces)  # never wait for room while holding some
                        handle = self._ring.reserve_wait(part.numel())
                    pieces.append(TensorPiece(name, descriptor, handle, at))
                    faults.point("reserved")
                    self._copy(part, handle)
                    if not in_place or len(pieces) == PIECES_LIMIT:
                        self._send_part(request, pieces)
            self._wait_for_copies()
            faults.point("copied")
            self._commit(pieces)
            timings = Timings(
                forward_start=self._platform.time_of(output.forward_start),
                forward_end=self._platform.time_of(output.forward_end),
                copy_start=copy_start,
                copy_end=time.monotonic_ns(),
            )
            self._send(_ready(request, tuple(pieces), timings=timings))
        except RingShutDown:
            raise
        except BaseException:
            for piece in pieces:
                self._ring.release(piece.handle)
            raise
        faults.point("output_ready")

    def _send_part(self, request: NewRequestData, pieces: list[TensorPiece]) -> None:
        """Send some of an output ahead; the engine copies it and gives its room back at once."""
        if pieces:
            self._wait_for_copies()
            self._commit(pieces)
            self._send(_ready(request, tuple(pieces), final=False))
            pieces.clear()

    def _copy(self, data: torch.Tensor, handle: Handle) -> None:
        if data.numel():
            target = torch.frombuffer(self._ring.view(handle), dtype=torch.uint8)
            self._platform.copy_to_host(target, data)

    def _wait_for_copies(self) -> None:
        self._platform.synchronize_event(self._platform.record_device_event())

    def _commit(self, pieces: list[TensorPiece]) -> None:
        for piece in pieces:
            self._ring.commit(piece.handle)

    def _finish(self, request: NewRequestData, error: RemoteError) -> None:
        self._send(_ready(request, (), error=error))


def _ready(
    request: NewRequestData,
    pieces: tuple[TensorPiece, ...],
    *,
    final: bool = True,
    error: RemoteError | None = None,
    timings: Timings | None = None,
) -> AsyncDiffusionOutput:
    return AsyncDiffusionOutput(
        AsyncOutputKind.OUTPUT_READY,
        async_output_id=request.async_output_id,
        output=pieces,
        final=final,
        error=error,
        timings=timings,
    )


def _describe(tensor: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
