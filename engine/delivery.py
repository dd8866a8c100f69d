"""`Claim`: one request while it lives, and `Mailbox`: where its caller waits."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field

import trio

from ..ipc_ext.tensors import HostTensor
from .admission import PreparedRequest
from .assembly import OutputAssembly
from .claims import ClaimState
from .signals import Signal
from .trace import RequestTrace


class Mailbox:
    """What the caller of a request has been told; written by the engine, read by one task.

    Progress and previews are coalesced: only the latest is kept, so nothing grows while the caller
    is slow. Chunks are all kept; together they are the output. The outcome is set once.
    """

    def __init__(self) -> None:
        self._signal = Signal()
        self.started_on: int | None = None
        self.progress: tuple[int, int | None] | None = None
        self.preview: tuple[int, HostTensor] | None = None
        self.chunks: deque[tuple[int, dict[str, HostTensor]]] = deque()
        self._wants_chunks = True
        self._wants_outcome_only = False
        self._pace: tuple[float, int] | None = None
        self.error: BaseException | None = None
        self.delivered = False
        self.collected = False

    @property
    def settled(self) -> bool:
        """Whether the outcome is there."""
        return self.delivered or self.error is not None

    def start(self, worker: int) -> None:
        """Tell that a worker has the request."""
        self.started_on = worker
        self._announce()

    def tell(self, step: int, total: int | None) -> None:
        """Tell a step."""
        self.progress = (step, total)
        if self._pace is None and step:
            self._pace = time.monotonic(), step
        self._announce()

    @property
    def eta(self) -> float | None:
        """Seconds until the last step, at the pace since the first one."""
        if self._pace is None or self.progress is None:
            return None
        (began, first), (step, total) = self._pace, self.progress
        if total is None or step <= first:
            return None
        return max(total - step, 0) * (time.monotonic() - began) / (step - first)

    def show(self, step: int, picture: HostTensor) -> None:
        """Show an intermediate picture."""
        self.preview = (step, picture)
        self._announce()

    def pass_on(self, index: int, tensors: dict[str, HostTensor]) -> None:
        """Pass a finished part on, if anybody looks at parts."""
        if self._wants_chunks:
            self.chunks.append((index, tensors))
            self._announce()

    def _announce(self) -> None:
        """Wake who waits for news, but not who waits for the outcome."""
        if not self._wants_outcome_only:
            self._signal.set()

    def refuse_chunks(self) -> None:
        """Keep no finished parts, since the caller waits for the whole."""
        self._wants_chunks = False
        self.chunks.clear()

    def deliver(self) -> None:
        """Tell that the output is complete."""
        if not self.settled:
            self.delivered = True
            self._signal.set()

    def fail(self, error: BaseException) -> None:
        """Tell the error; the first outcome stands, but an abort may still overtake a result not
        yet handed out."""
        if self.error is None and not self.collected:
            self.error = error
            self._signal.set()

    def collect(self) -> None:
        """Note that the caller has the result."""
        self.collected = self.error is None

    async def wait(self, deadline: float) -> bool:
        """Wait for news; False if the deadline came first."""
        return await self._signal.wait(deadline)

    async def wait_settled(self, deadline: float) -> bool:
        """Wait for the outcome, whatever is told before it; False if the deadline came first."""
        self._wants_outcome_only = True
        try:
            while not self.settled:
                if not await self._signal.wait(deadline):
                    return False
            return True
        finally:
            self._wants_outcome_only = False


@dataclass(eq=False, slots=True)
class Claim:
    """A request in the engine: its place in the table of `claims`, and what goes with it."""

    async_output_id: int
    prepared: PreparedRequest
    submitted: float
    """On Trio's clock."""
    trace: RequestTrace
    state: ClaimState = ClaimState.QUEUED
    mailbox: Mailbox = field(default_factory=Mailbox)
    output: OutputAssembly = field(default_factory=OutputAssembly)
    chunk: OutputAssembly = field(default_factory=OutputAssembly)
    """The finished part of the output that is coming, if one is."""
    next_chunk: int = 0
    wave: int = -1
    cancel_slot: int = -1
    caller_left: bool = False
    closed: trio.Event = field(default_factory=trio.Event)

    @property
    def request_id(self) -> str:
        """The caller's name for it."""
        return self.prepared.request.request_id

    @property
    def worker(self) -> int:
        """Who was given it, -1 while nobody was."""
        return self.trace.worker

    @property
    def deadline(self) -> float:
        """When the caller stops waiting, on Trio's clock."""
        limit = self.prepared.request.sampling.deadline
        return math.inf if limit is None else self.submitted + limit
