"""`RingExecutor`: what the executors over shared-memory rings have in common, that is, all but how
a worker is run.

One doorbell, an eventfd, serves all workers' rings: `receive` drains every ring, arms them all, and
sleeps on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import trio

from ...ipc_ext import CorruptSegment, SegmentLayout, doorbell
from ...ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    NewRequestData,
    Rpc,
    TensorPiece,
)
from ..config import EngineConfig
from ..errors import ExecutionError, StartupError, WorkerDiedError
from ..memory import available_memory
from ..output_ring import fitting, start_of
from ..places import check_places
from .base import CAPABILITIES_NEEDED, DispatchedRequest, DispatchedTick, WorkerStatus
from .link import WorkerLink, layout_for

_GREETING = 0
"""The `rpc_id` of the answer to `Configure`."""


class _Call:
    """An RPC under way."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.message: AsyncDiffusionOutput | None = None


class RingExecutor:
    """Runs workers over rings; subclasses say how one is launched, watched and ended.

    Raises:
      ConfigError: a file or directory is not there; its workers see those that this process does.
    """

    def __init__(self, config: EngineConfig) -> None:
        check_places(config)
        self.config = config
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.links: list[WorkerLink] = []
        self._calls: dict[tuple[int, int], _Call] = {}
        self._next_rpc = _GREETING + 1
        self._closed = False
        self._last_status: list[WorkerStatus] = []

    # -- for subclasses

    async def _launch(self, link: WorkerLink, services: trio.Nursery) -> None:
        """Start a worker, and a task in `services` that calls `_lost` when it has gone."""
        raise AssertionError("subclasses launch workers")

    async def _end(self, grace: float) -> None:
        """Wait for all workers to leave, and end those that take longer than `grace` seconds."""
        raise AssertionError("subclasses end workers")

    def _pid(self, link: WorkerLink) -> int | None:
        return None

    def _heartbeat_age(self, link: WorkerLink) -> float:
        return link.segment.control.heartbeat_age()

    def _lost(self, link: WorkerLink, error: WorkerDiedError) -> None:
        """Note that a worker has gone, and let `receive` say so."""
        link.die(error)
        for (index, _), call in self._calls.items():
            if index == link.index:
                call.done.set()
        self._ring()

    def _ring(self) -> None:
        if not self._closed:
            os.eventfd_write(self._doorbell, 1)

    # -- the executor protocol

    async def start(self, services: trio.Nursery) -> list[dict[str, Any]]:
        """See `DiffusionExecutor.start`."""
        greetings = {}
        layout = layout_for(self.config, await trio.to_thread.run_sync(available_memory))
        for index in range(self.config.num_workers):
            self.links.append(await self._new_link(index, layout))
            link = self.links[-1]
            greetings[index] = self._calls[index, _GREETING] = _Call()
            await self._launch(link, services)
        try:
            for link in self.links:
                await link.send(link.configuration)
            while not all(call.done.is_set() for call in greetings.values()):
                await self.receive()
        except WorkerDiedError as died:
            for link in self.links:  # it may have said why
                if (call := greetings[link.index]).message is not None:
                    _capabilities(call, link)
            refusal = StartupError(str(died))
            refusal.add_note(f"Its last lines:\n{died.stderr.rstrip()}")
            raise refusal from None
        except (msgspec.MsgspecError, CorruptSegment) as error:
            raise StartupError(f"a worker cannot be understood: {error}") from error
        finally:
            for index in greetings:
                del self._calls[index, _GREETING]
        told = [_capabilities(greetings[link.index], link) for link in self.links]
        for link, capabilities in zip(self.links, told, strict=True):
            link.device = str(capabilities.get("device", link.device))
        await self._open_outputs(start_of(self.config))
        return told

    async def _new_link(self, index: int, layout: SegmentLayout) -> WorkerLink:
        try:
            # Touching every page of the rings takes a second for each few GiB.
            return await trio.to_thread.run_sync(
                WorkerLink, index, self.config, self._doorbell, layout
            )
        except OSError as error:  # memory, or what `ulimit -v` or `ulimit -f` allow
            raise StartupError(
                f"a segment with output_ring_bytes={layout.output_bytes} and"
                f" input_ring_bytes={layout.input_bytes} cannot be had: {error}"
            ) from error

    async def _open_outputs(self, nbytes: int) -> None:
        """Use so much of the output rings, of which the workers have done so."""
        for link in self.links:
            await trio.to_thread.run_sync(link.segment.open_outputs, nbytes)

    async def fit_outputs(self, largest: int) -> None:
        """See `DiffusionExecutor.fit_outputs`."""
        outputs = self.links[0].segment.outputs
        size = fitting(self.config, largest, outputs.limit)
        if size <= outputs.capacity:
            return
        try:
            await self.collective_rpc("open_output_ring", size)
        except ExecutionError as error:
            raise StartupError(f"a worker cannot make its output ring larger: {error}") from error
        await self._open_outputs(size)

    async def dispatch(self, worker: int, wave: Sequence[DispatchedRequest]) -> None:
        """See `DiffusionExecutor.dispatch`."""
        await self.links[worker].dispatch(wave)

    async def dispatch_step(self, worker: int, tick: DispatchedTick) -> None:
        """See `DiffusionExecutor.dispatch_step`."""
        await self.links[worker].dispatch_step(tick)

    def abort(self, worker: int, request: NewRequestData) -> None:
        """See `DiffusionExecutor.abort`."""
        self.links[worker].cancel(request)

    async def receive(self) -> Sequence[tuple[int, AsyncDiffusionOutput]]:
        """See `DiffusionExecutor.receive`.

        Whoever was woken by what came before has its turn first: meanwhile more may come, and who
        finds something there need not go to sleep.
        """
        await trio.lowlevel.checkpoint()
        while True:
            dead = [link.death for link in self.links if link.death is not None]
            received = [(link.index, message) for link in self.links for message in link.drain()]
            if received:
                return [(worker, m) for worker, m in received if not self._is_answer(worker, m)]
            if dead:  # looked up before the drain, so nothing that it sent is lost
                raise dead[0].again()
            armed = [link.segment.results.arm() for link in self.links]
            if all(armed):
                await doorbell.wait(self.links[0].segment)

    def _is_answer(self, worker: int, message: AsyncDiffusionOutput) -> bool:
        if message.kind is not AsyncOutputKind.RPC_RESULT:
            return False
        call = self._calls.get((worker, -1 if message.rpc_id is None else message.rpc_id))
        if call is not None:  # else its caller was cancelled
            call.message = message
            call.done.set()
        return True

    def lease(self, worker: int, piece: TensorPiece) -> Any:
        """See `DiffusionExecutor.lease`."""
        return self.links[worker].segment.outputs.lease(piece.handle)

    def release(self, worker: int, piece: TensorPiece) -> None:
        """See `DiffusionExecutor.release`."""
        self.links[worker].segment.outputs.release(piece.handle)

    def is_crowded(self, worker: int) -> bool:
        """See `DiffusionExecutor.is_crowded`."""
        outputs = self.links[worker].segment.outputs
        return 2 * outputs.free_bytes < outputs.capacity or not outputs.has_gap

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """See `DiffusionExecutor.collective_rpc`."""
        rpc_id, self._next_rpc = self._next_rpc, self._next_rpc + 1
        calls = {link.index: _Call() for link in self.links}
        self._calls |= {(index, rpc_id): call for index, call in calls.items()}
        try:
            for link in self.links:
                await link.send(Rpc(rpc_id, method, list(args)))
            for call in calls.values():
                await call.done.wait()
        finally:
            for index in calls:
                del self._calls[index, rpc_id]
        return [_answer(calls[link.index], link, None) for link in self.links]

    def check_health(self) -> None:
        """See `DiffusionExecutor.check_health`."""
        for link in self.links:
            if link.death is not None:
                raise link.death.again()

    def workers(self) -> Sequence[WorkerStatus]:
        """See `DiffusionExecutor.workers`."""
        if self._closed:
            return self._last_status
        return [link.status(self._pid(link), self._heartbeat_age(link)) for link in self.links]

    async def close(self, grace: float) -> None:
        """See `DiffusionExecutor.close`."""
        if self._closed:
            return
        for link in self.links:
            link.stop()
        await self._end(grace)
        self._last_status = [replace(status, state="stopped") for status in self.workers()]
        self._closed = True
        for link in self.links:
            link.segment.shut_down()
            doorbell.close(link.segment)
        os.close(self._doorbell)


def _capabilities(call: _Call, link: WorkerLink) -> dict[str, Any]:
    told = _answer(call, link, StartupError)
    if not isinstance(told, dict) or not told.keys() >= CAPABILITIES_NEEDED:
        raise StartupError(f"worker {link.index} does not say what its pipeline takes")
    return told


def _answer(call: _Call, link: WorkerLink, wrong: type[Exception] | None) -> Any:
    if call.message is None:
        assert link.death is not None
        raise link.death.again()
    error = call.message.error
    if error is None:
        return call.message.result
    failure = ExecutionError(error.type, error.text)
    if wrong is not None:
        refusal = wrong(f"worker {link.index} could not start: {failure}")
        refusal.add_note(f"In the worker:\n{error.text.rstrip()}")
        raise refusal
    raise failure
