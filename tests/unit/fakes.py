"""A backend without workers: a test plays them, word by word."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import trio

from sidestream.engine import (
    EngineConfig,
    WorkerDiedError,
)
from sidestream.engine.executor.base import (
    DispatchedRequest,
    DispatchedTick,
    InputTensor,
    WorkerStatus,
)
from sidestream.ipc_ext import Handle
from sidestream.ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    Execute,
    ExecuteStep,
    NewRequestData,
    RemoteError,
    StepProgress,
    TensorPiece,
    Timings,
    decode_message,
    decode_outputs,
    encode_message,
    encode_outputs,
)
from sidestream.ipc_ext.tensors import TensorDescriptor

CAPABILITIES: dict[str, Any] = {
    "pipeline": "FakePipeline",
    "arguments": [
        "prompt",
        "negative_prompt",
        "width",
        "height",
        "num_inference_steps",
        "guidance_scale",
        "num_images_per_prompt",
        "image",
        "strength",
        "generator",
        "output_type",
    ],
    "required": ["prompt"],
    "defaults": {"num_inference_steps": 10},
    "accepts_any": False,
    "height": 8,
    "width": 8,
    "media": "image",
    "num_outputs": "num_images_per_prompt",
    "has_scheduler": False,
    "from_image": False,
    "previews": True,
    "chunks": True,
}
"""As `DiffusionModelRunner.capabilities` tells them."""

FORWARD = Timings(forward_start=1_000_000_000, forward_end=3_500_000_000)
"""A forward of 2.5 s, long ago."""


class FakePayloads:
    """Output memory of which each byte's whereabouts are known.

    Every misuse of a handle is an error, as in the real ring.
    """

    def __init__(self) -> None:
        self._lying: dict[int, bytes] = {}
        self._held: set[int] = set()
        self._generation = 0
        self.capacity = 1 << 20
        self.changed: Callable[[], object] = lambda: None
        """Called when memory is given back, by whatever thread does so."""

    def put(self, data: bytes) -> Handle:
        """Commit a payload, as a worker does."""
        self._generation += 1
        self._lying[self._generation] = data
        return Handle(0, self._generation, len(data))

    def lease(self, handle: Handle) -> memoryview:
        data = _Memory(self._take(handle))
        self._held.add(handle.generation)
        weakref.finalize(data, self._give_back, handle.generation)
        return memoryview(data).toreadonly()

    def release(self, handle: Handle) -> None:
        self._take(handle)
        self.changed()

    def _take(self, handle: Handle) -> bytes:
        assert handle.generation in self._lying, f"{handle} is stale"
        return self._lying.pop(handle.generation)

    def _give_back(self, generation: int) -> None:
        self._held.remove(generation)
        self.changed()

    @property
    def lying(self) -> int:
        """Payloads that nobody has taken yet."""
        return len(self._lying)

    @property
    def held(self) -> int:
        """Payloads under a lease."""
        return len(self._held)


class _Memory(bytearray):
    """A buffer that can be referred to weakly."""


class FakeExecutor:
    """Implements `DiffusionExecutor`; everything that a worker does is left to the test."""

    capabilities: dict[str, Any] = CAPABILITIES

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.payloads = FakePayloads()
        self.waves: list[list[Job]] = []
        """All waves that were dispatched, in order."""
        self.ticks: list[Tick] = []
        """All ticks that were dispatched, in order."""
        self.flags: list[tuple[int, int]] = []
        """Worker and async_output_id of each cancel flag that was raised, in order."""
        self.room: trio.Event | None = None
        """While this is an event that is not set, the submission rings are full."""
        self.dispatch_error: Exception | None = None
        self.crowded = False
        self.death: WorkerDiedError | None = None
        self.graces: list[float] = []
        self.fitted: list[int] = []
        """For how large outputs room was made, in order."""
        self._jobs, self._new_jobs = trio.open_memory_channel[list[Job]](math.inf)
        self._ticks, self._new_ticks = trio.open_memory_channel[Tick](math.inf)
        self._stepping: dict[int, Job] = {}
        self._words, self._heard = trio.open_memory_channel[Any](math.inf)

    # -- for tests

    async def next_wave(self) -> list[Job]:
        """Wait for the next wave that a worker is given."""
        return await self._new_jobs.receive()

    async def next_tick(self) -> Tick:
        """Wait for the next tick that a worker is given."""
        return await self._new_ticks.receive()

    async def next_job(self) -> Job:
        """Wait for the next wave, which has one request."""
        (job,) = await self.next_wave()
        return job

    def say(self, worker: int, message: AsyncDiffusionOutput) -> None:
        """Send a message as a worker."""
        (sent,) = decode_outputs(encode_outputs([message]))
        self._words.send_nowait((worker, sent))

    @property
    def unheard(self) -> int:
        """Messages that nobody has received yet."""
        return self._heard.statistics().current_buffer_used

    def hear(self) -> tuple[int, AsyncDiffusionOutput]:
        """Take a message in place of `receive`, for tests without an engine."""
        word: tuple[int, AsyncDiffusionOutput] = self._heard.receive_nowait()
        return word

    def break_receive(self, error: Exception) -> None:
        """Let `receive` raise once all that was said before has been received."""
        self._words.send_nowait(error)

    def kill(self, worker: int = 0) -> WorkerDiedError:
        """Let a worker die."""
        self.death = WorkerDiedError(worker, "was killed by SIGKILL", -9, "last words")
        self.break_receive(self.death)
        return self.death

    # -- the executor protocol

    async def start(self, services: trio.Nursery) -> list[dict[str, Any]]:
        await trio.lowlevel.checkpoint()
        return [dict(self.capabilities) for _ in range(self.config.num_workers)]

    async def dispatch(self, worker: int, wave: Sequence[DispatchedRequest]) -> None:
        await self._take()
        sent = decode_message(encode_message(Execute(tuple(request.data for request in wave))))
        assert isinstance(sent, Execute)
        jobs = self._jobs_of(worker, sent.requests, wave)
        self.waves.append(jobs)
        self._jobs.send_nowait(jobs)

    async def dispatch_step(self, worker: int, tick: DispatchedTick) -> None:
        await self._take()
        message = ExecuteStep(tuple(request.data for request in tick.new), tuple(tick.scheduled))
        sent = decode_message(encode_message(message))
        assert isinstance(sent, ExecuteStep)
        new = self._jobs_of(worker, sent.new, tick.new)
        self._stepping |= {job.data.async_output_id: job for job in new}
        named = [self._stepping[async_output_id] for async_output_id in sent.scheduled]
        self.ticks.append(Tick(self, worker, new, named))
        self._ticks.send_nowait(self.ticks[-1])

    async def _take(self) -> None:
        if self.room is not None:
            await self.room.wait()
        if self.dispatch_error is not None:
            raise self.dispatch_error

    def _jobs_of(
        self,
        worker: int,
        sent: Sequence[NewRequestData],
        dispatched: Sequence[DispatchedRequest],
    ) -> list[Job]:
        return [
            Job(self, worker, data, request.inputs)
            for data, request in zip(sent, dispatched, strict=True)
        ]

    def abort(self, worker: int, request: NewRequestData) -> None:
        self.flags.append((worker, request.async_output_id))

    async def receive(self) -> Sequence[tuple[int, AsyncDiffusionOutput]]:
        word = await self._heard.receive()
        if isinstance(word, Exception):
            raise word
        return [word]

    def lease(self, worker: int, piece: TensorPiece) -> memoryview:
        return self.payloads.lease(piece.handle)

    def release(self, worker: int, piece: TensorPiece) -> None:
        self.payloads.release(piece.handle)

    async def fit_outputs(self, largest: int) -> None:
        await trio.lowlevel.checkpoint()
        self.fitted.append(largest)

    def is_crowded(self, worker: int) -> bool:
        return self.crowded

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        await trio.lowlevel.checkpoint()
        return [(worker, method, args) for worker in range(self.config.num_workers)]

    def check_health(self) -> None:
        if self.death is not None:
            raise self.death.again()

    def workers(self) -> Sequence[WorkerStatus]:
        return [
            WorkerStatus(
                index=index,
                pid=None,
                device="fake",
                state="ready" if self.death is None else "dead",
                heartbeat_age=0.0,
                output_ring_bytes=self.payloads.capacity,
                output_ring_used=self.payloads.lying + self.payloads.held,
                output_ring_held=self.payloads.held,
            )
            for index in range(self.config.num_workers)
        ]

    async def close(self, grace: float) -> None:
        self.graces.append(grace)
        await trio.lowlevel.checkpoint()


class Job:
    """A request in a worker's hands. The methods are what a worker may say about it."""

    def __init__(
        self,
        executor: FakeExecutor,
        worker: int,
        data: NewRequestData,
        inputs: Sequence[InputTensor],
    ) -> None:
        self.executor = executor
        self.worker = worker
        self.data = data
        self.inputs = inputs

    def __repr__(self) -> str:
        return f"<Job {self.data.request_id!r}>"

    @property
    def request_id(self) -> str:
        return self.data.request_id

    @property
    def flagged(self) -> bool:
        """Whether its cancel flag is up."""
        return (self.worker, self.data.async_output_id) in self.executor.flags

    def progress(self, step: int, total: int | None = None) -> None:
        self._say(AsyncOutputKind.PROGRESS, step=step, total=total)

    def compute_done(self) -> None:
        self._say(AsyncOutputKind.COMPUTE_DONE)

    def compute_failed(self, error: RemoteError) -> None:
        self._say(AsyncOutputKind.COMPUTE_DONE, error=error)

    def output_part(self, *pieces: TensorPiece) -> None:
        self._say(AsyncOutputKind.OUTPUT_READY, output=pieces, final=False)

    def output_ready(self, *pieces: TensorPiece) -> None:
        """Send the rest of an output, or by default one that says whose it is."""
        whole = pieces or (self.piece(np.array(self.data.seeds, np.int64)),)
        self._say(AsyncOutputKind.OUTPUT_READY, output=whole, timings=FORWARD)

    def output_failed(self, error: RemoteError) -> None:
        self._say(AsyncOutputKind.OUTPUT_READY, error=error)

    def preview(self, piece: TensorPiece, step: int) -> None:
        self._say(AsyncOutputKind.PREVIEW, output=(piece,), step=step)

    def chunk(self, piece: TensorPiece, index: int, *, final: bool = True) -> None:
        self._say(AsyncOutputKind.CHUNK, output=(piece,), step=index, final=final)

    def finish(self) -> None:
        self.compute_done()
        self.output_ready()

    def abort(self) -> None:
        """Let go of it, as a worker does that sees the flag before the forward has ended."""
        self.compute_failed(aborted())

    def piece(
        self, array: np.ndarray[Any, Any], start: int = 0, end: int | None = None
    ) -> TensorPiece:
        """Put bytes `start` to `end` of an array into the ring."""
        return piece_of(self.executor.payloads, "images", array, start, end)

    def _say(self, kind: AsyncOutputKind, **fields: Any) -> None:
        message = AsyncDiffusionOutput(kind, async_output_id=self.data.async_output_id, **fields)
        self.executor.say(self.worker, message)


class Tick:
    """A tick in a worker's hands: the jobs that start in it, and those that take a step."""

    def __init__(
        self, executor: FakeExecutor, worker: int, new: Sequence[Job], scheduled: Sequence[Job]
    ) -> None:
        self.executor = executor
        self.worker = worker
        self.new = list(new)
        self.scheduled = list(scheduled)

    @property
    def names(self) -> list[str]:
        """Who takes a step."""
        return [job.request_id for job in self.scheduled]

    def done(self, **steps: tuple[int, int | None]) -> None:
        """End the tick, and tell where requests stand: (steps taken, steps to take) by name."""
        ids = {job.request_id: job.data.async_output_id for job in self.scheduled}
        progress = tuple(StepProgress(ids[name], *step) for name, step in steps.items())
        self.executor.say(
            self.worker, AsyncDiffusionOutput(AsyncOutputKind.STEP_DONE, progress=progress)
        )


def piece_of(
    payloads: FakePayloads,
    name: str,
    array: np.ndarray[Any, Any],
    start: int = 0,
    end: int | None = None,
) -> TensorPiece:
    """Put bytes `start` to `end` of an array into the ring."""
    descriptor = TensorDescriptor(array.dtype.name, array.shape)
    return TensorPiece(name, descriptor, payloads.put(array.tobytes()[start:end]), start)


def aborted() -> RemoteError:
    """Return what a worker says of a request whose flag it saw."""
    return RemoteError("RequestAborted", "aborted", aborted=True)


def raised(text: str = "ValueError: no", *, fatal: bool = False) -> RemoteError:
    """Return what a worker says of a request whose pipeline raised."""
    return RemoteError("ValueError", f"Traceback (most recent call last):\n{text}\n", fatal=fatal)
