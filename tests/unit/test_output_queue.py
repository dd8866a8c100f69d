"""The queue before the output thread: outputs in order and bounded, previews latest first-come."""

from __future__ import annotations

import threading

import pytest

from sidestream.ipc_ext import RingShutDown
from sidestream.ipc_ext.messages import NewRequestData
from sidestream.workers.output_queue import (
    OutputQueue,
    PendingChunk,
    PendingOutput,
    PendingPreview,
)
from sidestream.workers.platform import Mark

MARK = Mark(0, None)


def request(number):
    return NewRequestData(str(number), number, 0, {}, (0,), "raw")


def output(number):
    return PendingOutput(request(number), {}, MARK, MARK, MARK.event)


def chunk(number, index=0):
    return PendingChunk(request(number), index, {}, None)


def preview(number, step=1):
    return PendingPreview(request(number), step, lambda: None, None)


def taken(queue):
    """Finish the queue and return what is left in it."""
    queue.finish()
    return list(iter(queue.take, None))


def test_outputs_and_chunks_come_in_order():
    queue = OutputQueue(8)
    items = [chunk(1, 0), output(2), chunk(1, 1), output(1)]
    for item in items:
        queue.put(item)
    assert taken(queue) == items


def test_outputs_come_before_previews_that_wait_longer():
    queue = OutputQueue(8)
    queue.offer(preview(1))
    queue.put(output(2))
    assert isinstance(queue.take(), PendingOutput)
    assert isinstance(queue.take(), PendingPreview)


def test_the_latest_preview_of_a_request_wins_and_keeps_its_turn():
    queue = OutputQueue(8)
    for number, step in ((1, 1), (2, 1), (1, 2), (1, 3)):
        assert queue.offer(preview(number, step))
    shown = [queue.take() for _ in range(2)]
    assert [(item.request.async_output_id, item.step) for item in shown] == [(1, 3), (2, 1)]


def test_a_preview_is_pointless_once_the_output_is_there():
    queue = OutputQueue(8)
    queue.offer(preview(1))
    queue.offer(preview(2))
    queue.put(output(1))
    assert isinstance(queue.take(), PendingOutput)
    assert queue.take().request.async_output_id == 2


def test_a_chunk_leaves_the_preview_alone():
    queue = OutputQueue(8)
    queue.offer(preview(1))
    queue.put(chunk(1))
    assert isinstance(queue.take(), PendingChunk)
    assert isinstance(queue.take(), PendingPreview)


def test_previews_are_refused_while_outputs_pile_up():
    queue = OutputQueue(2)
    queue.put(output(1))
    assert queue.offer(preview(3))
    queue.put(output(2))
    assert not queue.offer(preview(3, 2))
    assert not queue.offer(preview(4))
    queue.take()
    assert queue.offer(preview(4))


def test_nothing_of_a_forgotten_request_is_left():
    queue = OutputQueue(8)
    queue.offer(preview(1))
    queue.put(chunk(1))
    queue.put(chunk(2))
    queue.forget(1)
    assert taken(queue) == [chunk(2)]


def test_nothing_is_done_for_what_was_forgotten_after_it_was_taken():
    queue = OutputQueue(8)
    queue.offer(preview(1))
    queue.take()
    assert queue.act(lambda: True)
    queue.forget(2)
    assert queue.act(lambda: True)
    queue.forget(1)
    assert not queue.act(lambda: pytest.fail("it was forgotten"))


def test_a_full_queue_holds_the_putter_until_there_is_room():
    queue = OutputQueue(1)
    queue.put(output(1))
    putter = threading.Thread(target=queue.put, args=(output(2),))
    putter.start()
    assert queue.take().request.async_output_id == 1
    putter.join(10)
    assert not putter.is_alive()
    assert queue.take().request.async_output_id == 2


def test_forgetting_makes_room():
    queue = OutputQueue(1)
    queue.put(chunk(1))
    putter = threading.Thread(target=queue.put, args=(output(2),))
    putter.start()
    queue.forget(1)
    putter.join(10)
    assert not putter.is_alive()
    assert taken(queue) == [output(2)]


def test_finishing_delivers_outputs_and_drops_previews():
    queue = OutputQueue(8)
    queue.offer(preview(1))
    queue.put(output(2))
    queue.finish()
    assert not queue.offer(preview(3))
    assert taken(queue) == [output(2)]


def test_a_putter_hears_that_nobody_takes_any_more():
    queue = OutputQueue(1)
    queue.put(output(1))
    heard = threading.Event()

    def put():
        with pytest.raises(RingShutDown):
            queue.put(output(2))
        heard.set()

    putter = threading.Thread(target=put)
    putter.start()
    queue.abandon()
    assert heard.wait(10)
    putter.join()
    with pytest.raises(RingShutDown):
        queue.put(output(3))
    assert not queue.offer(preview(1))
