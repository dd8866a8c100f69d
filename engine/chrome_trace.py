"""Traces as Chrome's trace events, for https://ui.perfetto.dev and chrome://tracing.

Requests that overlap lie in rows of their own, since the slices of one row have to nest; so do
forwards that overlap, those of a wave or of step mode. Slices are pairs of B and E, not single X
events: a viewer that rounds the times of X events finds neighbours that overlap, and drops one.

The format: "Trace Event Format" by the Chromium project, in the parts that Perfetto reads.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .trace import RequestTrace

PHASES = (
    ("queued", "submitted", "dispatched"),
    ("dispatched", "dispatched", "forward_start"),
    ("forward", "forward_start", "forward_end"),
    ("copy", "copy_start", "copy_end"),
    ("arriving", "copy_end", "arrived"),
    ("postprocess", "postprocess_start", "postprocess_end"),
)
"""Name of a phase, and the time stamps of its beginning and its end."""

Track = tuple[int, int]
"""Numbers of a process and a thread, as the format calls them."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a request's time, ns of CLOCK_MONOTONIC."""

    trace: RequestTrace
    name: str
    start: int
    end: int
    flow: int = 0
    """Number of the request in a document."""


def spans_of(trace: RequestTrace, flow: int = 0) -> list[Span]:
    """Return the phases that a request has reached, in order; none begins before another ends.

    The phase in which it ended lasts until then. What would begin too early is moved: a copy is
    queued on its device while the forward still runs, and a device's clock is known only so well.
    """
    spans: list[Span] = []
    now = trace.submitted
    for name, first, last in PHASES:
        start, end = getattr(trace, first), getattr(trace, last)
        if start and (end or trace.ended > start):
            start = max(start, now)
            now = max(start, end or trace.ended)
            spans.append(Span(trace, name, start, now, flow))
    return spans


def rows_of(spans: Iterable[Span]) -> list[list[Span]]:
    """Distribute spans over as few rows as there can be without an overlap in any."""
    rows: list[list[Span]] = []
    ends: list[tuple[int, int]] = []  # of the last span of each row
    for span in sorted(spans, key=lambda span: span.start):
        if ends and ends[0][0] <= span.start:
            row = heapq.heappop(ends)[1]
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(span)
        heapq.heappush(ends, (span.end, row))
    return rows


def chrome_trace(
    traces: Iterable[RequestTrace] | Mapping[str, Iterable[RequestTrace]],
) -> dict[str, Any]:
    """Make a document that `json.dump` writes and Perfetto opens.

    It shows each worker's forwards and copies, each request's phases, arrows from a request to its
    forward and on to its copy, and how many requests wait and run.

        json.dump(chrome_trace(engine.traces()), file)

    Args:
      traces: of requests that have ended. Or several runs by name; they are laid over one another,
        each beginning at 0.
    """
    runs = traces if isinstance(traces, Mapping) else {"": traces}
    document = _Document()
    origins = {name: document.add(name, list(run)) for name, run in runs.items()}
    return {
        "traceEvents": document.events,
        "displayTimeUnit": "ms",
        "otherData": {"clock": "CLOCK_MONOTONIC", "origin_ns": origins},
    }


class _Document:
    """Trace events, and the numbers of tracks and requests."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)  # 0 is a process of the viewer's own
        self._flows = itertools.count(1)
        self._origin = 0

    def add(self, run: str, traces: list[RequestTrace]) -> int:
        """Add the tracks of a run; return when it began, ns."""
        self._origin = min((trace.submitted for trace in traces), default=0)
        prefix = f"{run}: " if run else ""
        requests = [spans for trace in traces if (spans := spans_of(trace, next(self._flows)))]
        self._add_requests(f"{prefix}requests", requests)
        for worker in sorted({trace.worker for trace in traces if trace.worker >= 0}):
            mine = [spans for spans in requests if spans[0].trace.worker == worker]
            self._add_worker(f"{prefix}worker {worker}", list(itertools.chain(*mine)))
        return self._origin

    def _add_requests(self, title: str, requests: list[list[Span]]) -> None:
        process = self._process(title)
        for time, counts in _counts(itertools.chain(*requests)):
            self._put("C", (process, process), time, name="requests", args=counts)
        whole = (
            Span(spans[0].trace, "", spans[0].start, spans[-1].end, spans[0].flow)
            for spans in requests
        )
        for row in rows_of(whole):
            track = self._thread(process, "requests")
            for request in row:
                self._begin(track, request.start, _label(request.trace), **_about(request.trace))
                for span in spans_of(request.trace, request.flow):
                    self._begin(track, span.start, span.name)
                    if span.name == "forward":
                        self._flow("s", track, span)
                    self._put("E", track, span.end)
                self._put("E", track, request.end)

    def _add_worker(self, title: str, spans: list[Span]) -> None:
        process = self._process(title)
        for phase, name in (("forward", "forwards"), ("copy", "copies")):
            for row in rows_of(span for span in spans if span.name == phase):
                track = self._thread(process, name)
                for span in row:
                    self._begin(track, span.start, _label(span.trace), **_about(span.trace))
                    on_to_copy = phase == "forward" and span.trace.copy_start
                    self._flow("t" if on_to_copy else "f", track, span)
                    self._put("E", track, span.end)

    def _process(self, title: str) -> int:
        number = next(self._numbers)
        self._describe("process", (number, number), title)
        return number

    def _thread(self, process: int, title: str) -> Track:
        track = process, next(self._numbers)
        self._describe("thread", track, title)
        return track

    def _describe(self, what: str, track: Track, title: str) -> None:
        process, thread = track
        for name, argument in (("name", title), ("sort_index", thread)):
            self.events.append(
                {
                    "ph": "M",
                    "pid": process,
                    "tid": thread,
                    "name": f"{what}_{name}",
                    "args": {name: argument},
                }
            )

    def _begin(self, track: Track, time: int, name: str, **about: Any) -> None:
        self._put("B", track, time, name=name, args=about)

    def _flow(self, phase: str, track: Track, span: Span) -> None:
        """Lay the request's arrow through the slice that has just begun."""
        binding = {"bp": "e"} if phase == "f" else {}
        self._put(phase, track, span.start, name="request", id=span.flow, **binding)

    def _put(self, phase: str, track: Track, time: int, **fields: Any) -> None:
        process, thread = track
        moment = (time - self._origin) / 1e3
        event = {"ph": phase, "cat": "sidestream", "pid": process, "tid": thread, "ts": moment}
        self.events.append(event | fields)


def _label(trace: RequestTrace) -> str:
    """Name a request; viewers colour slices by their names, so this one is the same everywhere."""
    outcome = "" if trace.outcome == "completed" else f" ({trace.outcome})"
    return trace.request_id + outcome


def _about(trace: RequestTrace) -> dict[str, Any]:
    return {
        "request": trace.request_id,
        "outcome": trace.outcome,
        "worker": trace.worker,
        "number": trace.number,
    }


def _counts(spans: Iterable[Span]) -> list[tuple[int, dict[str, int]]]:
    """Return how many requests wait and run, at each time at which that changes."""
    states = {"queued": "waiting", "dispatched": "running", "forward": "running"}
    changes: dict[int, dict[str, int]] = defaultdict(lambda: {"waiting": 0, "running": 0})
    for span in spans:
        if state := states.get(span.name):
            changes[span.start][state] += 1
            changes[span.end][state] -= 1
    counts = {"waiting": 0, "running": 0}
    moments = []
    for time, change in sorted(changes.items()):
        if any(change.values()):
            counts = {state: count + change[state] for state, count in counts.items()}
            moments.append((time, counts))
    return moments
