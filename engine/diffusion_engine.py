"""`DiffusionEngine`: admission, the engine loop and the pump, between callers, scheduler and
executor."""

from __future__ import annotations

import functools
import logging
import math
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import trio

from ..postprocess import get_postprocessor
from .admission import PreparedRequest, prepare
from .config import EngineConfig
from .delivery import Claim
from .errors import (
    EngineBusyError,
    EngineClosedError,
    EngineDeadError,
    ExecutionError,
    SidestreamError,
    WorkerDiedError,
)
from .executor import DiffusionExecutor, cancel_slots_for
from .host_stage import HostStage
from .inputs import nbytes_of
from .ledger import ClaimLedger
from .request import DiffusionRequest
from .result import DiffusionResult
from .sched import DiffusionSchedulerOutput, make_scheduler
from .signals import Signal
from .statistics import EngineStatistics, engine_statistics
from .stream import RequestStream
from .trace import RequestTrace
from .warmup import warm_up

logger = logging.getLogger("sidestream")

CONVERTED_INLINE = 1 << 20
"""Bytes of input arrays from which a thread prepares a request: pictures are copied out of PIL, and
a MiB takes a millisecond."""

T = TypeVar("T")


class DiffusionEngine:
    """Runs requests on workers; made by `open_engine`.

    All methods are to be called from the Trio run that the engine was opened in.
    """

    def __init__(self, config: EngineConfig, executor: DiffusionExecutor) -> None:
        self.config = config
        self._executor = executor
        self._scheduler = make_scheduler(config)
        self._scheduler.initialize(
            max_num_running_reqs=config.max_num_seqs * config.dispatch_depth * config.num_workers,
            num_workers=config.num_workers,
        )
        self._changed = [Signal() for _ in range(config.num_workers)]
        self._dispatching: set[int] = set()
        self._idle = trio.Event()
        self._ledger = ClaimLedger(
            self._scheduler,
            executor,
            num_workers=config.num_workers,
            cancel_slots=cancel_slots_for(config),
            trace_limit=config.trace_requests,
            changed=self._on_change,
        )
        self._host_stage = HostStage(executor, self._ledger, config.postprocess_threads)
        self._capabilities: Mapping[str, Any] = {}
        self._cause: BaseException | None = None
        self._dead = trio.Event()
        self._calls: set[trio.CancelScope] = set()
        self._started = False
        self._closing = False
        self._close_lock = trio.Lock()
        self._closed = False

    # -- requests

    async def generate(
        self, prompt: str | DiffusionRequest | None = None, **params: Any
    ) -> DiffusionResult:
        """Run one request and return its result.

        Leaving this call for any reason, a cancelled scope included, ends the request: it gives its
        place, its output bytes and its claim up, and the worker stops before its next component
        call.

        Args:
          prompt: the text, or a complete request.
          params: fields of `DiffusionRequest` and `SamplingParams`.

        Raises:
          RequestError: the request cannot be run as it stands.
          EngineBusyError: the queue is full.
          ExecutionError: the pipeline raised; the engine goes on.
          OutputError: what it made cannot be turned into what the request asked for.
          RequestAborted: somebody called `abort`.
          DeadlineExceededError: the request's deadline passed.
          WorkerDiedError: the worker has gone.
          EngineDeadError, EngineClosedError: the engine has.
        """
        async with self.stream(prompt, **params) as events:
            return await events.result()

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def stream(
        self, prompt: str | DiffusionRequest | None = None, **params: Any
    ) -> AsyncIterator[RequestStream]:
        """Run one request and tell its events: `Queued`, `Started`, `Progress`..., `Completed`.

        Leaving the block ends the request, as in `generate`. Arguments and errors are those of
        `generate`.

            async with engine.stream("a red circle") as events:
                async for event in events:
                    ...
        """
        await trio.lowlevel.checkpoint()
        request = DiffusionRequest.make(prompt, **params)
        self.check_room()
        claim = self._admit(await self._prepare(request))
        try:
            position = functools.partial(self.queue_position, claim.request_id)
            yield RequestStream(claim, position, self._host_stage.run)
        finally:
            self._leave(claim)

    async def _prepare(self, request: DiffusionRequest) -> PreparedRequest:
        if nbytes_of(request.sampling.extra_args) < CONVERTED_INLINE:
            return prepare(request, self._capabilities, self.config)
        return await trio.to_thread.run_sync(prepare, request, self._capabilities, self.config)

    def check_room(self) -> None:
        """Return if one more request may wait; for callers with work to do before they have one.

        Raises:
          EngineBusyError: the queue is full.
          EngineDeadError, EngineClosedError: as `check_health`.
        """
        self.check_health()
        if self._scheduler.num_waiting >= self.config.max_queued_requests:
            raise EngineBusyError(
                f"{self._scheduler.num_waiting} requests are waiting (max_queued_requests);"
                " try again later"
            )

    def _admit(self, prepared: PreparedRequest) -> Claim:
        self.check_room()
        try:
            return self._ledger.admit(prepared, trio.current_time())
        except SidestreamError:
            raise
        except Exception as error:  # a scheduler of somebody else's
            self._die(error)
            raise self._as_told(error) from error

    def _leave(self, claim: Claim) -> None:
        try:
            self._ledger.leave(claim)
        except Exception as error:  # as above; the caller has its own outcome
            self._die(error)

    async def abort(self, request_id: str) -> bool:
        """End a request from elsewhere; its caller gets `RequestAborted` at once.

        Returns when the worker has let go of it, at the latest when the component call in progress
        ends. Idempotent.

        Returns:
          Whether the request was here.
        """
        await trio.lowlevel.checkpoint()
        claim = self._ledger.find(request_id)
        if claim is None:
            return False
        self._ledger.abort(claim)
        await claim.closed.wait()
        return True

    def queue_position(self, request_id: str) -> int | None:
        """Return how many requests wait ahead of this one, None if it is not waiting."""
        return self._scheduler.queue_position(request_id, trio.current_time())

    async def wait_idle(self) -> None:
        """Wait until no request is in the engine and no worker holds one."""
        await trio.lowlevel.checkpoint()
        while not self._ledger.is_idle:
            if self._idle.is_set():
                self._idle = trio.Event()
            await self._idle.wait()

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the pipeline takes and makes: its class name (`pipeline`), `arguments`, `media`,
        default `height` and `width`, and more."""
        return MappingProxyType(self._capabilities)

    # -- health

    def check_health(self) -> None:
        """Return if the engine can take requests.

        Raises:
          EngineDeadError: it died; `__cause__` says of what.
          EngineClosedError: it was closed.
        """
        if self._cause is not None:
            raise EngineDeadError(f"the engine is dead: {self._cause}") from self._cause
        if self._closing:
            raise EngineClosedError("the engine is closed")
        self._executor.check_health()

    async def wait_dead(self) -> EngineDeadError:
        """Wait until the engine has died, and return why; for programs that want to end, or to open
        another one."""
        await self._dead.wait()
        error = EngineDeadError(f"the engine is dead: {self._cause}")
        error.__cause__ = self._cause
        return error

    def statistics(self) -> EngineStatistics:
        """Return what the engine and its workers hold now."""
        return engine_statistics(self._scheduler, self._ledger, self._executor)

    def traces(self, after: int = 0) -> list[RequestTrace]:
        """Return when the phases of the latest requests that have ended took place, oldest first.

        Args:
          after: the `RequestTrace.number` of the last one that the caller knows.
        """
        return self._ledger.traces.after(after)

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Call an exposed method of every worker, such as ``"runner_statistics"``, and return the
        answers in order."""
        self.check_health()
        return await self._unless_dead(self._executor.collective_rpc(method, *args))

    async def _unless_dead(self, call: Awaitable[T]) -> T:
        """Wait for what needs answers of workers; give it up when the engine dies."""
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await call
            finally:
                self._calls.remove(scope)
        self.check_health()  # nobody reads answers any more, and this says why
        raise AssertionError("a call was given up while the engine lives")

    # -- life; called by open_engine

    async def start(self, services: trio.Nursery) -> None:
        """Start the workers, the loops, and the warm-up."""
        all_capabilities = await self._executor.start(services)
        self._capabilities = all_capabilities[0]
        self._host_stage.postprocessor = get_postprocessor(self._capabilities["pipeline"])
        services.start_soon(self._serve, self._pump)
        for worker in range(self.config.num_workers):
            services.start_soon(self._serve, functools.partial(self._schedule, worker))
        services.start_soon(self._serve, self._host_stage.make_room)
        largest = await warm_up(self) if self.config.warmup else 0
        await self.wait_idle()
        await self._unless_dead(self._executor.fit_outputs(largest))
        self._started = True

    async def close(self) -> None:
        """End every request, then the workers; those that were never ready are killed at once.
        Idempotent."""
        self._closing = True
        async with self._close_lock:  # whoever waited here, or comes after one who was cancelled
            if not self._closed:
                await self._close()
                self._closed = True

    async def _close(self) -> None:
        for claim in self._ledger:
            claim.mailbox.fail(EngineClosedError("the engine was closed"))
            if self._cause is None:
                self._ledger.abort(claim)
        self._give_calls_up()
        await self._executor.close(self.config.shutdown_grace if self._started else 0.0)
        for claim in self._ledger:
            self._ledger.lose(claim, EngineClosedError("the engine was closed"))
        self._ledger.forget_ticks()

    @trio.lowlevel.enable_ki_protection
    async def _serve(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the loops; if it fails, the engine is dead."""
        try:
            await loop()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # else the cause keeps the rings mapped
            self._die(error)

    def _die(self, cause: BaseException) -> None:
        """Fail every waiter, before any cleaning up."""
        if self._closing or self._cause is not None:
            return
        self._cause = cause
        for claim in self._ledger:
            claim.mailbox.fail(self._as_told(cause))
        self._give_calls_up()
        self._dead.set()
        for claim in self._ledger:
            try:
                self._ledger.abort(claim)  # a worker that still lives is to stop
                self._ledger.lose(claim, cause)
            except Exception:  # a scheduler of somebody else's, which may be the cause
                logger.exception("request %r could not be ended in order", claim.request_id)
                self._ledger.abandon(claim)
        self._ledger.forget_ticks()

    def _as_told(self, cause: BaseException) -> BaseException:
        """Make the error that one waiter gets."""
        if isinstance(cause, WorkerDiedError):
            return cause.again()
        error = EngineDeadError(f"the engine is dead: {cause!r}")
        error.__cause__ = cause
        return error

    def _give_calls_up(self) -> None:
        for call in self._calls:
            call.cancel()

    # -- the loops

    async def _pump(self) -> None:
        """Take what workers send; the only reader of the executor."""
        while True:
            for worker, message in await self._executor.receive():
                self._ledger.receive(worker, message)
                if message.output:
                    self._host_stage.note_output(worker)
                if not message.final:  # it was copied, which takes a millisecond or more
                    await trio.lowlevel.checkpoint()
                if message.error is not None and message.error.fatal:
                    raise ExecutionError(message.error.type, message.error.text)

    async def _schedule(self, worker: int) -> None:
        """Give a worker what the scheduler decides, as far as it has room and is its turn."""
        changed = self._changed[worker]
        while self._cause is None:
            now = trio.current_time()
            output = self._scheduler.schedule(now, worker) if self._is_next(worker) else None
            if output is None:
                decision = self._scheduler.next_decision(now)
                await changed.wait(math.inf if decision is None else decision)
                continue
            self._dispatching.add(worker)
            for other in self._changed:
                if other is not changed:
                    other.set()  # it is another worker's turn now
            await self._dispatch(worker, output)
            self._dispatching.remove(worker)

    async def _dispatch(self, worker: int, output: DiffusionSchedulerOutput) -> None:
        if self.config.mode == "step":
            tick = self._ledger.dispatch_step(worker, output)
            await self._executor.dispatch_step(worker, tick)
        else:
            wave = self._ledger.dispatch(worker, output.scheduled_request_ids)
            await self._executor.dispatch(worker, wave)

    def _is_next(self, worker: int) -> bool:
        """Whether a worker has room, and no other one with room has less to do. In step mode each
        has requests of its own, which wait for nobody's turn."""
        if not self._has_room(worker):
            return False
        if self.config.mode == "step":
            return True
        loads = self._ledger.loads
        others = (other for other in range(len(loads)) if self._has_room(other))
        return worker == min(others, key=lambda w: (loads[w].in_flight, loads[w].dispatched, w))

    def _has_room(self, worker: int) -> bool:
        """Whether a worker has not its fill of waves or ticks, of outputs, or of cancel slots."""
        load, config = self._ledger.loads[worker], self.config
        return (
            worker not in self._dispatching
            and load.in_flight < config.dispatch_depth
            and load.outputs < config.max_pending_outputs
            and len(load.free_slots) >= config.max_num_seqs
        )

    def _on_change(self) -> None:
        for worker, changed in enumerate(self._changed):
            if self._has_room(worker) or self._cause is not None:
                changed.set()
        if self._ledger.is_idle:
            self._idle.set()
