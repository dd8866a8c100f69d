"""Leases: the last reference releases, wherever it dies, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sidestream.ipc_ext import Handle, Lease, Segment, SegmentLayout

NBYTES = 5000
LAYOUT = SegmentLayout(submission_bytes=64, result_bytes=64, input_bytes=1, output_bytes=1 << 20)


def mappings() -> int:
    """Return how many segments are mapped into this process."""
    return Path("/proc/self/maps").read_text().count("memfd:sidestream")


def descriptors() -> set[str]:
    """Return the open descriptors of this process."""
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.collect()
    before = mappings(), descriptors()
    yield
    gc.collect()
    assert (mappings(), descriptors()) == before


@pytest.fixture
def engine() -> Iterator[Segment]:
    with Segment.create(LAYOUT) as segment:
        yield segment


@pytest.fixture
def worker(engine: Segment) -> Iterator[Segment]:
    with Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as segment:
        yield segment


def send(worker: Segment, fill: int = 1) -> Handle:
    """Commit a payload of one repeated byte."""
    handle = worker.outputs.reserve(NBYTES)
    assert handle is not None
    worker.outputs.view(handle)[:] = bytes([fill]) * NBYTES
    worker.outputs.commit(handle)
    return handle


def test_whatever_is_built_on_it_keeps_it(engine: Segment, worker: Segment) -> None:
    lease = engine.outputs.lease(send(worker, 7))
    array = (
        np.frombuffer(lease, np.uint8)[100:].reshape(70, 70)[3, ::2].astype(np.uint8, copy=False)
    )
    view = lease[5:10]
    del lease
    assert engine.outputs.held_bytes == NBYTES
    assert (array == 7).all()
    del array
    assert worker.outputs.used_bytes > 0
    assert view == bytes([7]) * 5
    del view
    assert worker.outputs.used_bytes == engine.outputs.held_bytes == 0


def test_it_is_read_only(engine: Segment, worker: Segment) -> None:
    lease = engine.outputs.lease(send(worker))
    with pytest.raises(TypeError):
        lease[0] = 1
    array = np.frombuffer(lease, np.uint8)
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_after_close_the_mapping_lives_as_long_as_the_array(
    engine: Segment, worker: Segment
) -> None:
    before = mappings()
    array = np.frombuffer(engine.outputs.lease(send(worker, 9)), np.uint8)
    engine.close()
    assert mappings() == before
    assert (array == 9).all()
    assert worker.outputs.used_bytes > 0
    del array
    assert mappings() == before - 1
    assert worker.outputs.used_bytes == 0


def test_after_close_a_view_keeps_the_mapping(engine: Segment, worker: Segment) -> None:
    before = mappings()
    view = worker.outputs.view(send(worker, 4))
    region = worker.outputs.region()
    worker.close()
    assert view[0] == 4
    del view
    assert mappings() == before
    del region
    assert mappings() == before - 1


def test_a_lease_that_ends_after_close_still_rings(engine: Segment, worker: Segment) -> None:
    """The worker holds an input while it closes; its end must not reach a reused descriptor."""
    handle = engine.inputs.reserve(10)
    assert handle is not None
    engine.inputs.commit(handle)
    lease = worker.inputs.lease(handle)
    number = worker.doorbell
    worker.close()
    reader, writer = os.pipe()
    if number not in (reader, writer):
        os.dup2(writer, number)
    engine.inputs.arm_space()
    del lease
    assert os.eventfd_read(engine.doorbell) == 1
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 8)
    for descriptor in {reader, writer, number}:
        os.close(descriptor)


def test_a_reference_cycle_ends_with_its_collection(engine: Segment, worker: Segment) -> None:
    class Result:
        def __init__(self, lease: Lease) -> None:
            self.array = np.frombuffer(lease, np.uint8)
            self.itself = self

    gc.disable()
    try:
        Result(engine.outputs.lease(send(worker)))
        assert engine.outputs.held_bytes == NBYTES
        gc.collect()
        assert engine.outputs.held_bytes == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("lease_first", [True, False])
@pytest.mark.parametrize("close", [True, False])
def test_one_collection_may_end_all_of_it(lease_first: bool, close: bool) -> None:
    """The collector calls finalisers in any order: the ring's may come before its lease's."""
    gc.disable()
    try:
        cycle: list[object] = []
        segment = Segment.create(LAYOUT)
        handle = send(segment)
        cycle += [segment.outputs.lease(handle), segment.outputs, segment.outputs.region(), segment]
        cycle += [cycle] if lease_first else [list(reversed(cycle)), cycle]
        (segment.close if close else segment.shut_down)()
        descriptors = [number for number in (segment.fd, segment.doorbell) if number >= 0]
        del segment, cycle
        gc.collect()
        for number in descriptors:
            os.close(number)
    finally:
        gc.enable()


def test_any_thread_may_be_the_last(engine: Segment, worker: Segment) -> None:
    """Threads take leases out of a queue and drop them, while the worker refills the ring."""
    leases: queue.SimpleQueue[Lease] = queue.SimpleQueue()
    rounds = 2000

    def drop() -> None:
        for _ in range(rounds // 4):
            lease = leases.get()
            assert lease[0] == lease[NBYTES - 1]
            del lease

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for fill in range(rounds):
        handle = worker.outputs.reserve_wait(NBYTES, timeout=60)
        worker.outputs.view(handle)[:] = bytes([fill % 256]) * NBYTES
        worker.outputs.commit(handle)
        leases.put(engine.outputs.lease(handle))
    for thread in threads:
        thread.join()
    assert engine.outputs.held_bytes == worker.outputs.used_bytes == 0


def test_many_segments_leave_nothing(engine: Segment) -> None:
    before = mappings(), descriptors()
    for _ in range(50):
        with (
            Segment.create(LAYOUT) as one,
            Segment.attach(os.dup(one.fd), os.dup(one.doorbell)) as two,
        ):
            two.results.push(b"x")
            array = np.frombuffer(one.outputs.lease(send(two)), np.uint8)
        assert array[0] == 1
        del array
    assert (mappings(), descriptors()) == before


PROGRAM = """
import numpy as np
from sidestream.ipc_ext import Segment, SegmentLayout
segment = Segment.create(SegmentLayout(64, 64, 1, 1))
handle = segment.outputs.reserve(10)
segment.outputs.commit(handle)
kept = np.frombuffer(segment.outputs.lease(handle), np.uint8)
class AtExit:
    array = kept
    def __del__(self):
        self.array = None
forgotten = AtExit()
forgotten.itself = forgotten
if {close}:
    segment.close()
"""


@pytest.mark.parametrize("close", [True, False])
def test_an_interpreter_with_a_live_lease_ends_quietly(close: bool) -> None:
    program = PROGRAM.format(close=close)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
