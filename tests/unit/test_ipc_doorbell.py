"""The doorbell in Trio: a cancelled wait loses nothing, a closed doorbell leaves nobody waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from sidestream.ipc_ext import RingShutDown, Segment, SegmentLayout, doorbell

LAYOUT = SegmentLayout(submission_bytes=64, result_bytes=64, input_bytes=1, output_bytes=1)


@pytest.fixture
def engine() -> Iterator[Segment]:
    with Segment.create(LAYOUT) as segment:
        yield segment


@pytest.fixture
def worker(engine: Segment) -> Iterator[Segment]:
    with Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as segment:
        yield segment


async def receive(segment: Segment, count: int) -> list[bytes]:
    """Drain so many frames, sleeping in between as the engine does."""
    frames: list[bytes] = []
    while len(frames) < count:
        if batch := segment.results.drain():
            frames += batch
        elif segment.results.arm():
            await doorbell.wait(segment)
    return frames


async def test_a_thread_wakes_a_task(engine: Segment, worker: Segment) -> None:
    frames = [str(i).encode() for i in range(2000)]

    def send() -> None:
        for frame in frames:
            worker.results.push_wait(frame)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, send)
            assert await receive(engine, len(frames)) == frames


async def test_a_ring_is_heard_once(engine: Segment, worker: Segment) -> None:
    assert engine.results.arm()
    worker.results.push(b"")
    with trio.fail_after(60):
        await doorbell.wait(engine)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(engine.doorbell)


async def test_a_cancelled_wait_loses_nothing(engine: Segment, worker: Segment) -> None:
    assert engine.results.arm()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(doorbell.wait, engine)
        await trio.testing.wait_all_tasks_blocked()
        worker.results.push(b"x")
        nursery.cancel_scope.cancel()
    with trio.fail_after(60):
        assert await receive(engine, 1) == [b"x"]


async def test_shutdown_wakes_the_engine(engine: Segment, worker: Segment) -> None:
    async def pump() -> None:
        with pytest.raises(RingShutDown):
            await receive(engine, 1)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            await trio.testing.wait_all_tasks_blocked()
            worker.shut_down()


async def test_close_ends_the_wait(engine: Segment) -> None:
    async def pump() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await doorbell.wait(engine)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            await trio.testing.wait_all_tasks_blocked()
            doorbell.close(engine)
    doorbell.close(engine)


async def test_one_task_waits(engine: Segment) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(doorbell.wait, engine)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await doorbell.wait(engine)
        nursery.cancel_scope.cancel()
