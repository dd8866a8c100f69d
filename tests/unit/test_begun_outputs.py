"""Outputs whose copies the device makes by itself: begun by the forward's thread, and waited for by
the output thread. The device is one of this test: it works when it is told to."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager

import pytest
import torch

from sidestream.ipc_ext import RingShutDown
from sidestream.workers.platform import Mark, Platform, bytes_of

from .output_bench import RING, done, opened_bench, request

PATIENCE = 10
LARGE = RING // 4
"""Bytes of an output, of which two fill half of the ring."""


class Device(Platform):
    """Does what it was given, in order, in `work`; events happen then."""

    def __init__(self):
        super().__init__()
        self.queue = deque()
        self.marks = 1
        self.waited_for = threading.Event()
        self.lost = False

    def work(self):
        while self.queue:
            self.queue.popleft()()

    def record_device_event(self):
        event = threading.Event()
        self.queue.append(event.set)
        return event

    def mark(self):
        self.marks += 1
        return Mark(self.marks, self.record_device_event())

    def time_of(self, mark):
        assert mark.event.is_set(), "the device has not come that far"
        return mark.host_ns

    def wait_event(self, event):
        self.queue.append(lambda: event.wait(0) or pytest.fail("work before what it waits for"))

    def has_happened(self, event):
        return event.is_set()

    def synchronize_event(self, event):
        self.waited_for.set()
        assert event.wait(PATIENCE)
        if self.lost:
            raise torch.AcceleratorError("CUDA error: the device is lost")

    @contextmanager
    def side_stream(self):
        yield

    def writes_to(self, address):
        return True

    def copy_to_host(self, target, source):
        data = bytes_of(source)
        self.queue.append(lambda: target.copy_(data))


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def bench(device):
    with opened_bench(device) as made:
        yield made


def submit(bench, number, *, nbytes=LARGE, tensors=None):
    """Submit an output whose forward the device has yet to run."""
    tensors = tensors or {"images": torch.full((nbytes,), number, dtype=torch.uint8)}
    event = bench.thread._platform.record_device_event()
    bench.submit(request(number), tensors, done(number), event=event)


def outputs(bench):
    """Return what was sent: each output's number, and what it was full of before the stage."""
    return [
        (message.async_output_id, {byte - 1 for part in data for byte in part})
        for kind, message, data in bench.messages
        if kind == "output" and message.error is None
    ]


def test_the_copy_is_begun_and_sent_when_the_device_has_made_it(bench, device):
    submit(bench, 1)
    assert bench.worker_ring.used_bytes == LARGE
    assert len(device.queue) > 1  # the forward is not all: the copy waits behind it
    bench.thread.start()
    assert device.waited_for.wait(PATIENCE)
    assert bench.frames == [["done"]]
    device.work()
    bench.finish()
    assert outputs(bench) == [(1, {1})]
    timings = bench.messages[-1][1].timings
    assert (timings.forward_end, timings.copy_start, timings.copy_end) == (1, 1, 2)


def test_copies_one_after_the_other_are_all_in_the_devices_queue(bench, device):
    for number in (1, 2, 3):
        submit(bench, number, nbytes=1000)
    device.work()
    bench.finish()
    assert outputs(bench) == [(1, {1}), (2, {2}), (3, {3})]
    timings = [message.timings for kind, message, _ in bench.messages if kind == "output"]
    assert [(t.copy_start, t.copy_end) for t in timings] == [(1, 2), (2, 3), (3, 4)]


def test_several_tensors_go_together(bench, device):
    tensors = {"frames": torch.full((2, 50), 7, dtype=torch.uint8), "audio": torch.zeros(0)}
    submit(bench, 7, tensors=tensors)
    device.work()
    bench.finish()
    (message,) = (message for kind, message, _ in bench.messages if kind == "output")
    assert [(p.name, p.descriptor.shape) for p in message.output] == [
        ("frames", (2, 50)),
        ("audio", (0,)),
    ]
    assert outputs(bench) == [(7, {7})]


def test_an_output_without_room_waits_in_the_thread_and_no_later_one_overtakes_it(bench, device):
    ring = bench.worker_ring
    held = [ring.reserve(LARGE) for _ in range(4)]
    submit(bench, 1)
    ring.release(held.pop())
    submit(bench, 2)
    assert ring.used_bytes == 3 * LARGE  # there is room, which the first one has not taken yet
    device.work()
    bench.thread.start()
    device.waited_for.wait(PATIENCE)
    while not bench.thread._queue.at_rest:
        device.work()
    for handle in held:
        ring.release(handle)
    bench.finish()
    assert outputs(bench) == [(1, {1}), (2, {2})]


def test_part_of_the_room_is_given_back_if_there_is_not_enough(bench, device):
    ring = bench.worker_ring
    held = [ring.reserve(LARGE) for _ in range(3)] + [ring.reserve(LARGE // 2)]
    used = ring.used_bytes
    third = torch.zeros(LARGE // 3, dtype=torch.uint8)
    submit(bench, 1, tensors={"a": third, "b": third, "c": third})
    assert ring.used_bytes == used
    for handle in held:
        ring.release(handle)
    device.work()
    bench.thread.start()
    while not bench.thread._queue.at_rest:
        device.work()
    bench.finish()
    assert [len(message.output) for kind, message, _ in bench.messages if kind == "output"] == [3]


def test_a_stage_that_fails_fails_its_request_and_no_other(bench, device):
    submit(bench, 1, tensors={"poison": torch.zeros(1)})
    submit(bench, 2)
    device.work()
    bench.thread.start()
    while not bench.thread._queue.at_rest:
        device.work()
    bench.finish()
    errors = {m.async_output_id: m.error for kind, m, _ in bench.messages if kind == "output"}
    assert "poisoned" in errors[1].text
    assert errors[2] is None
    assert outputs(bench) == [(2, {2})]


def test_the_room_of_a_cancelled_request_is_kept_until_the_device_is_done_with_it(bench, device):
    submit(bench, 1)
    bench.cancelled.add(1)
    bench.thread.start()
    assert device.waited_for.wait(PATIENCE)
    assert bench.worker_ring.used_bytes == LARGE
    device.work()
    bench.finish()
    (message,) = (message for kind, message, _ in bench.messages if kind == "output")
    assert message.error.aborted


def test_a_device_that_is_lost_fails_the_request_and_gives_the_room_back(bench, device):
    submit(bench, 1)
    device.lost = True
    device.work()
    bench.finish()
    (message,) = (message for kind, message, _ in bench.messages if kind == "output")
    assert message.error.fatal


def test_after_a_shut_down_the_room_is_given_back_when_the_device_is_done(bench, device):
    for number in (1, 2):
        submit(bench, number)
    bench.shut_down = True
    device.work()
    bench.thread.start()
    bench.thread.join(PATIENCE)
    assert not bench.thread.is_alive()
    event = device.record_device_event()
    device.work()
    with pytest.raises(RingShutDown):
        bench.submit(request(3), {"images": torch.zeros(LARGE // 8)}, done(3), event=event)
