"""Payload ring: against a pure model, both sides in one process through two mappings."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidestream.ipc_ext import (
    Handle,
    Lease,
    PayloadTooLarge,
    RingShutDown,
    Segment,
    SegmentLayout,
    StaleHandle,
)

PAGE = 4096
PAGES = 32
CAPACITY = PAGES * PAGE
CHUNK = CAPACITY // 4
LAYOUT = SegmentLayout(
    submission_bytes=64, result_bytes=64, input_bytes=CAPACITY, output_bytes=CAPACITY
)


def pages_of(nbytes: int) -> int:
    """Return the granules that a payload takes."""
    return max(1, -(-nbytes // PAGE))


@dataclass
class Payload:
    """What the model knows of a live payload."""

    handle: Handle
    fill: int
    committed: bool = False
    lease: Lease | None = None

    @property
    def pages(self) -> range:
        first = self.handle.offset // PAGE
        return range(first, first + pages_of(self.handle.nbytes))


class AgainstModel(RuleBasedStateMachine):
    """A ring is a row of pages; a payload takes some in a row, wherever they are free."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Segment.create(LAYOUT)
        self.worker = Segment.attach(os.dup(self.engine.fd), os.dup(self.engine.doorbell))
        self.live: list[Payload] = []
        self.past: list[Handle] = []
        self.count = 0

    def teardown(self) -> None:
        self.live.clear()
        self.worker.close()
        self.engine.close()

    def longest_gap(self, of: list[Payload]) -> int:
        taken = {page for payload in of for page in payload.pages}
        row = "".join("x" if page in taken else "." for page in range(PAGES))
        return max(map(len, row.split("x")))

    def some(self, index: int, *, committed: bool, leased: bool = False) -> Payload | None:
        fitting = [
            payload
            for payload in self.live
            if payload.committed == committed and (payload.lease is not None) == leased
        ]
        return fitting[index % len(fitting)] if fitting else None

    def gone(self, payload: Payload) -> None:
        self.live.remove(payload)
        self.past.append(payload.handle)

    @rule(nbytes=st.integers(0, CHUNK), commit=st.booleans())
    def reserve(self, nbytes: int, commit: bool) -> None:
        handle = self.worker.outputs.reserve(nbytes)
        assert (handle is not None) == (self.longest_gap(self.live) >= pages_of(nbytes))
        if handle is None:
            return
        payload = Payload(handle, self.count % 251)
        self.count += 1
        assert handle.nbytes == nbytes
        assert handle.offset + nbytes <= CAPACITY
        assert all(set(payload.pages).isdisjoint(other.pages) for other in self.live)
        assert handle not in self.past
        self.worker.outputs.view(handle)[:] = bytes([payload.fill]) * nbytes
        self.live.append(payload)
        if commit:
            self.commit(-1)

    @rule(index=st.integers(0, 100))
    def commit(self, index: int) -> None:
        if payload := self.some(index, committed=False):
            self.worker.outputs.commit(payload.handle)
            payload.committed = True

    @rule(index=st.integers(0, 100))
    def give_up(self, index: int) -> None:
        if payload := self.some(index, committed=False):
            self.worker.outputs.release(payload.handle)
            self.gone(payload)

    @rule(index=st.integers(0, 100))
    def release(self, index: int) -> None:
        if payload := self.some(index, committed=True):
            self.engine.outputs.release(payload.handle)
            self.gone(payload)

    @rule(index=st.integers(0, 100))
    def lease(self, index: int) -> None:
        if payload := self.some(index, committed=True):
            payload.lease = self.engine.outputs.lease(payload.handle)

    @rule(index=st.integers(0, 100))
    def drop_lease(self, index: int) -> None:
        if payload := self.some(index, committed=True, leased=True):
            payload.lease = None
            self.gone(payload)

    @precondition(lambda self: self.past)
    @rule(index=st.integers(0, 100))
    def use_a_handle_of_the_past(self, index: int) -> None:
        handle = self.past[index % len(self.past)]
        for ring in (self.engine.outputs, self.worker.outputs):
            for use in (ring.view, ring.commit, ring.release, ring.lease):
                with pytest.raises(StaleHandle):
                    use(handle)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 100))
    def misuse(self, index: int) -> None:
        payload = self.live[index % len(self.live)]
        if payload.lease is not None:
            with pytest.raises(StaleHandle):
                self.engine.outputs.release(payload.handle)
        if payload.lease is not None or not payload.committed:
            with pytest.raises(StaleHandle):
                self.engine.outputs.lease(payload.handle)
        if payload.committed:
            with pytest.raises(StaleHandle):
                self.worker.outputs.commit(payload.handle)

    @invariant()
    def sizes(self) -> None:
        used = sum(len(payload.pages) for payload in self.live) * PAGE
        for ring in (self.engine.outputs, self.worker.outputs):
            assert ring.used_bytes == used
            assert ring.free_bytes == CAPACITY - used
        held = [payload for payload in self.live if payload.lease is not None]
        assert self.engine.outputs.held_bytes == sum(one.handle.nbytes for one in held)
        assert self.engine.outputs.has_gap == (self.longest_gap(held) >= PAGES // 4)

    @invariant()
    def contents(self) -> None:
        for payload in self.live:
            lease = payload.lease
            view = self.engine.outputs.view(payload.handle) if lease is None else lease
            assert view == bytes([payload.fill]) * payload.handle.nbytes


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(
    max_examples=150, stateful_step_count=80, derandomize=True, deadline=None
)


@pytest.fixture
def engine() -> Iterator[Segment]:
    with Segment.create(LAYOUT) as segment:
        yield segment


@pytest.fixture
def worker(engine: Segment) -> Iterator[Segment]:
    with Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as segment:
        yield segment


def test_capacity_is_rounded_up_and_a_quarter_is_the_largest(engine: Segment) -> None:
    with Segment.create(SegmentLayout(64, 64, 1, 100_000_001)) as segment:
        assert segment.inputs.capacity == 4 * PAGE
        assert 100_000_001 <= segment.outputs.capacity < 100_100_000
        assert segment.outputs.chunk_bytes == segment.outputs.capacity // 4
        assert segment.outputs.reserve(segment.outputs.chunk_bytes) is not None
    with pytest.raises(PayloadTooLarge):
        engine.inputs.reserve(CHUNK + 1)
    with pytest.raises(PayloadTooLarge):
        engine.inputs.reserve_wait(CHUNK + 1)


def test_payloads_are_page_aligned(engine: Segment) -> None:
    for nbytes in (0, 1, PAGE, PAGE + 1):
        handle = engine.inputs.reserve(nbytes)
        assert handle is not None
        assert (engine.inputs.address + handle.offset) % PAGE == 0


def test_a_payload_without_bytes_has_a_life(engine: Segment, worker: Segment) -> None:
    handle = worker.outputs.reserve(0)
    assert handle is not None
    worker.outputs.commit(handle)
    assert engine.outputs.view(handle).nbytes == 0
    lease = engine.outputs.lease(handle)
    assert np.frombuffer(lease, np.uint8).size == 0
    assert engine.outputs.used_bytes == PAGE
    del lease
    assert engine.outputs.used_bytes == 0


@pytest.mark.parametrize(
    "forged",
    [
        {"offset": PAGE},
        {"offset": 1},
        {"offset": CAPACITY},
        {"offset": -PAGE},
        {"offset": 1 << 64},
        {"generation": 0},
        {"generation": 2},
        {"generation": 1 << 62 | 1},
        {"generation": -1},
        {"nbytes": 99},
        {"nbytes": (1 << 64) - 1},
        {"nbytes": -100},
    ],
)
def test_forged_handles(engine: Segment, worker: Segment, forged: dict[str, int]) -> None:
    handle = worker.outputs.reserve(100)
    assert handle is not None
    worker.outputs.commit(handle)
    ring = engine.outputs
    for use in (ring.view, ring.commit, ring.release, ring.lease):
        with pytest.raises(StaleHandle):
            use(handle._replace(**forged))
    ring.release(handle)


def test_one_that_is_kept_for_ever_stalls_nobody(engine: Segment, worker: Segment) -> None:
    kept = []
    for round_ in range(1000):
        handle = worker.outputs.reserve(CHUNK if round_ % 3 else 1)
        assert handle is not None
        worker.outputs.commit(handle)
        lease = engine.outputs.lease(handle)
        if engine.outputs.has_gap:
            kept.append(lease)
        del lease
    assert kept


def test_what_is_kept_no_more_is_in_nobodys_way(engine: Segment, worker: Segment) -> None:
    """Four pages, a fifth of the ring apart, leave no gap of a quarter."""
    leases, gaps = [], []
    for page in range(PAGES):
        handle = worker.outputs.reserve(PAGE)
        assert handle is not None
        worker.outputs.commit(handle)
        if page in [fifth * PAGES // 5 for fifth in range(1, 5)]:
            leases.append(engine.outputs.lease(handle))
            gaps.append(engine.outputs.has_gap)
    del leases[2]
    gaps.append(engine.outputs.has_gap)
    assert gaps == [True, True, True, False, True]


def test_waiting_for_room(engine: Segment, worker: Segment) -> None:
    handles = [worker.outputs.reserve(CHUNK) for _ in range(4)]
    assert worker.outputs.reserve(1) is None
    with pytest.raises(TimeoutError):
        worker.outputs.reserve_wait(1, timeout=0.001)
    found: list[Handle] = []
    waiting = threading.Thread(target=lambda: found.append(worker.outputs.reserve_wait(CHUNK)))
    waiting.start()
    assert handles[2] is not None
    engine.outputs.release(handles[2])
    waiting.join()
    assert found[0].offset == handles[2].offset


def test_release_rings_the_engines_doorbell(engine: Segment, worker: Segment) -> None:
    handle = engine.inputs.reserve(CHUNK)
    assert handle is not None
    engine.inputs.commit(handle)
    worker.inputs.release(handle)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(engine.doorbell)
    handle = engine.inputs.reserve(CHUNK)
    assert handle is not None
    engine.inputs.commit(handle)
    engine.inputs.arm_space()
    worker.inputs.release(handle)
    assert os.eventfd_read(engine.doorbell) == 1


def test_shutdown_ends_a_blocked_reserve(engine: Segment, worker: Segment) -> None:
    while worker.outputs.reserve(CHUNK):
        pass
    errors: list[type[BaseException]] = []

    def block() -> None:
        try:
            worker.outputs.reserve_wait(1)
        except RingShutDown as error:
            errors.append(type(error))

    thread = threading.Thread(target=block)
    thread.start()
    engine.shut_down()
    thread.join()
    assert errors == [RingShutDown]
    with pytest.raises(RingShutDown):
        engine.inputs.arm_space()


def test_closed_is_shut(engine: Segment) -> None:
    ring = engine.outputs
    handle = ring.reserve(1)
    assert handle is not None
    engine.close()
    for use in (ring.view, ring.commit, ring.release, ring.lease):
        with pytest.raises(RingShutDown):
            use(handle)
    for look in (ring.region, ring.arm_space, lambda: ring.reserve(1)):
        with pytest.raises(RingShutDown):
            look()
    assert ring.used_bytes == ring.held_bytes == 0


def test_region_is_the_memory_itself(engine: Segment, worker: Segment) -> None:
    handle = worker.outputs.reserve(PAGE)
    assert handle is not None
    region = worker.outputs.region()
    assert region.nbytes == CAPACITY
    assert not region.readonly
    region[handle.offset] = 77
    assert engine.outputs.view(handle)[0] == 77
    array = np.frombuffer(region, np.uint8)
    assert array.ctypes.data == worker.outputs.address
