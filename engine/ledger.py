"""`ClaimLedger`: carries the transitions of `claims` out. Every change of a request passes through
`apply`.

It binds the pure parts (table, scheduler) to the executor, and does its accounting: waves and
outputs under way on each worker, cancel slots. It never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ..ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    Timings,
)
from .admission import PreparedRequest
from .assembly import OutputAssembly, PieceSource
from .claims import ClaimEvent, ClaimState, Effect, ProtocolError, transition
from .delivery import Claim
from .errors import DuplicateRequestError, RequestAborted, SidestreamError
from .executor.base import DiffusionExecutor, DispatchedRequest, DispatchedTick
from .sched import (
    BaseScheduler,
    DiffusionRequestStatus,
    DiffusionSchedulerOutput,
    RunnerOutput,
    SchedulerRequestState,
)
from .trace import Outcome, RequestTrace, TraceLog
from .wire import as_exception, event_of, outcome_of, wire
from .worker_load import WorkerLoad, WorkerPieces

_OUTPUT_UNDER_WAY = (ClaimState.COMPUTED, ClaimState.LEFT_COMPUTED)
_HELD = (ClaimState.RUNNING, ClaimState.READY)
"""The states in which the scheduler knows the request and its forward has not ended."""


class ClaimLedger:
    """All claims of an engine.

    Args:
      scheduler: owns the life of each request.
      executor: where flags are raised and payloads lie.
      num_workers: of the executor.
      cancel_slots: of each worker.
      trace_limit: how many traces of ended requests are kept.
      changed: called when something may have become schedulable.
    """

    def __init__(
        self,
        scheduler: BaseScheduler,
        executor: DiffusionExecutor,
        *,
        num_workers: int,
        cancel_slots: int,
        trace_limit: int,
        changed: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._changed = changed
        self._claims: dict[int, Claim] = {}
        self._by_request: dict[str, Claim] = {}
        self._next_output_id = 1
        self._next_wave = 1
        self.loads = [WorkerLoad(cancel_slots) for _ in range(num_workers)]
        self._pieces = [WorkerPieces(executor, worker) for worker in range(num_workers)]
        self.ended: dict[Outcome, int] = {"completed": 0, "failed": 0, "aborted": 0}
        self.traces = TraceLog(trace_limit)

    # -- what is there

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._claims.values()))

    def find(self, request_id: str) -> Claim | None:
        """Return the claim of a request that has not fully ended: its caller or its worker still
        holds it."""
        return self._by_request.get(request_id)

    def uncollected(self) -> list[Claim]:
        """Return the requests whose output is complete and whose caller has not come for it."""
        return [
            claim
            for claim in self._by_request.values()
            if claim.mailbox.delivered
            or (claim.state is ClaimState.READY and not claim.mailbox.settled)
        ]

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds anything."""
        return not (self._by_request or any(load.ticks for load in self.loads))

    # -- what happens

    def admit(self, prepared: PreparedRequest, now: float) -> Claim:
        """Open a claim and queue its request.

        Raises:
          DuplicateRequestError: the id is taken.
        """
        request = prepared.request
        if request.request_id in self._by_request:
            raise DuplicateRequestError(
                f"request_id {request.request_id!r} is already in the engine"
            )
        trace = RequestTrace(request.request_id, time.monotonic_ns())
        claim = Claim(self._next_output_id, prepared, now, trace)
        state = SchedulerRequestState(
            request.request_id,
            key=prepared.key,
            priority=request.priority,
            pixels=prepared.pixels,
            steps=prepared.steps,
        )
        self._scheduler.add_request(state, now)
        self._next_output_id += 1
        self._claims[claim.async_output_id] = claim
        self._by_request[request.request_id] = claim
        self._changed()
        return claim

    def dispatch(self, worker: int, request_ids: tuple[str, ...]) -> list[DispatchedRequest]:
        """Give a wave's claims to a worker and return what is to be sent."""
        wave, self._next_wave = self._next_wave, self._next_wave + 1
        load = self.loads[worker]
        load.dispatched += 1
        dispatched = []
        for request_id in request_ids:
            claim = self._by_request[request_id]
            claim.wave = wave
            load.waves.setdefault(wave, set()).add(claim.async_output_id)
            dispatched.append(self._hand_over(claim, worker))
        return dispatched

    def dispatch_step(self, worker: int, output: DiffusionSchedulerOutput) -> DispatchedTick:
        """Give a tick's new claims to a worker and return what is to be sent."""
        load = self.loads[worker]
        load.dispatched += 1
        new = [self._hand_over(self._by_request[i], worker) for i in output.new_request_ids]
        stepping = tuple(self._by_request[i] for i in output.scheduled_request_ids)
        load.ticks.append(stepping)
        return DispatchedTick(new, [claim.async_output_id for claim in stepping])

    def _hand_over(self, claim: Claim, worker: int) -> DispatchedRequest:
        transition(claim.state, ClaimEvent.DISPATCH)  # an error comes before a slot is taken
        claim.trace.worker = worker
        claim.trace.dispatched = time.monotonic_ns()
        claim.cancel_slot = self.loads[worker].free_slots.pop()
        self.apply(claim, ClaimEvent.DISPATCH)
        return DispatchedRequest(wire(claim), claim.prepared.inputs)

    def leave(self, claim: Claim) -> None:
        """Take the caller's exit, the same for every reason."""
        if not claim.caller_left:
            claim.caller_left = True
            claim.trace.ended = time.monotonic_ns()
            self.apply(claim, ClaimEvent.LEAVE)
            claim.trace.outcome = outcome = outcome_of(claim)
            self.ended[outcome] += 1
            claim.output.drop()
            self._forget_if_over(claim)

    def abort(self, claim: Claim) -> None:
        """End a request on somebody else's word."""
        claim.mailbox.fail(RequestAborted(f"request {claim.request_id!r} was aborted"))
        self.apply(claim, ClaimEvent.LEAVE)

    def abandon(self, claim: Claim) -> None:
        """Forget a request without asking anybody: the last resort at the engine's death."""
        claim.output.drop()
        claim.chunk.drop()
        claim.state = ClaimState.CLOSED
        if not claim.closed.is_set():
            self._close(claim)

    def forget_ticks(self) -> None:
        """Expect no answer to the ticks under way: who would give them has gone."""
        for load in self.loads:
            load.ticks.clear()
        self._changed()

    def lose(self, claim: Claim, error: BaseException) -> None:
        """End a request because what runs it has gone."""
        self.apply(claim, ClaimEvent.LOST, error=error)

    def receive(self, worker: int, message: AsyncDiffusionOutput) -> None:
        """Take a worker's message about a request, or about a tick."""
        if message.kind is AsyncOutputKind.STEP_DONE:
            self._step_done(worker, message)
            return
        claim = self._claims.get(message.async_output_id or 0)
        if claim is None:  # over already: only its bytes matter
            for piece in message.output:
                self._executor.release(worker, piece)
            return
        if claim.worker != worker:
            for piece in message.output:
                self._executor.release(worker, piece)
            raise ProtocolError(f"worker {worker} speaks of a request that it was not given")
        if message.timings is not None:
            self._note_forward(claim, message.timings)
        self.apply(claim, event_of(message), message=message)

    def _step_done(self, worker: int, message: AsyncDiffusionOutput) -> None:
        """Note the end of a tick: the oldest one, as workers run them in order."""
        ticks = self.loads[worker].ticks
        if not ticks:
            raise ProtocolError("a tick ended that was not given")
        taken = {progress.async_output_id: progress for progress in message.progress}
        for claim in ticks.popleft():
            progress = taken.pop(claim.async_output_id, None)
            if progress is None:
                output = RunnerOutput(claim.request_id, finished=False)
            else:
                step, total = progress.step, progress.total
                output = RunnerOutput(claim.request_id, finished=False, step=step, total=total)
                if claim.state is ClaimState.RUNNING:
                    claim.mailbox.tell(step, total)
            if claim.state in _HELD:
                self._scheduler.update_from_output([output])
        if taken:
            raise ProtocolError("a tick tells of requests that it was not given")
        self._changed()

    def apply(
        self,
        claim: Claim,
        event: ClaimEvent,
        *,
        message: AsyncDiffusionOutput | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Move a claim by the table: carry the effects out, in the table's order, then note the
        new state.

        An effect can fail, on a handle that a worker forged, say. The claim is where it was then,
        and LOST, which follows, finds it there.
        """
        state, effects = transition(claim.state, event)
        if message is not None and message.error is not None:
            error = as_exception(message.error, claim)
        for effect in effects:
            _EFFECTS[effect](self, claim, message, error)
        moved = (state in _OUTPUT_UNDER_WAY) - (claim.state in _OUTPUT_UNDER_WAY)
        claim.state = state
        if moved:
            self.loads[claim.worker].outputs += moved
            self._changed()

    # -- effects

    def _start(self, claim: Claim, *_: object) -> None:
        claim.mailbox.start(claim.worker)

    def _tell(self, claim: Claim, message: AsyncDiffusionOutput, *_: object) -> None:
        claim.mailbox.tell(message.step, message.total)

    def _show(self, claim: Claim, message: AsyncDiffusionOutput, *_: object) -> None:
        arriving = OutputAssembly()
        for piece in message.output:
            arriving.add(piece, self._pieces[claim.worker], last=False)  # copied: it is small
        for picture in arriving.tensors().values():
            claim.mailbox.show(message.step, picture)

    def _pass(self, claim: Claim, message: AsyncDiffusionOutput, *_: object) -> None:
        for piece in message.output:
            claim.chunk.add(piece, self._pieces[claim.worker], last=False)
        if message.final:
            if message.step != claim.next_chunk:
                raise ProtocolError(f"chunk {message.step} came instead of {claim.next_chunk}")
            whole, claim.chunk = claim.chunk, OutputAssembly()
            claim.next_chunk += 1
            claim.mailbox.pass_on(message.step, whole.tensors())

    def _keep(
        self, claim: Claim, message: AsyncDiffusionOutput, error: BaseException | None
    ) -> None:
        claim.trace.arrived = time.monotonic_ns()
        if error is not None:
            claim.mailbox.fail(error)
            return
        source: PieceSource = self._pieces[claim.worker]
        for piece in message.output:
            claim.output.add(piece, source, last=message.final)
        if message.final:
            claim.output.tensors()  # complete, or the worker has broken the protocol
            if not claim.trace.forward_end:
                raise ProtocolError("an output came without its timings")

    def _drop(self, claim: Claim, message: AsyncDiffusionOutput | None, *_: object) -> None:
        claim.output.drop()
        claim.chunk.drop()
        for piece in message.output if message is not None else ():
            self._executor.release(claim.worker, piece)

    def _free(self, claim: Claim, message: AsyncDiffusionOutput | None, error: object) -> None:
        waves = self.loads[claim.worker].waves
        wave = waves.get(claim.wave, set())
        wave.discard(claim.async_output_id)
        if not wave:
            waves.pop(claim.wave, None)
        aborted = message is not None and message.error is not None and message.error.aborted
        outcome = RunnerOutput(claim.request_id, error=error is not None, aborted=aborted)
        self._scheduler.update_from_output([outcome])
        self._changed()

    def _unschedule(self, claim: Claim, *_: object) -> None:
        self._scheduler.finish_request(claim.request_id, DiffusionRequestStatus.FINISHED_ABORTED)
        self._changed()

    def _flag(self, claim: Claim, *_: object) -> None:
        self._executor.abort(claim.worker, wire(claim))

    def _deliver(self, claim: Claim, *_: object) -> None:
        claim.mailbox.deliver()

    def _fail(self, claim: Claim, _: object, error: BaseException | None) -> None:
        claim.mailbox.fail(error or SidestreamError("the worker gave no reason"))

    def _close(self, claim: Claim, *_: object) -> None:
        del self._claims[claim.async_output_id]
        if claim.cancel_slot >= 0:
            self.loads[claim.worker].free_slots.append(claim.cancel_slot)
        claim.closed.set()
        self._forget_if_over(claim)
        self._changed()

    # -- accounting

    def _note_forward(self, claim: Claim, timings: Timings) -> None:
        claim.trace.note_device(timings)
        self.loads[claim.worker].device.note(
            claim.trace.submitted, timings.forward_start, timings.forward_end
        )

    def _forget_if_over(self, claim: Claim) -> None:
        if not (claim.caller_left and claim.closed.is_set()):
            return
        if self._by_request.pop(claim.request_id, None) is not None:  # else it is forgotten already
            self.traces.add(claim.trace)
            self._changed()


_EFFECTS: dict[Effect, Callable[..., None]] = {
    Effect.START: ClaimLedger._start,
    Effect.TELL: ClaimLedger._tell,
    Effect.SHOW: ClaimLedger._show,
    Effect.PASS: ClaimLedger._pass,
    Effect.KEEP: ClaimLedger._keep,
    Effect.DROP: ClaimLedger._drop,
    Effect.FREE: ClaimLedger._free,
    Effect.UNSCHEDULE: ClaimLedger._unschedule,
    Effect.FLAG: ClaimLedger._flag,
    Effect.DELIVER: ClaimLedger._deliver,
    Effect.FAIL: ClaimLedger._fail,
    Effect.CLOSE: ClaimLedger._close,
}
