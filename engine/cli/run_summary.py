"""What the traces of a run say in a line: how quick it was, how long devices worked and waited."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..trace import RequestTrace

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Figures of a run; a figure is None where there is nothing that it could be taken from."""

    requests: int
    requests_per_s: float | None
    """From the first submission to the last result."""
    busy: float | None
    """Share of the time from a device's first forward to its last one that forwards take."""
    bubble_ms: float | None
    """How long a device runs no forward between two, mean."""
    output_ms: float | None
    """From the end of a forward until its output is in the engine's hands, median."""

    def __str__(self) -> str:
        """Tell the figures that there are."""
        figures = (
            ("{:.1f} requests/s", self.requests_per_s),
            ("busy {:.1f} %", None if self.busy is None else 100 * self.busy),
            ("bubble {:.2f} ms", self.bubble_ms),
            ("forward to engine {:.2f} ms", self.output_ms),
        )
        told = [text.format(value) for text, value in figures if value is not None]
        return ", ".join(told) or "no request was run"


def summarize(traces: Sequence[RequestTrace]) -> RunSummary:
    """Condense the traces of one run."""
    ran = [trace for trace in traces if trace.forward_end]
    arrived = [trace for trace in ran if trace.arrived]
    busy = idle = bubbles = 0
    for worker in {trace.worker for trace in ran}:
        forwards = [(t.forward_start, t.forward_end) for t in ran if t.worker == worker]
        work = merged(forwards)
        worked = sum(end - start for start, end in work)
        busy += worked
        idle += work[-1][1] - work[0][0] - worked
        bubbles += len({start for start, _ in forwards}) - 1  # those of a wave begin together
    done = [trace for trace in traces if trace.outcome == "completed"]
    seconds = (
        max((t.ended for t in done), default=0) - min((t.submitted for t in traces), default=0)
    ) / 1e9
    return RunSummary(
        requests=len(traces),
        requests_per_s=len(done) / seconds if done else None,
        busy=busy / (busy + idle) if busy else None,
        bubble_ms=idle / bubbles / 1e6 if bubbles else None,
        output_ms=statistics.median(t.arrived - t.forward_end for t in arrived) / 1e6
        if arrived
        else None,
    )


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """Return where at least one of some intervals is, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
