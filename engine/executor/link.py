"""`WorkerLink`: the engine's end of one worker's rings.

Sending suspends while a ring is full and goes on when the worker has taken something; it ends with
the worker's death. Receiving is for the executor, which reads all links in one task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import trio

from ...ipc_ext import CorruptSegment, Handle, PayloadRing, Segment, SegmentLayout
from ...ipc_ext.messages import (
    CALL_LIMIT,
    AsyncDiffusionOutput,
    Configure,
    Execute,
    ExecuteStep,
    InputPart,
    Message,
    NewRequestData,
    Stop,
    TensorPiece,
    decode_outputs,
    encode_message,
)
from ..config import EngineConfig
from ..errors import WorkerDiedError
from ..output_ring import limit_of, start_of
from .base import DispatchedRequest, DispatchedTick, InputTensor, WorkerStatus

_COPY_IN_THREAD = 1 << 20
"""Bytes from which copying an input is worth a thread: the event loop copies a MiB in about 0.1
ms."""


def cancel_slots_for(config: EngineConfig) -> int:
    """Return how many requests a worker can hold at a time, with room for one more wave.

    In step mode these are twice `max_num_seqs` that run or are preempted, as many that their
    callers have left since the last tick began, and those that start or end in ticks under way.
    """
    in_flight = config.max_num_seqs * config.dispatch_depth
    return 5 * config.max_num_seqs + 2 * in_flight + config.max_pending_outputs


def layout_for(config: EngineConfig, available: int) -> SegmentLayout:
    """Size a worker's shared memory so that every envelope that `prepare` lets through fits.

    Args:
      config: what is wanted.
      available: bytes of memory that can be had.

    Raises:
      StartupError: more is wanted.
    """
    wave = 2 * config.max_num_seqs * (CALL_LIMIT + 1024)
    return SegmentLayout(
        submission_bytes=1 << max(18, (wave - 1).bit_length()),
        input_bytes=config.input_ring_bytes,
        output_bytes=limit_of(config, available),
        cancel_slots=cancel_slots_for(config),
    )


class WorkerLink:
    """One worker's segment and what the engine knows of the worker."""

    def __init__(
        self, index: int, config: EngineConfig, doorbell: int, layout: SegmentLayout
    ) -> None:
        self.index = index
        bell = os.dup(doorbell)
        try:
            self.segment = Segment.create(layout, bell, outputs=False)
        except BaseException:
            os.close(bell)
            raise
        self.configuration = Configure(
            model=config.model,
            model_options=config.model_options,
            device=device_of(index, config),
            dtype=config.dtype,
            worker_index=index,
            max_pending_outputs=config.max_pending_outputs,
            output_ring_bytes=start_of(config),
            mode=config.mode,
            merge=config.merge,
            device_stage=config.device_stage,
            graph_budget=0 if config.cuda_graphs == "off" else config.cuda_graph_bytes,
            lora=config.lora,
            compile=config.compile,
        )
        self.device = self.configuration.device
        """What it is, once the worker has told."""
        self.death: WorkerDiedError | None = None
        self._room = trio.lowlevel.ParkingLot()

    # -- sending

    async def send(self, message: Message) -> None:
        """Put a message into the submission ring.

        Raises:
          WorkerDiedError: the worker has gone.
        """
        frame = encode_message(message)
        submissions = self.segment.submissions
        while self._check() and not submissions.push(frame):
            submissions.arm_space()
            if submissions.push(frame):
                break
            await self._room.park()

    async def dispatch(self, wave: Sequence[DispatchedRequest]) -> None:
        """Send a wave: its arrays, piece by piece, then the wave itself."""
        await self.send(Execute(await self._send_inputs(wave)))

    async def dispatch_step(self, tick: DispatchedTick) -> None:
        """Send a tick, as a wave is sent."""
        await self.send(ExecuteStep(await self._send_inputs(tick.new), tuple(tick.scheduled)))

    async def _send_inputs(
        self, requests: Sequence[DispatchedRequest]
    ) -> tuple[NewRequestData, ...]:
        for request in requests:
            for tensor in request.inputs:
                await self._send_input(request.data.async_output_id, tensor)
        return tuple(request.data for request in requests)

    async def _send_input(self, async_output_id: int, tensor: InputTensor) -> None:
        ring = self.segment.inputs
        step = ring.chunk_bytes
        nbytes = tensor.descriptor.nbytes
        for at in range(0, max(nbytes, 1), step):
            part = tensor.data[at : at + step]
            handle = await self._reserve(ring, part.nbytes)
            view = ring.view(handle)
            if part.nbytes >= _COPY_IN_THREAD:
                await trio.to_thread.run_sync(_copy, view, part)
            else:
                _copy(view, part)
            ring.commit(handle)
            piece = TensorPiece(tensor.name, tensor.descriptor, handle, at)
            await self.send(InputPart(async_output_id, piece, tensor.form))

    async def _reserve(self, ring: PayloadRing, nbytes: int) -> Handle:
        while True:
            self._check()
            handle = ring.reserve(nbytes)
            if handle is None:
                ring.arm_space()
                handle = ring.reserve(nbytes)
            if handle is not None:
                return handle
            await self._room.park()

    def _check(self) -> bool:
        if self.death is not None:
            raise self.death.again()
        return True

    def stop(self) -> None:
        """Ask the worker to leave; a ring that is full means that it will be killed."""
        if self.death is None:
            self.segment.submissions.push(encode_message(Stop()))

    def cancel(self, request: NewRequestData) -> None:
        """Raise a request's cancel flag."""
        self.segment.control.cancel(request.cancel_slot, request.async_output_id)

    # -- receiving

    def drain(self) -> list[AsyncDiffusionOutput]:
        """Take what has come, and let senders try again."""
        self.wake_senders()
        frames = self.segment.results.drain()
        return [message for frame in frames for message in decode_outputs(frame)]

    def wake_senders(self) -> None:
        """Let suspended senders look again."""
        if self._room:
            self._room.unpark_all()

    def die(self, error: WorkerDiedError) -> None:
        """Note the worker's death; senders end with it."""
        if self.death is None:
            self.death = error
            self.wake_senders()

    # -- looking

    def status(self, pid: int | None, heartbeat_age: float) -> WorkerStatus:
        """Return how the worker is."""
        outputs = self.segment.outputs
        return WorkerStatus(
            index=self.index,
            pid=pid,
            device=self.device,
            state=self._state(),
            heartbeat_age=heartbeat_age,
            output_ring_bytes=outputs.capacity,
            output_ring_used=outputs.used_bytes,
            output_ring_held=outputs.held_bytes,
        )

    def _state(self) -> str:
        if self.death is not None:
            return "dead"
        try:
            return self.segment.control.state.name.lower()
        except CorruptSegment:
            return "unknown"


def device_of(index: int, config: EngineConfig) -> str:
    """Return the device of a worker: worker i of several takes CUDA device i."""
    if config.num_workers > 1 and config.device in ("auto", "cuda"):
        return f"{config.device}:{index}"
    return config.device


def _copy(target: memoryview, source: memoryview) -> None:
    # By way of numpy, which lets other threads have the interpreter while it copies.
    np.frombuffer(target, np.uint8)[:] = np.frombuffer(source, np.uint8)
