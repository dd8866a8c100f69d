"""What `DiffusionEngine.statistics` returns."""

from __future__ import annotations

from dataclasses import dataclass

from .claims import LEFT
from .executor.base import DiffusionExecutor, WorkerStatus
from .ledger import ClaimLedger
from .sched import BaseScheduler
from .worker_load import WorkerLoad


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker."""

    index: int
    pid: int | None
    """None for a worker on a thread of this process."""
    device: str
    state: str
    heartbeat_age: float
    """Seconds since the worker last showed that it lives."""
    running: tuple[str, ...]
    """Ids of the requests that it has been given and has not finished."""
    waves: int
    """Waves or ticks that it holds: one runs, the others wait."""
    pending_outputs: int
    """Computed outputs that are on their way."""
    busy_seconds: float
    """How long forwards have run on its device since the start, s."""
    bubble_seconds: float
    """How long its device ran none while the next request was waiting already, s."""
    output_ring_bytes: int
    output_ring_used: int
    output_ring_held: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """An engine at one moment."""

    waiting: int
    """Requests in the queue."""
    preempted: int
    """Of these, requests that have run already and gave way to more urgent ones."""
    running: int
    """Requests whose forward has been dispatched and has not ended."""
    aborting: int
    """Requests that their caller has left and that a worker still holds."""
    pending_outputs: int
    """Computed outputs that are on their way."""
    claims: int
    """Requests that the engine or a worker holds: waiting, running, pending and aborting ones."""
    waves: int
    """Waves or ticks that workers hold."""
    waves_dispatched: int
    """Waves or ticks since the start."""
    cancel_slots_used: int
    completed: int
    """Requests since the start whose caller got a result."""
    failed: int
    """Requests since the start that ended by an error or their deadline."""
    aborted: int
    """Requests since the start that were cancelled or aborted."""
    ring_bytes: int
    """Shared memory for outputs, all workers."""
    ring_bytes_used: int
    ring_bytes_held: int
    """Of the used ones, bytes that arrays in callers' hands hold."""
    workers: tuple[WorkerStatistics, ...]


def engine_statistics(
    scheduler: BaseScheduler, ledger: ClaimLedger, executor: DiffusionExecutor
) -> EngineStatistics:
    """Gather what the parts of an engine know."""
    loads = ledger.loads
    running: list[list[str]] = [[] for _ in loads]
    for claim in ledger:
        if claim.worker >= 0:
            running[claim.worker].append(claim.request_id)
    workers = tuple(
        _worker_statistics(status, load, running[status.index])
        for status, load in zip(executor.workers(), loads, strict=True)
    )
    return EngineStatistics(
        waiting=scheduler.num_waiting,
        preempted=scheduler.num_preempted,
        running=scheduler.num_running,
        aborting=sum(claim.state in LEFT for claim in ledger),
        pending_outputs=sum(load.outputs for load in loads),
        claims=len(ledger),
        waves=sum(load.in_flight for load in loads),
        waves_dispatched=sum(load.dispatched for load in loads),
        cancel_slots_used=sum(load.cancel_slots - len(load.free_slots) for load in loads),
        **ledger.ended,
        ring_bytes=sum(worker.output_ring_bytes for worker in workers),
        ring_bytes_used=sum(worker.output_ring_used for worker in workers),
        ring_bytes_held=sum(worker.output_ring_held for worker in workers),
        workers=workers,
    )


def _worker_statistics(
    status: WorkerStatus, load: WorkerLoad, running: list[str]
) -> WorkerStatistics:
    return WorkerStatistics(
        index=status.index,
        pid=status.pid,
        device=status.device,
        state=status.state,
        heartbeat_age=status.heartbeat_age,
        running=tuple(running),
        waves=load.in_flight,
        pending_outputs=load.outputs,
        busy_seconds=load.device.busy_ns / 1e9,
        bubble_seconds=load.device.bubble_ns / 1e9,
        output_ring_bytes=status.output_ring_bytes,
        output_ring_used=status.output_ring_used,
        output_ring_held=status.output_ring_held,
    )
