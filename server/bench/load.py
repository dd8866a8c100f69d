"""`Load`: lets visits happen at their time, and records what comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import trio

from .client import Answer, ImagesClient
from .plan import Plan, Visit

PAUSE = 0.1
"""Seconds that a client of a closed loop waits after a failure: most are told at once."""

Outcome = Literal["completed", "failed", "cancelled", "unfinished"]


@dataclass(slots=True)
class Record:
    """What has come of one request."""

    kind: str
    outcome: Outcome = "unfinished"
    answer: Answer | None = None
    late: float | None = None
    """Seconds from its time until it was sent; None if it never was."""
    latency: float = 0.0
    """Seconds from its time until its end."""
    first_partial: float | None = None
    """Seconds from its time until the first partial image."""


class Load:
    """Runs a plan against a server.

    In an open loop requests have a time at which they come, whatever the server does, and all that
    is measured counts from then: one that had to wait here, since the server was slow with others,
    has waited.

    Args:
      client: asks.
      plan: what for.
      duration: seconds in which requests come; those that have come are waited for.
      concurrency: most requests at a time.
      timeout: seconds for a request, from its time.
    """

    def __init__(
        self,
        client: ImagesClient,
        plan: Plan,
        *,
        duration: float,
        concurrency: int,
        timeout: float,
    ) -> None:
        self._client = client
        self._plan = plan
        self._duration = duration
        self._concurrency = concurrency
        self._timeout = timeout
        self._places = trio.CapacityLimiter(concurrency)
        self._start = trio.current_time()
        self.records: list[Record] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return trio.current_time() - self._start

    async def run(self) -> None:
        """Let all requests come, and wait for them; can be cancelled."""
        self._start = trio.current_time()
        visits = self._plan.visits()
        async with trio.open_nursery() as nursery:
            if self._plan.rate is None:
                for _ in range(self._concurrency):
                    nursery.start_soon(self._client_of_closed_loop, visits)
            else:
                await self._arrivals_of_open_loop(visits, nursery)

    async def _arrivals_of_open_loop(self, visits: Iterator[Visit], nursery: trio.Nursery) -> None:
        for visit in visits:
            if visit.at >= self._duration:
                break
            due = self._start + visit.at
            await trio.sleep_until(due)
            nursery.start_soon(self._visit, visit, due)

    async def _client_of_closed_loop(self, visits: Iterator[Visit]) -> None:
        for visit in visits:
            if self.elapsed >= self._duration:
                break
            record = await self._visit(visit, trio.current_time())
            if record.outcome == "failed":
                await trio.sleep(PAUSE)

    async def _visit(self, visit: Visit, due: float) -> Record:
        record = Record(visit.kind.name)
        self.records.append(record)

        def on_partial() -> None:
            record.first_partial = trio.current_time() - due

        with trio.move_on_at(due + min(visit.patience, self._timeout)) as limit:
            async with self._places:
                record.late = trio.current_time() - due
                record.answer = await self._client.generate(visit.body, on_partial)
        record.latency = trio.current_time() - due
        if not limit.cancelled_caught:
            record.outcome = "failed" if record.answer and record.answer.code else "completed"
        elif visit.patience <= self._timeout:
            record.outcome = "cancelled"
        else:
            record.outcome = "failed"
            record.answer = Answer(None, "timeout")
        return record
