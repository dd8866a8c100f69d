"""An output thread over a real segment, for tests: what it sends is read as the engine reads it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sidestream.ipc_ext import RingShutDown, Segment, SegmentLayout
from sidestream.ipc_ext.messages import AsyncDiffusionOutput, AsyncOutputKind, NewRequestData
from sidestream.workers.async_output import AsyncOutputThread
from sidestream.workers.output_queue import PendingOutput, PendingPreview
from sidestream.workers.platform import CpuPlatform, Mark

KINDS = {
    AsyncOutputKind.PROGRESS: "step",
    AsyncOutputKind.COMPUTE_DONE: "done",
    AsyncOutputKind.OUTPUT_READY: "output",
    AsyncOutputKind.CHUNK: "chunk",
    AsyncOutputKind.PREVIEW: "preview",
}
RING = 1 << 20


class Bench:
    """An output thread and the engine's end of its ring.

    The thread starts in `finish`, so that what waits for it by then is certain.
    """

    def __init__(self, engine, worker, platform):
        self.ring = engine.outputs
        self.worker_ring = worker.outputs
        self.messages = []
        self.frames = []
        self.cancelled = set()
        self.results_full = False
        self.shut_down = False
        self.thread = AsyncOutputThread(
            worker.outputs, platform, self.device_stage, self.is_cancelled, self.send, 16
        )

    def device_stage(self, tensors, output_type):
        if "poison" in tensors:
            raise RuntimeError("poisoned")
        return {name: tensor + 1 for name, tensor in tensors.items()}

    def is_cancelled(self, request):
        return request.async_output_id in self.cancelled

    def send(self, *messages, droppable=False):
        if self.shut_down:
            raise RingShutDown
        if droppable and self.results_full:
            return False
        self.frames.append([KINDS[message.kind] for message in messages])
        for message in messages:
            data = [self._read(piece) for piece in message.output]
            self.messages.append((KINDS[message.kind], message, data))
        return True

    def _read(self, piece):
        """Take a piece as the engine does, and give its room back."""
        view = self.ring.lease(piece.handle)
        data = bytes(view)
        view.release()
        return data

    def submit(self, request, tensors, *told, event=None):
        mark = Mark(1, event)
        self.thread.submit(PendingOutput(request, tensors, mark, mark, mark.event), *told)

    def show(self, request, step=1, draw=None):
        picture = torch.full((4, 4, 3), step, dtype=torch.uint8)
        return self.thread.submit_preview(
            PendingPreview(request, step, draw or (lambda: picture), None)
        )

    def finish(self):
        """Run the thread until all is delivered; return what was sent, in short."""
        if self.thread.ident is None:
            self.thread.start()
        self.thread.close()
        assert self.worker_ring.used_bytes == 0, "some room was never given back"
        return [(kind, message.async_output_id, message.step) for kind, message, _ in self.messages]

    def start(self):
        """Run the thread until it waits for something to do."""
        self.thread.start()
        while not self.thread._queue.at_rest:
            os.sched_yield()

    def run_previews(self):
        """Run the thread until it has come to the last preview that waits."""
        passed = threading.Event()
        self.show(request(99), 1, passed.set)  # draws nothing
        self.thread.start()
        assert passed.wait(10)


@contextmanager
def opened_bench(platform=None) -> Iterator[Bench]:
    """Open a bench on a device; by default on the CPU."""
    layout = SegmentLayout(output_bytes=RING)
    with (
        Segment.create(layout) as engine,
        Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as worker,
    ):
        made = Bench(engine, worker, platform or CpuPlatform())
        yield made
        engine.shut_down()
        made.thread.close()


def request(number):
    return NewRequestData(str(number), number, 0, {}, (0,), "raw")


def done(number):
    return AsyncDiffusionOutput(AsyncOutputKind.COMPUTE_DONE, async_output_id=number)
