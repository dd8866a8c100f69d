"""A picture of runs: forwards, copies and bubbles of each worker over time; needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..chrome_trace import Span, rows_of, spans_of
from ..trace import RequestTrace
from .run_summary import merged, summarize

DRAWN = 40
"""Requests of a run that are drawn, the first ones; more would be too narrow to see."""

# From Okabe and Ito's palette, which the colour-blind can tell apart.
FORWARD, COPY, BUBBLE = "#0072B2", "#E69F00", "#D55E00"
INK, PALE = "#222222", "#777777"
WIDTH, ROW, TITLE, ABOVE, BELOW = 11.0, 0.3, 0.46, 0.15, 0.55
"""Inches: the figure, a row, what stands above the rows of a run, above all, below all."""
LEFT, RIGHT = 0.12, 0.985
"""Where the bars begin and end, shares of the width."""
DPI = 110
NUMBERED = 0.011
"""Share of the scale from which on a bar has room for its request's number."""


@dataclass(frozen=True, slots=True)
class Row:
    """Bars side by side: of which worker, and whether "forward" or "copy"."""

    worker: int
    name: str
    spans: list[Span]


def draw_timeline(runs: Mapping[str, Sequence[RequestTrace]], path: Path) -> None:
    """Draw runs under one another, on one scale of time, into a PNG file.

    Args:
      runs: traces by the name of the run.
      path: of the file, which is replaced.

    Raises:
      OSError: it cannot be written.
    """
    panels = [Panel(name, traces) for name, traces in runs.items()]
    height = ABOVE + BELOW + sum(panel.height for panel in panels)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    scale = max((panel.length for panel in panels), default=0.0) or 1.0
    bottom = height - ABOVE
    for panel in panels:
        bottom -= panel.height
        box = (LEFT, bottom / height, RIGHT - LEFT, (panel.height - TITLE) / height)
        axes = figure.add_axes(box)
        panel.draw(axes, scale)
        if panel is panels[-1]:
            axes.tick_params(bottom=True, labelbottom=True)
            axes.set_xlabel("ms since the first request was submitted", color=INK)
    figure.legend(
        handles=[
            Patch(color=FORWARD, label="forward"),
            Patch(color=COPY, label="copy to the host"),
            Patch(
                facecolor="none", edgecolor=BUBBLE, hatch="////", label="bubble: no forward runs"
            ),
        ],
        loc="upper right",
        bbox_to_anchor=(RIGHT, 1.0),
        ncols=3,
        frameon=False,
    )
    figure.savefig(path, format="png")


class Panel:
    """One run: the first of its requests, drawn, and figures of all of them."""

    def __init__(self, name: str, traces: Sequence[RequestTrace]) -> None:
        began = sorted(traces, key=lambda trace: trace.submitted)
        shown = began[:DRAWN]
        self._title = f"{name}: {summarize(traces)}".removeprefix(": ")
        if len(shown) < len(traces):
            self._title += f" (drawn: {DRAWN} of {len(traces)} requests)"
        self._origin = shown[0].submitted if shown else 0
        self._numbers = {id(trace): number for number, trace in enumerate(shown, 1)}
        self._rows = list(_rows(shown))
        self.height = TITLE + ROW * max(1, len(self._rows))
        ends = (span.end for row in self._rows for span in row.spans)
        self.length = (max(ends, default=self._origin) - self._origin) / 1e6

    def draw(self, axes: Axes, scale: float) -> None:
        """Draw the rows on axes whose width stands for `scale` ms."""
        axes.set_title(self._title, loc="left", fontsize=10, color=INK, pad=6)
        axes.set_xlim(-0.004 * scale, 1.004 * scale)
        axes.set_ylim(max(1, len(self._rows)) - 0.5, -0.5)
        axes.set_yticks(range(len(self._rows)), self._labels(), fontsize=9, color=INK)
        axes.tick_params(left=False, bottom=False, labelbottom=False, colors=PALE, labelcolor=INK)
        axes.grid(axis="x", color="#E5E5E5", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in axes.spines.values():
            side.set_visible(False)
        for height, row in enumerate(self._rows):
            self._draw_row(axes, height, row, scale)
        for worker in {row.worker for row in self._rows}:
            self._draw_bubbles(axes, worker)

    def _labels(self) -> list[str]:
        several = len({row.worker for row in self._rows}) > 1
        labels = [f"worker {row.worker} {row.name}" if several else row.name for row in self._rows]
        return [
            "" if label == before else label for before, label in itertools.pairwise(["", *labels])
        ]

    def _draw_row(self, axes: Axes, height: int, row: Row, scale: float) -> None:
        forward = row.name == "forward"
        colour = FORWARD if forward else COPY
        edge = "white" if forward else COPY  # forwards touch; a copy can be too short to be seen
        bars = [self._bar(span.start, span.end) for span in row.spans]
        axes.broken_barh(
            bars, (height - 0.4, 0.8), facecolors=colour, edgecolor=edge, linewidth=0.6
        )
        for (left, width), span in zip(bars, row.spans, strict=True):
            if width >= NUMBERED * scale:
                axes.text(
                    left + width / 2,
                    height,
                    str(self._numbers[id(span.trace)]),
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color="white" if forward else INK,
                )

    def _draw_bubbles(self, axes: Axes, worker: int) -> None:
        heights = [
            h for h, r in enumerate(self._rows) if r.worker == worker and r.name == "forward"
        ]
        forwards = [(s.start, s.end) for height in heights for s in self._rows[height].spans]
        gaps = [self._bar(a[1], b[0]) for a, b in itertools.pairwise(merged(forwards))]
        axes.broken_barh(
            gaps,
            (heights[0] - 0.4, len(heights) - 0.2),
            facecolors="#FBE9DF",
            edgecolor=BUBBLE,
            hatch="////",
            linewidth=0,
        )

    def _bar(self, start: int, end: int) -> tuple[float, float]:
        """Return where a bar begins and how long it is, ms."""
        return (start - self._origin) / 1e6, (end - start) / 1e6


def _rows(traces: Sequence[RequestTrace]) -> Iterator[Row]:
    """Return each worker's forwards, then its copies, in rows without overlap."""
    spans = [span for trace in traces for span in spans_of(trace)]
    for worker in sorted({span.trace.worker for span in spans if span.trace.worker >= 0}):
        for name in ("forward", "copy"):
            mine = [s for s in spans if s.trace.worker == worker and s.name == name]
            yield from (Row(worker, name, row) for row in rows_of(mine))
