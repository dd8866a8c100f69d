"""The async output thread: takes a forward's tensors from the device to the output ring while the
next forward runs.

The side stream waits for the forward's end, runs the device stage, and copies into ring memory that
the engine maps too. Where the device does all that by itself, the forward's thread only puts it
into the side stream's queue, ahead of the next forward; this thread waits for the copies, and sends
the messages. Where the host has to copy or to wait for room in the ring, this thread does the whole
of it while the forward's goes on. The queue is bounded: when outputs pile up, because the ring is
full, say, the forward's thread waits, and so in the end does admission.

A thread's wake-up takes longer than copying a small output that is on the host already. So while
this thread is at rest, such an output is copied by the forward's thread, and leaves in one frame
with what is told of the forward: the engine wakes up once.

Chunks are delivered like outputs, in order, and before their request's output. Previews are made
when nothing else is to be done: they are never waited for, give way to whatever matters, and do not
come after their request's end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from ..ipc_ext import PayloadRing, RingShutDown
from ..ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    NewRequestData,
    RemoteError,
    Timings,
)
from . import faults
from .output_queue import OutputQueue, Pending, PendingChunk, PendingOutput, PendingPreview
from .platform import Platform
from .remote import ABORTED, remote_error
from .ring_writer import Pieces, RingWriter, Tensors

QUICK_BYTES = 16_384
"""Outputs up to this size, on the host already, are copied in less time than a thread's wake-up
takes."""

logger = logging.getLogger("sidestream")


class Send(Protocol):
    """How messages leave the worker."""

    def __call__(self, *messages: AsyncDiffusionOutput, droppable: bool = False) -> bool:
        """Send messages that come together; say whether they went out, which only droppable ones
        may not."""


class AsyncOutputThread(threading.Thread):
    """Runs until `close`.

    Args:
      ring: where outputs go.
      platform: of the device.
      device_stage: (tensors, output type) -> tensors, run on the side stream.
      is_cancelled: whether nobody wants a request any more.
      send: how messages leave the worker.
      limit: outputs and chunks that may wait.
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
        self._writer = RingWriter(ring, platform)
        self._platform = platform
        self._device_stage = device_stage
        self._is_cancelled = is_cancelled
        self._send = send
        self._queue = OutputQueue(limit)
        self._broken: dict[int, RemoteError] = {}
        self._copied = 0
        self._warned = False

    # ------------------------------------------------------------------ the forward's thread

    def submit(self, output: PendingOutput, *told: AsyncDiffusionOutput) -> None:
        """Hand an output over, and send what is told of its forward; blocks while too many wait.

        Args:
          output: of a request whose forward has ended.
          told: messages that do not wait for the output. They leave with it if it can be delivered
            at once. If not, steps leave before it comes, and the last message, the forward's end,
            not before there is a place for it.

        Raises:
          RingShutDown: the thread has ended, since the segment was shut.
        """
        if self._is_quick(output):
            self._deliver(output, *told)
            return
        self._begin(output)
        last = told[-1:] if self._queue.is_full else ()
        try:
            if before := told[: len(told) - len(last)]:
                self._send(*before)
            self._queue.put(output)
        except RingShutDown:
            self._drop(output)
            raise
        if last:
            self._send(*last)

    def _begin(self, output: PendingOutput) -> None:
        """Put an output's copy into the side stream's queue, if nothing is to be waited for."""
        if not (self._writer.is_direct and self._queue.has_begun):
            return
        with self._platform.side_stream(), suppress(Exception):  # the thread meets it, and tells
            output.transfer = self._writer.begin(self._staged(output))

    def _is_quick(self, output: PendingOutput) -> bool:
        """Whether an output is delivered sooner than another thread wakes up."""
        return (
            output.made is None
            and sum(tensor.nbytes for tensor in output.tensors.values()) <= QUICK_BYTES
            and self._queue.at_rest
            and self._writer.is_roomy(QUICK_BYTES)
        )

    def submit_chunk(
        self, request: NewRequestData, index: int, tensors: Tensors, event: Any
    ) -> None:
        """Hand a finished part of an output over; blocks while too many wait.

        Args:
          request: whose; its output comes later.
          index: counts from 0.
          tensors: by name, on the device; nobody changes them any more.
          event: of the device, when they are there.

        Raises:
          RingShutDown: the thread has ended, since the segment was shut.
        """
        self._queue.put(PendingChunk(request, index, tensors, event))

    def submit_preview(self, preview: PendingPreview) -> bool:
        """Offer a preview, in place of the request's last one if that still waits.

        Returns:
          Whether it was taken; it may be dropped later, too. Never blocks.
        """
        return self._queue.offer(preview)

    def withdraw(self, request: NewRequestData) -> None:
        """Forget a request that ends without an output: no preview of it goes out after this."""
        self._queue.forget(request.async_output_id)
        self._broken.pop(request.async_output_id, None)

    def close(self) -> None:
        """Deliver what waits, then end."""
        if self.is_alive():
            self._queue.finish()
            self.join()

    # ------------------------------------------------------------------ this thread

    def run(self) -> None:
        try:
            with self._platform.side_stream():
                while (item := self._queue.take()) is not None:
                    self._handle(item)
                    del item  # the device memory is free before the next wait, not after it
        except RingShutDown:
            pass  # nobody is left to deliver to
        finally:
            for item in self._queue.abandon():
                self._drop(item)

    def _handle(self, item: Pending) -> None:
        match item:
            case PendingOutput():
                self._deliver(item)
            case PendingChunk():
                self._pass_on(item)
            case PendingPreview():
                self._show(item)

    def _deliver(self, output: PendingOutput, *told: AsyncDiffusionOutput) -> None:
        request = output.request
        error = self._broken.pop(request.async_output_id, None)
        if self._is_cancelled(request):
            error = ABORTED
        if error is None:
            error = self._attempt(partial(self._transfer, output, *told))
        else:
            self._drop(output)
        if error is not None:
            message = _message(AsyncOutputKind.OUTPUT_READY, request)
            message.error = error
            self._send(*told, message)

    def _pass_on(self, chunk: PendingChunk) -> None:
        """Deliver a chunk; if that fails, so has the request, which its output's turn tells."""
        request = chunk.request
        if self._is_cancelled(request) or request.async_output_id in self._broken:
            return
        error = self._attempt(partial(self._transfer_chunk, chunk))
        if error is not None:
            self._queue.act(partial(self._note_failure, request, error))

    def _note_failure(self, request: NewRequestData, error: RemoteError) -> bool:
        self._broken[request.async_output_id] = error
        return True

    def _attempt(self, transfer: Callable[[], None]) -> RemoteError | None:
        try:
            transfer()
        except RingShutDown:
            raise
        except Exception as error:  # this request's failure, told to its caller
            return remote_error(error, fatal=self._platform.is_fatal(error))
        return None

    def _drop(self, item: PendingOutput | PendingChunk) -> None:
        """Give the room back that an item which nobody wants has taken."""
        if isinstance(item, PendingOutput) and item.transfer is not None:
            self._writer.abandon(item.transfer)

    def _staged(self, output: PendingOutput) -> Tensors:
        self._platform.wait_event(output.made)
        return self._device_stage(output.tensors, output.request.output_type)

    def _transfer(self, output: PendingOutput, *told: AsyncDiffusionOutput) -> None:
        message = _message(AsyncOutputKind.OUTPUT_READY, output.request)
        if output.transfer is None:
            tensors = self._staged(output)
            start = self._platform.mark()
            message.output = self._writer.write(tensors, partial(self._send_part, message))
            timings = self._times_of(output)
            timings.copy_start = self._platform.time_of(start)
            timings.copy_end = time.monotonic_ns()
        else:
            over = self._platform.has_happened(output.forward_end.event)
            early = self._times_of(output) if over else None  # while the device copies
            message.output = self._writer.finish(output.transfer)
            timings = early or self._times_of(output)
            # It began as soon as the forward had ended and the copy before it, too.
            timings.copy_end = self._platform.time_of(output.transfer.end)
            timings.copy_start = min(max(timings.forward_end, self._copied), timings.copy_end)
        self._copied = timings.copy_end
        message.timings = timings
        self._send_or_release(message, *told)
        faults.point("output_ready")

    def _times_of(self, output: PendingOutput) -> Timings:
        return Timings(
            forward_start=self._platform.time_of(output.forward_start),
            forward_end=self._platform.time_of(output.forward_end),
        )

    def _transfer_chunk(self, chunk: PendingChunk) -> None:
        message = _message(AsyncOutputKind.CHUNK, chunk.request, step=chunk.index)
        self._platform.wait_event(chunk.event)
        tensors = self._device_stage(chunk.tensors, chunk.request.output_type)
        message.output = self._writer.write(tensors, partial(self._send_part, message))
        self._send_or_release(message)

    def _send_part(self, message: AsyncDiffusionOutput, pieces: Pieces) -> None:
        """Send some of an output ahead; the engine copies it and gives its room back at once."""
        part = AsyncDiffusionOutput(
            message.kind, async_output_id=message.async_output_id, step=message.step
        )
        part.output, part.final = pieces, False
        self._send(part)

    def _send_or_release(self, message: AsyncDiffusionOutput, *told: AsyncDiffusionOutput) -> None:
        try:
            self._send(*told, message)
        except RingShutDown:
            raise
        except BaseException:
            self._writer.release(message.output)
            raise

    # ------------------------------------------------------------------ previews

    def _show(self, preview: PendingPreview) -> None:
        try:
            self._transfer_preview(preview)
        except RingShutDown:
            raise
        except Exception:  # a preview can be done without
            if not self._warned:
                logger.warning("previews that fail are left out", exc_info=True)
            self._warned = True

    def _transfer_preview(self, preview: PendingPreview) -> None:
        request = preview.request
        if self._is_cancelled(request):
            return
        self._platform.wait_event(preview.event)
        picture = preview.draw()
        piece = None if picture is None else self._writer.write_if_roomy("preview", picture)
        if piece is None:
            return
        message = _message(AsyncOutputKind.PREVIEW, request, step=preview.step)
        message.output = (piece,)
        sent = False
        try:
            sent = self._queue.act(
                lambda: not self._is_cancelled(request) and self._send(message, droppable=True)
            )
        finally:
            if not sent:
                self._writer.release(message.output)


def _message(
    kind: AsyncOutputKind, request: NewRequestData, *, step: int = 0
) -> AsyncDiffusionOutput:
    return AsyncDiffusionOutput(kind, async_output_id=request.async_output_id, step=step)
