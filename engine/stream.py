"""`RequestStream`: a request as its caller sees it, event by event or straight to the result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from .delivery import Claim
from .errors import DeadlineExceededError
from .result import (
    Chunk,
    Completed,
    DiffusionResult,
    Event,
    Preview,
    Progress,
    Queued,
    RequestTimings,
    Started,
)
from .trace import RequestTrace

HostStage = Callable[..., Awaitable[list[Any]]]


class RequestStream:
    """An async iterator of a request's events; made by `DiffusionEngine.stream`.

    Iteration ends after `Completed`. An error of the request is raised by the iteration.
    """

    def __init__(
        self, claim: Claim, position: Callable[[], int | None], host_stage: HostStage
    ) -> None:
        self._claim = claim
        self._position: Callable[[], int | None] | None = position
        self._told_start = False
        self._told_progress: tuple[int, int | None] | None = None
        self._host_stage = host_stage
        self._result: DiffusionResult | None = None

    @property
    def request_id(self) -> str:
        """The name of the request, for `DiffusionEngine.abort`."""
        return self._claim.request_id

    @property
    def trace(self) -> RequestTrace:
        """When its phases took place, as far as it has come."""
        return self._claim.trace

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        if self._result is not None:
            raise StopAsyncIteration
        while True:
            if not self._claim.mailbox.settled:
                self._check_deadline()
            event = self._news() or await self._pictures()
            if event is not None:
                return event
            if self._claim.mailbox.settled:
                return Completed(self.request_id, await self.result())
            await self._wait()

    async def result(self) -> DiffusionResult:
        """Wait for the result, whatever events may come before it.

        Raises:
          ExecutionError: the pipeline raised.
          OutputError: what it made cannot be turned into what the request asked for.
          RequestAborted: somebody called `DiffusionEngine.abort`.
          DeadlineExceededError: the request's deadline passed.
          WorkerDiedError: the worker has gone.
          EngineDeadError, EngineClosedError: the engine has.
        """
        mailbox = self._claim.mailbox
        mailbox.refuse_chunks()
        if self._result is None:
            if not await mailbox.wait_settled(self._claim.deadline):
                self._expire()
            if mailbox.error is None:
                try:
                    self._result = await self._finish()
                except Exception as error:
                    traceback.clear_frames(error.__traceback__)  # they hold the ring's memory
                    mailbox.fail(error)
                mailbox.collect()
        if mailbox.error is not None:
            raise mailbox.error
        assert self._result is not None
        return self._result

    def _news(self) -> Event | None:
        mailbox = self._claim.mailbox
        if self._position is not None:
            position, self._position = self._position, None
            return Queued(self.request_id, position() or 0)
        if mailbox.started_on is not None and not self._told_start:
            self._told_start = True
            return Started(self.request_id, mailbox.started_on)
        if mailbox.progress not in (None, self._told_progress) and mailbox.error is None:
            self._told_progress = mailbox.progress
            return Progress(self.request_id, *mailbox.progress, mailbox.eta)
        return None

    async def _pictures(self) -> Event | None:
        """Return a finished part, else the latest preview, else nothing."""
        mailbox = self._claim.mailbox
        if mailbox.error is not None:
            return None
        if mailbox.chunks:
            index, tensors = mailbox.chunks[0]
            outputs = await self._host_stage(self._claim, tensors)
            mailbox.chunks.popleft()  # not before: a wait that is cancelled can be repeated
            return Chunk(self.request_id, index, outputs)
        if mailbox.preview is not None and not mailbox.delivered:
            (step, picture), mailbox.preview = mailbox.preview, None
            images = await self._host_stage(self._claim, {"preview": picture}, preview=True)
            return Preview(self.request_id, images[0], step)
        return None

    async def _wait(self) -> None:
        if not await self._claim.mailbox.wait(self._claim.deadline):
            self._expire()

    def _check_deadline(self) -> None:
        if trio.current_time() > self._claim.deadline:
            self._expire()

    def _expire(self) -> None:
        limit = self._claim.prepared.request.sampling.deadline
        self._claim.mailbox.fail(
            DeadlineExceededError(f"request {self.request_id!r} did not finish within {limit:g} s")
        )

    async def _finish(self) -> DiffusionResult | None:
        claim = self._claim
        claim.trace.postprocess_start = time.monotonic_ns()
        # Dropped afterwards: who waits for a while only, and is cancelled here, may ask again.
        outputs = await self._host_stage(claim, claim.output.tensors())
        claim.output.drop()
        self._check_deadline()
        claim.trace.postprocess_end = time.monotonic_ns()
        claim.trace.outcome = "completed"  # who sees the result sees this, too
        timings = RequestTimings.of(claim.trace, trio.current_time() - claim.submitted)
        return DiffusionResult(self.request_id, outputs, claim.prepared.seeds[0], timings)
