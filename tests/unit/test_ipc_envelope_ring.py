"""Envelope ring: against a pure model, both sides in one process through two mappings."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidestream.ipc_ext import (
    CorruptSegment,
    EnvelopeRing,
    FrameTooLarge,
    RingShutDown,
    Segment,
    SegmentLayout,
)
from sidestream.ipc_ext.waiting import SLICE_NS, slices

CAPACITY = 256
LAYOUT = SegmentLayout(
    submission_bytes=CAPACITY, result_bytes=CAPACITY, input_bytes=1, output_bytes=1
)


def room_of(frame: bytes) -> int:
    """Return the bytes that a frame takes in the ring."""
    return 8 + (len(frame) + 7) // 8 * 8


class AgainstModel(RuleBasedStateMachine):
    """A ring is a queue of frames whose rounded sizes have a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Segment.create(LAYOUT)
        self.worker = Segment.attach(os.dup(self.engine.fd), os.dup(self.engine.doorbell))
        self.model: deque[bytes] = deque()

    def teardown(self) -> None:
        self.worker.close()
        self.engine.close()

    @property
    def used(self) -> int:
        return sum(map(room_of, self.model))

    @rule(frame=st.binary(max_size=CAPACITY - 8))
    def push(self, frame: bytes) -> None:
        fits = self.used + room_of(frame) <= CAPACITY
        assert self.worker.results.push(frame) == fits
        if fits:
            self.model.append(frame)

    @rule(length=st.integers(CAPACITY - 7, 4 * CAPACITY))
    def push_too_large(self, length: int) -> None:
        with pytest.raises(FrameTooLarge):
            self.worker.results.push(bytes(length))

    @rule(limit=st.integers(1, 300))
    def drain(self, limit: int) -> None:
        expected = [self.model.popleft() for _ in range(min(limit, len(self.model)))]
        assert self.engine.results.drain(limit) == expected

    @rule()
    def arm(self) -> None:
        assert self.engine.results.arm() == (not self.model)

    @precondition(lambda self: not self.model)
    @rule(frame=st.binary(max_size=8))
    def push_to_an_armed_consumer(self, frame: bytes) -> None:
        rung(self.engine.doorbell)
        assert self.engine.results.arm()
        assert self.worker.results.push(frame)
        self.model.append(frame)
        assert rung(self.engine.doorbell)
        assert self.worker.results.push(b"") or len(frame) > CAPACITY
        self.model.append(b"")
        assert not rung(self.engine.doorbell)

    @invariant()
    def sizes(self) -> None:
        for ring in (self.engine.results, self.worker.results):
            assert ring.used_bytes == self.used
            assert ring.free_bytes == CAPACITY - self.used


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=200, derandomize=True, deadline=None)


def rung(doorbell: int) -> bool:
    """Say whether the doorbell was rung since last asked."""
    try:
        return os.eventfd_read(doorbell) > 0
    except BlockingIOError:
        return False


@pytest.fixture
def engine() -> Iterator[Segment]:
    with Segment.create(LAYOUT) as segment:
        yield segment


@pytest.fixture
def worker(engine: Segment) -> Iterator[Segment]:
    with Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as segment:
        yield segment


def fill(ring: EnvelopeRing) -> None:
    """Push until there is no room."""
    while ring.push(b""):
        pass


def test_many_frames_in_one_drain(engine: Segment, worker: Segment) -> None:
    frames = [bytes([i]) * i for i in range(8)]
    assert all(map(engine.submissions.push, frames))
    assert worker.submissions.drain(3) == frames[:3]
    assert worker.submissions.drain() == frames[3:]
    assert worker.submissions.drain() == []
    assert worker.submissions.drain(0) == []


def test_space_rings_the_engines_doorbell(engine: Segment, worker: Segment) -> None:
    fill(engine.submissions)
    engine.submissions.arm_space()
    assert not engine.submissions.push(b"")
    assert not rung(engine.doorbell)
    worker.submissions.drain(1)
    assert rung(engine.doorbell)
    assert engine.submissions.push(b"")


def test_a_wait_is_cut_into_slices() -> None:
    """A signal that comes just before C sleeps interrupts nothing: only the slice's end sees it."""
    assert list(islice(slices(None), 3)) == [SLICE_NS] * 3
    assert next(slices(3600)) == SLICE_NS
    assert list(slices(0)) == list(slices(-1)) == [0]


def test_waits_end_when_the_time_is_over(engine: Segment, worker: Segment) -> None:
    assert not worker.submissions.wait(timeout=0)
    assert not worker.submissions.wait(timeout=0.001, spin=10)
    fill(worker.results)
    with pytest.raises(TimeoutError):
        worker.results.push_wait(b"", timeout=0.001)


def test_waits_end_when_their_time_has_come(engine: Segment, worker: Segment) -> None:
    fill(worker.results)
    pushing = threading.Thread(target=worker.results.push_wait, args=(b"late",))
    pushing.start()
    frames: list[bytes] = []
    while b"late" not in frames:
        frames += engine.results.drain()
    pushing.join()
    engine.submissions.push(b"x")
    assert worker.submissions.wait()


@pytest.mark.parametrize("shut_by", ["engine", "worker"])
def test_shutdown_ends_blocked_threads(engine: Segment, worker: Segment, shut_by: str) -> None:
    fill(worker.results)
    ended = []

    def block(ring: EnvelopeRing, what: str) -> None:
        with pytest.raises(RingShutDown):
            ring.push_wait(b"") if what == "push" else ring.wait()
        ended.append(what)

    threads = [
        threading.Thread(target=block, args=(worker.results, "push")),
        threading.Thread(target=block, args=(worker.submissions, "wait")),
    ]
    for thread in threads:
        thread.start()
    {"engine": engine, "worker": worker}[shut_by].shut_down()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["push", "wait"]
    assert rung(engine.doorbell)


def test_after_shutdown_only_the_rest_is_drained(engine: Segment, worker: Segment) -> None:
    engine.submissions.push(b"last")
    engine.shut_down()
    with pytest.raises(RingShutDown):
        worker.submissions.wait()
    with pytest.raises(RingShutDown):
        worker.results.push_wait(b"")
    with pytest.raises(RingShutDown):
        engine.results.arm()
    with pytest.raises(RingShutDown):
        engine.submissions.arm_space()
    assert worker.submissions.drain() == [b"last"]


def test_closed_is_shut(engine: Segment) -> None:
    ring = engine.submissions
    engine.close()
    pushes = (lambda: ring.push(b""), lambda: ring.push_wait(b""))
    for use in (ring.drain, ring.arm, ring.arm_space, ring.wait, *pushes):
        with pytest.raises(RingShutDown):
            use()
    assert ring.used_bytes == 0


def test_a_torn_length_is_corruption(engine: Segment, worker: Segment) -> None:
    worker.results.push(b"four")
    at = os.pread(engine.fd, 1 << 16, 0).index(b"four") - 8
    os.pwrite(worker.fd, (5000).to_bytes(8, "little"), at)
    with pytest.raises(CorruptSegment):
        engine.results.drain()


def test_a_signal_is_handled_during_a_wait(worker: Segment) -> None:
    """Its handler runs, and what it raises ends the wait."""

    class Stop(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Stop):
            worker.submissions.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
