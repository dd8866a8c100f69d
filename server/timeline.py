"""``GET /v1/timeline``: what the devices did just now, for a picture of it.

It tells times and nothing of whose they are: no names of requests, no prompts.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ..engine import EngineStatistics, RequestTrace, WorkerStatistics
from .schemas import ERRORS
from .service import Service

MOST = 2000
"""Requests in one answer: the latest."""

Moment = Annotated[
    float | None,
    Field(description="Milliseconds from now, so negative; null: it did not get there."),
]


class TracedRequest(BaseModel):
    """When the phases of a request that has ended took place."""

    number: int = Field(description="Counts the requests that have ended.")
    worker: int = Field(description="Who ran it; -1: nobody.")
    outcome: Literal["completed", "failed", "aborted"]
    submitted: Moment
    dispatched: Moment
    forward_start: Moment
    forward_end: Moment
    copy_start: Moment
    copy_end: Moment
    arrived: Moment
    ended: Moment


class TimelineWorker(BaseModel):
    """A worker now."""

    index: int
    device: str
    running: int = Field(description="Requests that it has been given and has not finished.")
    busy_seconds: float = Field(description="With a forward, since the start.")
    bubble_seconds: float = Field(
        description="Without one while the next request was waiting, since the start."
    )


class Timeline(BaseModel):
    """What the devices did, since an earlier look."""

    last: int = Field(description="Number of the latest request that has ended, for `after`.")
    waiting: int = Field(description="Requests in the queue.")
    running: int = Field(description="Requests whose forward is under way.")
    workers: list[TimelineWorker]
    requests: list[TracedRequest] = Field(description="Those that have ended, oldest first.")


def timeline_routes(service: Service) -> APIRouter:
    """Make the route."""
    router = APIRouter(tags=["requests"], responses=ERRORS)

    @router.get("/v1/timeline")
    async def get_timeline(
        after: Annotated[
            int, Query(ge=0, le=2**63 - 1, description="`last` of the answer before.")
        ] = 0,
    ) -> Timeline:
        """Tell when the forwards and copies of the latest requests took place."""
        engine = service.ready_engine()
        # The one that is known already tells an engine from its successor, which counts anew.
        traces = engine.traces(max(0, after - 1))
        if after and not traces:
            after, traces = 0, engine.traces()
        news = [trace for trace in traces if trace.number > after][-MOST:]
        return timeline(news, engine.statistics(), after, time.monotonic_ns())

    return router


def timeline(
    traces: list[RequestTrace], statistics: EngineStatistics, after: int, now: int
) -> Timeline:
    """Make an answer.

    Args:
      traces: oldest first.
      statistics: of the same moment.
      after: number of the last trace that is known already.
      now: the moment, ns of CLOCK_MONOTONIC.
    """
    return Timeline(
        last=traces[-1].number if traces else after,
        waiting=statistics.waiting,
        running=statistics.running,
        workers=[_worker(worker) for worker in statistics.workers],
        requests=[_request(trace, now) for trace in traces],
    )


def _worker(worker: WorkerStatistics) -> TimelineWorker:
    return TimelineWorker(
        index=worker.index,
        device=worker.device,
        running=len(worker.running),
        busy_seconds=round(worker.busy_seconds, 6),
        bubble_seconds=round(worker.bubble_seconds, 6),
    )


_MOMENTS = [
    "submitted",
    "dispatched",
    "forward_start",
    "forward_end",
    "copy_start",
    "copy_end",
    "arrived",
    "ended",
]


def _request(trace: RequestTrace, now: int) -> TracedRequest:
    assert trace.outcome is not None, "requests that have not ended are not told"
    moments = {name: _since(getattr(trace, name), now) for name in _MOMENTS}
    return TracedRequest(number=trace.number, worker=trace.worker, outcome=trace.outcome, **moments)


def _since(moment: int, now: int) -> float | None:
    return round((moment - now) / 1e6, 3) if moment else None
