"""A worker says what no honest one does: the engine dies with a clear error, and nothing hangs."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import trio

from sidestream.engine import EngineConfig, EngineDeadError, StartupError, open_engine
from sidestream.engine.claims import ProtocolError
from sidestream.engine.executor.link import WorkerLink
from sidestream.engine.executor.ring_executor import RingExecutor
from sidestream.ipc_ext import (
    CorruptSegment,
    Handle,
    RingShutDown,
    Segment,
    StaleHandle,
    WorkerState,
)
from sidestream.ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    Configure,
    Execute,
    Message,
    NewRequestData,
    RemoteError,
    Stop,
    TensorPiece,
    Timings,
    decode_message,
    encode_outputs,
)
from sidestream.ipc_ext.tensors import TensorDescriptor

from ..harness.engines import MEBIBYTE
from ..harness.surroundings import PATIENCE, nothing_left

CAPABILITIES = {
    "pipeline": "SyntheticPipeline",
    "arguments": ["prompt"],
    "required": ["prompt"],
    "accepts_any": False,
    "num_outputs": None,
    "defaults": {},
    "from_image": False,
}
FLOATS = TensorDescriptor("float32", (4,))

Answer = Callable[["FakeWorker", NewRequestData], None]


class FakeWorker(threading.Thread):
    """Does everything right but the answer to a request."""

    def __init__(self, segment: Segment, answer: Answer, greet: bytes | None = None) -> None:
        super().__init__(name="fake worker")
        self.segment = segment
        self._answer = answer
        self._greet = greet

    def run(self) -> None:
        hit = contextlib.suppress(RingShutDown, CorruptSegment)  # by its own attack, say
        with self.segment, hit:
            self._serve()

    def _serve(self) -> None:
        for message in self._messages():
            match message:
                case Configure():
                    self.segment.control.state = WorkerState.READY
                    self.segment.results.push_wait(self._greet or _greeting())
                case Execute(requests=requests):
                    for request in requests:
                        self._answer(self, request)
                case Stop():
                    return

    def _messages(self) -> Iterator[Message]:
        while True:
            for frame in self.segment.submissions.drain():
                yield decode_message(frame)
            self.segment.submissions.wait()

    def send(self, request: NewRequestData, kind: str, **fields: Any) -> None:
        """Send a message about a request."""
        output_id = fields.pop("async_output_id", request.async_output_id)
        output = AsyncDiffusionOutput(AsyncOutputKind(kind), async_output_id=output_id, **fields)
        self.segment.results.push_wait(encode_outputs([output]))

    def piece(self, nbytes: int = 16, **fields: Any) -> TensorPiece:
        """Put a piece of a tensor of 16 bytes into the ring."""
        handle = self.segment.outputs.reserve_wait(nbytes)
        self.segment.outputs.commit(handle)
        described: dict[str, Any] = {"descriptor": FLOATS, "handle": handle}
        return TensorPiece("images", **(described | fields))


def _greeting() -> bytes:
    return _answer(result=CAPABILITIES)


def _answer(**fields: Any) -> bytes:
    return encode_outputs([AsyncDiffusionOutput(AsyncOutputKind.RPC_RESULT, rpc_id=0, **fields)])


def config_with(answer: Answer, greet: bytes | None = None) -> EngineConfig:
    """Configure an engine whose one worker is a fake."""

    class FakeExecutor(RingExecutor):
        async def _launch(self, link: WorkerLink, services: trio.Nursery) -> None:
            fds = os.dup(link.segment.fd), os.dup(link.segment.doorbell)
            self._thread = FakeWorker(Segment.attach(*fds), answer, greet)
            self._thread.start()

        async def _end(self, grace: float) -> None:
            for link in self.links:
                link.segment.shut_down()
            await trio.to_thread.run_sync(self._thread.join)

    return EngineConfig(
        executor=FakeExecutor,
        warmup=False,
        output_ring_bytes=MEBIBYTE,
        input_ring_bytes=MEBIBYTE,
    )


def honest(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "compute_done")
    worker.send(request, "output_ready", output=(worker.piece(),), timings=Timings(1, 2, 3, 4))


def garbage(worker: FakeWorker, request: NewRequestData) -> None:
    worker.segment.results.push_wait(b"\xc1 is no msgpack")


def nothing(worker: FakeWorker, request: NewRequestData) -> None:
    worker.segment.results.push_wait(b"")


def unknown_field(worker: FakeWorker, request: NewRequestData) -> None:
    message = {"kind": "compute_done", "async_output_id": request.async_output_id, "run": "this"}
    worker.segment.results.push_wait(msgspec.msgpack.encode([message]))


def unknown_kind(worker: FakeWorker, request: NewRequestData) -> None:
    worker.segment.results.push_wait(msgspec.msgpack.encode([{"kind": "surprise"}]))


def impossible_tensor(worker: FakeWorker, request: NewRequestData) -> None:
    descriptor = {"dtype": "float32", "shape": [1 << 60]}
    piece = {"name": "images", "descriptor": descriptor, "handle": [0, 1, 16]}
    message = {
        "kind": "output_ready",
        "async_output_id": request.async_output_id,
        "output": [piece],
    }
    worker.segment.results.push_wait(msgspec.msgpack.encode([message]))


def done_twice(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "compute_done")
    worker.send(request, "compute_done")


def ready_twice(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "output_ready", output=(worker.piece(),))
    worker.send(request, "output_ready", output=(worker.piece(),))


def forged_offset(worker: FakeWorker, request: NewRequestData) -> None:
    handle = worker.piece().handle
    forged = handle._replace(offset=handle.offset + 4096)
    worker.send(request, "output_ready", output=(worker.piece(handle=forged),))


def far_away(worker: FakeWorker, request: NewRequestData) -> None:
    forged = Handle(offset=1 << 50, generation=1, nbytes=16)
    worker.send(request, "output_ready", output=(worker.piece(handle=forged),))


def released_before(worker: FakeWorker, request: NewRequestData) -> None:
    piece = worker.piece()
    worker.segment.outputs.release(piece.handle)
    worker.send(request, "output_ready", output=(piece,))


def larger_than_the_tensor(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "output_ready", output=(worker.piece(nbytes=17),))


def beside_the_tensor(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "output_ready", output=(worker.piece(nbytes=8, at=12),))


def incomplete(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "compute_done")
    worker.send(
        request, "output_ready", output=(worker.piece(nbytes=8),), timings=Timings(1, 2, 3, 4)
    )


def without_timings(worker: FakeWorker, request: NewRequestData) -> None:
    worker.send(request, "compute_done")
    worker.send(request, "output_ready", output=(worker.piece(),))


def for_nobody(worker: FakeWorker, request: NewRequestData) -> None:
    """Late news of a request that is over only has bytes to free, but these are forged."""
    forged = Handle(offset=0, generation=77, nbytes=16)
    piece = worker.piece(handle=forged)
    worker.send(request, "output_ready", output=(piece,), async_output_id=123_456)


def scribble(worker: FakeWorker, request: NewRequestData) -> None:
    """Write over all of the segment but its header, which nobody reads twice."""
    with mmap.mmap(worker.segment.fd, 0) as memory:
        memory[4096:] = b"\xff" * (len(memory) - 4096)
    os.eventfd_write(worker.segment.doorbell, 1)


@pytest.mark.parametrize(
    ("attack", "cause"),
    [
        (garbage, msgspec.DecodeError),
        (nothing, msgspec.DecodeError),
        (unknown_field, msgspec.ValidationError),
        (unknown_kind, msgspec.ValidationError),
        (impossible_tensor, msgspec.ValidationError),
        (done_twice, ProtocolError),
        (ready_twice, ProtocolError),
        (forged_offset, StaleHandle),
        (far_away, StaleHandle),
        (released_before, StaleHandle),
        (larger_than_the_tensor, ProtocolError),
        (beside_the_tensor, ProtocolError),
        (incomplete, ProtocolError),
        (without_timings, ProtocolError),
        (for_nobody, StaleHandle),
        (scribble, (CorruptSegment, RingShutDown)),
    ],
)
async def test_the_engine_dies_with_the_cause(
    attack: Answer, cause: type[Exception] | tuple[type[Exception], ...]
) -> None:
    async with nothing_left():
        await under_attack(config_with(attack), cause)


async def under_attack(
    config: EngineConfig, cause: type[Exception] | tuple[type[Exception], ...]
) -> None:
    async with open_engine(config) as engine:
        ends: list[BaseException | None] = []

        async def run() -> None:
            with trio.fail_after(PATIENCE), pytest.raises(EngineDeadError) as caught:
                await engine.generate("a", output_type="raw")
            ends.append(caught.value.__cause__)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(run)
        assert [isinstance(error, cause) for error in ends] == [True] * 3
        with trio.fail_after(PATIENCE):
            await engine.wait_idle()
        statistics = engine.statistics()
        assert statistics.claims == statistics.cancel_slots_used == statistics.waves == 0


async def test_an_honest_fake_is_believed() -> None:
    async with nothing_left(), open_engine(config_with(honest)) as engine:
        result = await engine.generate("a", output_type="raw")
        assert result.output.shape == (4,)
        del result


@pytest.mark.parametrize(
    "greet",
    [
        b"\xc1",
        _answer(result={}),
        _answer(result=[1]),
        _answer(error=RemoteError("Mine", "no")),
    ],
)
async def test_a_false_greeting_is_a_start_that_fails(greet: bytes) -> None:
    async with nothing_left():
        with trio.fail_after(PATIENCE), pytest.raises(StartupError):
            async with open_engine(config_with(honest, greet)):
                raise AssertionError("it started")
