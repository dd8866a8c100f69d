"""The output thread over a real segment: chunks and previews beside outputs."""

from __future__ import annotations

import logging
import threading

import pytest
import torch

from sidestream.ipc_ext import RingShutDown
from sidestream.ipc_ext.messages import AsyncDiffusionOutput, AsyncOutputKind
from sidestream.workers.async_output import QUICK_BYTES

from .output_bench import RING, done, opened_bench, request


@pytest.fixture
def bench():
    with opened_bench() as made:
        yield made


def test_a_small_output_leaves_at_once_in_one_frame_with_what_is_told(bench):
    bench.start()
    for number in (1, 2):
        bench.submit(request(number), {"images": torch.full((2,), number)}, done(number))
        assert bench.frames == [["done", "output"]] * number
        _, message, (data,) = bench.messages[-1]
        assert torch.frombuffer(bytearray(data), dtype=torch.int64).tolist() == [number + 1] * 2
        assert (message.timings.forward_start, message.timings.forward_end) == (1, 1)
    bench.finish()


@pytest.mark.parametrize(
    ("tensors", "error"),
    [({"poison": torch.zeros(1)}, "poisoned"), ({"images": torch.zeros(1)}, "cancelled")],
)
def test_a_small_output_that_fails_leaves_at_once_too(bench, tensors, error):
    bench.start()
    if error == "cancelled":
        bench.cancelled.add(1)
    bench.submit(request(1), tensors, done(1))
    assert bench.frames == [["done", "output"]]
    assert bench.messages[1][1].error.aborted == (error == "cancelled")
    bench.finish()


def test_a_large_output_leaves_by_the_thread(bench):
    bench.start()
    bench.submit(request(1), {"images": torch.zeros(QUICK_BYTES)}, done(1))
    bench.finish()
    assert sorted(bench.frames) == [["done"], ["output"]]


def test_an_output_of_the_device_is_not_waited_for(bench):
    bench.start()
    bench.submit(request(1), {"images": torch.zeros(1)}, done(1), event=object())
    bench.finish()
    assert sorted(bench.frames) == [["done"], ["output"]]


def test_steps_are_told_before_their_output(bench):
    bench.start()
    for number in range(1, 30):
        step = AsyncDiffusionOutput(AsyncOutputKind.PROGRESS, async_output_id=number, step=3)
        bench.submit(request(number), {"images": torch.zeros(QUICK_BYTES)}, step, done(number))
    kinds = [(kind, number) for kind, number, _ in bench.finish()]
    for number in range(1, 30):
        mine = [kind for kind, other in kinds if other == number]
        assert mine.index("step") < mine.index("output")


def test_a_small_output_waits_in_the_thread_for_room(bench):
    bench.start()
    ring = bench.worker_ring
    held = [ring.reserve(ring.chunk_bytes) for _ in range(2)]
    bench.submit(request(1), {"images": torch.zeros(1)}, done(1))
    for handle in held:
        ring.release(handle)
    bench.finish()
    assert sorted(bench.frames) == [["done"], ["output"]]


def test_a_small_output_does_not_overtake_its_chunks(bench):
    one = request(1)
    drawing, go_on = threading.Event(), threading.Event()

    def draw():
        drawing.set()
        go_on.wait(10)

    bench.start()
    bench.show(request(2), 1, draw)
    assert drawing.wait(10)
    bench.thread.submit_chunk(one, 0, {"frames": torch.zeros(2)}, None)
    bench.submit(one, {"frames": torch.zeros(2)}, done(1))
    go_on.set()
    bench.finish()
    assert bench.frames == [["done"], ["chunk"], ["output"]]


def test_chunks_come_in_order_and_before_the_output(bench):
    one, two = request(1), request(2)
    for index in range(3):
        bench.thread.submit_chunk(one, index, {"frames": torch.full((2,), float(index))}, None)
    bench.submit(two, {"images": torch.zeros(1)})
    bench.submit(one, {"frames": torch.arange(6.0)})
    assert bench.finish() == [
        ("chunk", 1, 0),
        ("chunk", 1, 1),
        ("chunk", 1, 2),
        ("output", 2, 0),
        ("output", 1, 0),
    ]
    assert all(message.final for _, message, _ in bench.messages)
    chunk = bench.messages[1]
    assert torch.frombuffer(bytearray(chunk[2][0]), dtype=torch.float32).tolist() == [2.0, 2.0]
    assert chunk[1].output[0].descriptor.dtype == "float32"


def test_a_large_chunk_goes_piece_by_piece(bench):
    tensor = torch.arange(RING, dtype=torch.int64).to(torch.uint8)
    bench.thread.submit_chunk(request(1), 5, {"frames": tensor}, None)
    kinds = bench.finish()
    assert len(kinds) > 1
    assert set(kinds) == {("chunk", 1, 5)}
    finals = [message.final for _, message, _ in bench.messages]
    assert finals == [False] * (len(finals) - 1) + [True]
    data = b"".join(part for _, _, parts in bench.messages for part in parts)
    assert data == (tensor + 1).numpy().tobytes()


def test_chunks_of_a_cancelled_request_stay_here(bench):
    bench.cancelled.add(1)
    bench.thread.submit_chunk(request(1), 0, {"frames": torch.zeros(2)}, None)
    assert bench.finish() == []


def test_a_chunk_that_fails_fails_its_request_and_no_other(bench):
    one, two = request(1), request(2)
    bench.thread.submit_chunk(one, 0, {"poison": torch.zeros(2)}, None)
    bench.thread.submit_chunk(one, 1, {"frames": torch.zeros(2)}, None)
    bench.submit(two, {"images": torch.zeros(1)})
    bench.submit(one, {"frames": torch.zeros(2)})
    assert bench.finish() == [("output", 2, 0), ("output", 1, 0)]
    assert [message.error is None for _, message, _ in bench.messages] == [True, False]
    assert "poisoned" in bench.messages[1][1].error.text


def test_a_preview_is_one_piece_and_says_its_step(bench):
    bench.show(request(1), 7)
    bench.run_previews()
    bench.finish()
    kind, message, (data,) = bench.messages[0]
    assert (kind, message.async_output_id, message.step) == ("preview", 1, 7)
    (piece,) = message.output
    assert (piece.name, piece.descriptor.dtype, piece.descriptor.shape) == (
        "preview",
        "uint8",
        (4, 4, 3),
    )
    assert data == bytes([7]) * 48


def test_only_the_latest_preview_of_a_request_is_made(bench):
    drawn = []
    for step in range(1, 5):
        bench.show(request(1), step, lambda step=step: drawn.append(step))
    bench.run_previews()
    bench.finish()
    assert drawn == [4]


def test_a_preview_gives_way_to_its_output_and_to_other_outputs(bench):
    bench.show(request(1), 3)
    bench.show(request(2), 4)
    bench.submit(request(1), {"images": torch.zeros(1)})
    bench.run_previews()
    assert bench.finish() == [("output", 1, 0), ("preview", 2, 4)]


def test_a_crowded_output_ring_drops_previews_and_delivers_outputs(bench):
    ring = bench.worker_ring
    held = [ring.reserve(ring.chunk_bytes) for _ in range(2)]
    bench.show(request(1))
    bench.run_previews()
    assert bench.messages == []
    for handle in held:
        ring.release(handle)
    bench.submit(request(1), {"images": torch.zeros(1)})
    assert bench.finish() == [("output", 1, 0)]


def test_a_preview_that_is_too_large_for_the_ring_is_dropped(bench):
    picture = torch.zeros(512, 512, 3, dtype=torch.uint8)
    assert picture.numel() > bench.worker_ring.chunk_bytes
    bench.show(request(1), 1, lambda: picture)
    bench.run_previews()
    assert bench.finish() == []


def test_a_crowded_result_ring_drops_previews_and_keeps_no_room_for_them(bench):
    bench.results_full = True
    bench.show(request(1))
    bench.run_previews()
    assert bench.finish() == []


def test_no_preview_after_the_request_was_withdrawn(bench):
    """Not even if it was being drawn at that time."""
    one = request(1)
    picture = torch.zeros(4, 4, 3, dtype=torch.uint8)

    def draw():
        bench.thread.withdraw(one)
        return picture

    bench.show(one, 1, draw)
    bench.show(request(2), 2)
    bench.run_previews()
    assert bench.finish() == [("preview", 2, 2)]


def test_no_preview_of_a_cancelled_request(bench):
    bench.cancelled.add(1)
    bench.show(request(1), 1, lambda: pytest.fail("nobody wants it"))
    picture = torch.zeros(4, 4, 3, dtype=torch.uint8)

    def draw():
        bench.cancelled.add(2)
        return picture

    bench.show(request(2), 1, draw)
    bench.run_previews()
    assert bench.finish() == []


def test_a_preview_that_fails_is_left_out_and_told_once(bench, caplog):
    def draw():
        raise RuntimeError("no such thing")

    bench.show(request(1), 1, draw)
    bench.show(request(2), 1, draw)
    bench.show(request(3), 2)
    with caplog.at_level(logging.WARNING, "sidestream"):
        bench.run_previews()
        assert bench.finish() == [("preview", 3, 2)]
    assert len(caplog.records) == 1


def test_a_withdrawn_request_leaves_no_failure_behind(bench):
    one = request(1)
    bench.thread.submit_chunk(one, 0, {"poison": torch.zeros(2)}, None)
    bench.run_previews()
    bench.finish()
    assert bench.thread._broken
    bench.thread.withdraw(one)
    assert not bench.thread._broken


def test_after_a_shut_down_nothing_blocks(bench):
    bench.shut_down = True
    bench.thread.start()
    bench.thread.submit_chunk(request(1), 0, {"frames": torch.zeros(2)}, None)
    bench.thread.join(10)
    assert not bench.thread.is_alive()
    with pytest.raises(RingShutDown):
        bench.thread.submit_chunk(request(1), 1, {"frames": torch.zeros(2)}, None)
    assert not bench.show(request(1))
