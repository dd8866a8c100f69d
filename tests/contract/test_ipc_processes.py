"""Two real processes: what one writes the other reads, whatever dies, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from sidestream.ipc_ext import Handle, Segment, SegmentLayout, WorkerState, doorbell

LAYOUT = SegmentLayout(
    submission_bytes=1 << 12, result_bytes=1 << 12, input_bytes=1 << 18, output_bytes=1 << 18
)

# Sends back every frame, and for a frame that is a handle also the payload, every byte one higher.
ECHO = """
import os, sys
import msgspec, numpy as np
from sidestream.ipc_ext import Handle, RingShutDown, Segment, WorkerState

assert "trio" not in sys.modules
segment = Segment.attach(int(sys.argv[1]), int(sys.argv[2]))
segment.control.state = WorkerState.READY
segment.results.push(b"ready")
try:
    while True:
        segment.submissions.wait()
        for frame in segment.submissions.drain():
            if frame.startswith(b"payload "):
                handle = Handle(*map(int, frame.split()[1:]))
                answer = segment.outputs.reserve_wait(handle.nbytes)
                source = np.frombuffer(segment.inputs.view(handle), np.uint8)
                target = np.frombuffer(segment.outputs.view(answer), np.uint8)
                np.add(source, 1, out=target)
                del source, target
                segment.inputs.release(handle)
                segment.outputs.commit(answer)
                frame = ("payload %d %d %d" % answer).encode()
            segment.results.push_wait(frame)
except RingShutDown:
    segment.control.state = WorkerState.STOPPING
    segment.close()
"""


class Worker:
    """A process that echoes, and the engine's side of its segment."""

    def __init__(self) -> None:
        self.segment = Segment.create(LAYOUT)
        descriptors = (self.segment.fd, self.segment.doorbell)
        self.process = subprocess.Popen(
            [sys.executable, "-c", ECHO, *map(str, descriptors)],
            pass_fds=descriptors,
            start_new_session=True,
            stderr=subprocess.PIPE,
        )

    async def frames(self, count: int) -> list[bytes]:
        """Wait for so many frames."""
        results, frames = self.segment.results, list[bytes]()
        while len(frames) < count:
            if batch := results.drain():
                frames += batch
            elif results.arm():
                await doorbell.wait(self.segment)
        return frames

    async def send(self, frame: bytes) -> None:
        """Push a frame, and sleep until there is room for it."""
        while not self.segment.submissions.push(frame):
            self.segment.submissions.arm_space()
            if self.segment.submissions.push(frame):
                return
            await doorbell.wait(self.segment)

    def end(self) -> tuple[int, str]:
        """Wait for the process; return its status and what it complained of."""
        _, complaints = self.process.communicate(timeout=60)
        return self.process.returncode, complaints.decode()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.process.kill()
    worker.process.communicate()
    worker.segment.close()


def memories_of(pid: int) -> int:
    """Return how many segments a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:sidestream")


async def test_frames_there_and_back(worker: Worker) -> None:
    numbers = random.Random(1)
    sent = [numbers.randbytes(numbers.randrange(300)) for _ in range(5000)]
    with trio.fail_after(60):
        assert await worker.frames(1) == [b"ready"]
        assert worker.segment.control.state is WorkerState.READY
        received: list[bytes] = []
        for start in range(0, len(sent), 50):
            part = sent[start : start + 50]
            for frame in part[:5]:
                await worker.send(frame)
            for frame in part[5:]:
                while not worker.segment.submissions.push(frame):
                    received += await worker.frames(1)
            received += await worker.frames(len(part) + start - len(received))
    assert received == sent
    assert worker.segment.submissions.used_bytes == worker.segment.results.used_bytes == 0


async def test_the_submission_ring_is_full(worker: Worker) -> None:
    """The worker makes room as it goes, and its drain rings for an engine that waits for room."""
    frame = bytes(1000)
    with trio.fail_after(60):
        await worker.frames(1)
        for _ in range(3):
            for _ in range(4):
                await worker.send(frame)
            assert await worker.frames(4) == [frame] * 4


async def test_payloads_there_and_back(worker: Worker) -> None:
    numbers = random.Random(2)
    inputs, outputs = worker.segment.inputs, worker.segment.outputs
    kept = []
    with trio.fail_after(60):
        await worker.frames(1)
        for round_ in range(300):
            data = numbers.randbytes(numbers.randrange(inputs.chunk_bytes + 1))
            handle = inputs.reserve(len(data))
            assert handle is not None
            inputs.view(handle)[:] = data
            inputs.commit(handle)
            await worker.send(b"payload %d %d %d" % handle)
            (answer,) = await worker.frames(1)
            handle = Handle(*map(int, answer.split()[1:]))
            expected = np.frombuffer(data, np.uint8) + np.uint8(1)
            if round_ % 7:
                assert outputs.view(handle) == expected.tobytes()
                outputs.release(handle)
                continue
            lease = outputs.lease(handle)
            if outputs.has_gap:
                kept.append((np.frombuffer(lease, np.uint8), expected))
            del lease
    assert inputs.used_bytes == 0
    assert len(kept) > 1
    for array, expected in kept:
        np.testing.assert_array_equal(array, expected)
    del array, kept
    assert outputs.used_bytes == outputs.held_bytes == 0


async def test_shutdown_ends_a_worker_that_sleeps(worker: Worker) -> None:
    with trio.fail_after(60):
        await worker.frames(1)
        assert memories_of(worker.process.pid) == 1
        worker.segment.shut_down()
        assert await trio.to_thread.run_sync(worker.end) == (0, "")
    assert worker.segment.control.state is WorkerState.STOPPING


async def test_sigint_ends_a_worker_that_sleeps(worker: Worker) -> None:
    with trio.fail_after(60):
        await worker.frames(1)
        worker.process.send_signal(signal.SIGINT)
        status, complaints = await trio.to_thread.run_sync(worker.end)
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in complaints


async def test_a_worker_that_is_killed_leaves_a_usable_segment(worker: Worker) -> None:
    """The engine can drain and release what was sent, and close; nothing is locked or left."""
    segment = worker.segment
    with trio.fail_after(60):
        await worker.frames(1)
        handle = segment.inputs.reserve(1000)
        assert handle is not None
        segment.inputs.commit(handle)
        await worker.send(b"payload %d %d %d" % handle)
        (answer,) = await worker.frames(1)
        await worker.send(b"last")
        assert await worker.frames(1) == [b"last"]
        worker.process.kill()
        await trio.to_thread.run_sync(worker.process.wait)
    array = np.frombuffer(segment.outputs.lease(Handle(*map(int, answer.split()[1:]))), np.uint8)
    assert segment.submissions.push(b"to nobody")
    before = memories_of(os.getpid())
    doorbell.close(segment)
    assert (array == 1).all()
    del array
    assert memories_of(os.getpid()) == before - 1
