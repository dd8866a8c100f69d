"""Segment: what it is made of, what it refuses, and the control block."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sidestream.ipc_ext import (
    CorruptSegment,
    RingShutDown,
    Segment,
    SegmentError,
    SegmentLayout,
    StaleHandle,
    WorkerState,
)

LAYOUT = SegmentLayout(
    submission_bytes=128, result_bytes=256, input_bytes=1, output_bytes=1, cancel_slots=4
)


@pytest.fixture
def engine() -> Iterator[Segment]:
    with Segment.create(LAYOUT) as segment:
        yield segment


@pytest.fixture
def worker(engine: Segment) -> Iterator[Segment]:
    with Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as segment:
        yield segment


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("submission_bytes", 100),
        ("submission_bytes", 0),
        ("result_bytes", 32),
        ("result_bytes", 1 << 31),
        ("input_bytes", 0),
        ("output_bytes", -1),
        ("output_bytes", 1 << 64),
        ("output_bytes", 1 << 63),
        ("cancel_slots", 0),
        ("cancel_slots", 1 << 30),
    ],
)
def test_impossible_layouts(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}={value}")):
        Segment.create(replace(LAYOUT, **{field: value}))


def test_too_little_memory_is_an_error_and_leaves_nothing() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="more than the memory there is"):
        Segment.create(replace(LAYOUT, output_bytes=1 << 44))
    assert os.listdir("/proc/self/fd") == before


def test_it_is_sealed_and_has_no_name(engine: Segment) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(engine.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(engine.fd, 1 << 30)
    with pytest.raises(PermissionError):
        fcntl.fcntl(engine.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.readlink(f"/proc/self/fd/{engine.fd}").startswith("/memfd:sidestream")
    assert not [name for name in os.listdir("/dev/shm") if "sidestream" in name]
    assert not os.get_inheritable(engine.fd)
    assert not os.get_inheritable(engine.doorbell)


def test_a_doorbell_may_be_shared(engine: Segment) -> None:
    with (
        Segment.create(LAYOUT, os.dup(engine.doorbell)) as second,
        Segment.attach(os.dup(second.fd), os.dup(second.doorbell)) as worker,
    ):
        assert second.results.arm()
        worker.results.push(b"")
        assert os.eventfd_read(engine.doorbell) == 1


def refusal(fd: int, doorbell: int) -> str:
    """Return why an attachment fails."""
    with pytest.raises(SegmentError) as caught:
        Segment.attach(fd, doorbell)
    os.fstat(fd)  # it is still the caller's
    return str(caught.value)


def test_what_attach_refuses(engine: Segment) -> None:
    reader, writer = os.pipe()
    assert "not a memfd" in refusal(reader, engine.doorbell)
    os.close(reader)
    os.close(writer)
    fd = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    assert "not sealed" in refusal(fd, engine.doorbell)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    empty = os.memfd_create("empty", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(empty, fcntl.F_ADD_SEALS, seals)
    assert "is empty" in refusal(empty, engine.doorbell)
    os.ftruncate(fd, 1 << 16)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    assert "not a sidestream segment" in refusal(fd, engine.doorbell)
    assert "doorbell" in refusal(engine.fd, -1)
    os.close(fd)
    os.close(empty)


@pytest.mark.parametrize(
    ("offset", "reason"),
    [(0, "not a sidestream"), (8, "version"), (16, "size"), (24, "impossible"), (64, "offsets")],
)
def test_a_damaged_header_is_refused(engine: Segment, offset: int, reason: str) -> None:
    os.pwrite(engine.fd, b"\xff", offset)
    assert reason in refusal(engine.fd, engine.doorbell)


def test_it_has_one_worker_in_its_life(engine: Segment, worker: Segment) -> None:
    assert "before" in refusal(engine.fd, engine.doorbell)


def test_close_and_shut_down_are_idempotent(engine: Segment, worker: Segment) -> None:
    worker.shut_down()
    worker.shut_down()
    worker.close()
    worker.close()
    worker.shut_down()
    assert worker.fd == worker.doorbell == -1


def test_close_from_many_threads_closes_once(engine: Segment) -> None:
    start = threading.Barrier(4)

    def close() -> None:
        start.wait()
        engine.close()

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.fd == -1


# -- control block


def test_cancel_flags(engine: Segment, worker: Segment) -> None:
    assert not worker.control.is_cancelled(3, 10)
    engine.control.cancel(3, 10)
    assert worker.control.is_cancelled(3, 10)
    assert not worker.control.is_cancelled(3, 11)
    assert not worker.control.is_cancelled(2, 10)
    engine.control.cancel(3, (1 << 64) - 1)
    assert worker.control.is_cancelled(3, (1 << 64) - 1)
    assert not worker.control.is_cancelled(3, 10)
    for slot, ticket in ((4, 1), (0, 0)):
        with pytest.raises(IndexError):
            engine.control.cancel(slot, ticket)
        with pytest.raises(IndexError):
            worker.control.is_cancelled(slot, ticket)


def test_heartbeat(engine: Segment, worker: Segment) -> None:
    """It counts from the segment's start until the first beat, and from the last one after that."""
    since_start = engine.control.heartbeat_age()
    assert 0 <= since_start < 60
    start = time.monotonic()
    worker.control.beat()
    assert 0 <= engine.control.heartbeat_age() <= time.monotonic() - start


def test_state(engine: Segment, worker: Segment) -> None:
    assert engine.control.state is WorkerState.STARTING
    for state in WorkerState:
        worker.control.state = state
        assert engine.control.state is state
    worker.control.state = 77  # type: ignore[assignment]
    with pytest.raises(CorruptSegment):
        _ = engine.control.state


def test_closed_is_shut(engine: Segment) -> None:
    control = engine.control
    engine.close()
    for use in (control.beat, control.heartbeat_age, lambda: control.state):
        with pytest.raises(RingShutDown):
            use()
    with pytest.raises(RingShutDown):
        control.cancel(0, 1)
    with pytest.raises(RingShutDown):
        control.is_cancelled(0, 1)
    with pytest.raises(RingShutDown):
        control.state = WorkerState.READY


# -- an output ring that grows

MEBIBYTE = 1 << 20
GROWING = replace(LAYOUT, output_bytes=256 * MEBIBYTE)


def pages_of(segment: Segment) -> int:
    """Return the bytes that the segment's file has pages for."""
    return os.fstat(segment.fd).st_blocks * 512


@pytest.fixture
def pair() -> Iterator[tuple[Segment, Segment]]:
    """A segment without memory for outputs, and its worker's side."""
    with (
        Segment.create(GROWING, outputs=False) as engine,
        Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as worker,
    ):
        yield engine, worker


def test_outputs_have_memory_when_they_are_opened(pair: tuple[Segment, Segment]) -> None:
    engine, worker = pair
    assert pages_of(engine) < 4 * MEBIBYTE
    for segment in (worker, engine):
        segment.open_outputs(MEBIBYTE - 1)
        assert segment.outputs.capacity == MEBIBYTE
        assert segment.outputs.chunk_bytes == MEBIBYTE // 4
        assert segment.outputs.region().nbytes == MEBIBYTE
        assert MEBIBYTE <= pages_of(engine) < 5 * MEBIBYTE
    assert engine.outputs.limit == 256 * MEBIBYTE


def test_a_ring_grows_under_its_payloads(pair: tuple[Segment, Segment]) -> None:
    engine, worker = pair
    for segment in (worker, engine):
        segment.open_outputs(MEBIBYTE)
    handle = worker.outputs.reserve(5)
    assert handle is not None
    worker.outputs.view(handle)[:] = b"early"
    worker.outputs.commit(handle)
    early = engine.outputs.lease(handle)
    for segment in (worker, engine):
        segment.open_outputs(64 * MEBIBYTE)
    handle = worker.outputs.reserve(16 * MEBIBYTE)
    assert handle is not None
    assert handle.offset > 0
    worker.outputs.view(handle)[-4:] = b"late"
    worker.outputs.commit(handle)
    late = engine.outputs.lease(handle)
    assert (bytes(early), bytes(late[-4:])) == (b"early", b"late")
    del early, late
    assert worker.outputs.used_bytes == 0
    assert engine.outputs.held_bytes == 0


def test_what_open_outputs_refuses(pair: tuple[Segment, Segment]) -> None:
    engine, worker = pair
    for nbytes in (0, 256 * MEBIBYTE + 1):
        with pytest.raises(ValueError, match="cannot have"):
            worker.open_outputs(nbytes)
    for segment in (worker, engine):
        segment.open_outputs(2 * MEBIBYTE)
    assert worker.outputs.reserve(1) is not None
    with pytest.raises(ValueError, match="in use"):
        worker.open_outputs(MEBIBYTE)
    assert worker.outputs.capacity == 2 * MEBIBYTE
    engine.close()
    with pytest.raises(RingShutDown):
        engine.open_outputs(MEBIBYTE)


def test_a_handle_beyond_the_ring_is_refused(pair: tuple[Segment, Segment]) -> None:
    """The engine's bounds are its own, whatever the worker believes to have."""
    engine, worker = pair
    engine.open_outputs(MEBIBYTE)
    worker.open_outputs(64 * MEBIBYTE)
    handle = worker.outputs.reserve(16 * MEBIBYTE)
    assert handle is not None
    worker.outputs.commit(handle)
    with pytest.raises(StaleHandle):
        engine.outputs.lease(handle)
