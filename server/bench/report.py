"""`Report`: what a run has shown, as an object for JSON and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .load import Record

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
COLUMNS = ("requests", "completed", "failed", "cancelled", "per s", *QUANTILES)


@dataclass(frozen=True)
class Row:
    """Counts and times of some requests; times in seconds."""

    requests: int
    completed: int
    failed: int
    cancelled: int
    """Those whose client left before it had its answer."""
    unfinished: int
    """Those that were under way when the run was interrupted."""
    per_second: float
    """Completed ones."""
    latency: dict[str, float] | None
    """Of completed ones."""
    first_partial: dict[str, float] | None
    """Until the first partial image, of all that had one."""


@dataclass(frozen=True)
class Report:
    """What a run has shown."""

    elapsed: float
    """Seconds from the start to the end of the last request."""
    all: Row
    kinds: dict[str, Row]
    errors: dict[str, int]
    """Failed requests by status and code, the most frequent first."""
    late: dict[str, float] | None
    """Seconds from the time of a request until it was sent."""

    @classmethod
    def of(cls, records: Sequence[Record], kinds: Sequence[str], elapsed: float) -> Report:
        """Make the report of some records.

        Args:
          records: of all requests.
          kinds: names of all kinds.
          elapsed: seconds from the start to the end of the last request.
        """
        answers = [record.answer for record in records if record.outcome == "failed"]
        errors = Counter(f"{answer.status or '-'} {answer.code}" for answer in answers if answer)
        return cls(
            elapsed=elapsed,
            all=_row(records, elapsed),
            kinds={
                name: _row([record for record in records if record.kind == name], elapsed)
                for name in kinds
            },
            errors=dict(errors.most_common()),
            late=_quantiles([record.late for record in records if record.late is not None]),
        )

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self)

    def table(self) -> str:
        """Return it for people; times in seconds."""
        rows: list[tuple[str, Sequence[str]]] = [("", COLUMNS)]
        if len(self.kinds) > 1:
            for name, row in self.kinds.items():
                rows += _lines(name, row)
        rows += _lines("all", self.all)
        width = max(len(name) for name, _ in rows)
        lines = [
            f"{name.ljust(width)}  " + "  ".join(map(str.rjust, cells, map(_width, COLUMNS)))
            for name, cells in rows
        ]
        lines += [f"{count} x {error}" for error, count in self.errors.items()]
        if self.all.unfinished:
            lines.append(f"{self.all.unfinished} were under way when it was interrupted")
        return "\n".join(line.rstrip() for line in lines)


def _row(records: Sequence[Record], elapsed: float) -> Row:
    outcomes = Counter(record.outcome for record in records)
    return Row(
        requests=len(records),
        completed=outcomes["completed"],
        failed=outcomes["failed"],
        cancelled=outcomes["cancelled"],
        unfinished=outcomes["unfinished"],
        per_second=outcomes["completed"] / elapsed if elapsed else 0.0,
        latency=_quantiles([record.latency for record in records if record.outcome == "completed"]),
        first_partial=_quantiles(
            [record.first_partial for record in records if record.first_partial is not None]
        ),
    )


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Return the mean and some quantiles: of n sorted values, the one at the rank q * n."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {name: math.ceil(share * len(ordered)) for name, share in QUANTILES.items()}
    mean = math.fsum(ordered) / len(ordered)
    return {"mean": mean, **{name: ordered[rank - 1] for name, rank in ranks.items()}}


def _lines(name: str, row: Row) -> list[tuple[str, Sequence[str]]]:
    counts = map(str, (row.requests, row.completed, row.failed, row.cancelled))
    cells = [*counts, f"{row.per_second:.2f}", *_times(row.latency)]
    lines: list[tuple[str, Sequence[str]]] = [(name, cells)]
    if row.first_partial is not None:
        lines.append(("  first partial", [*[""] * 5, *_times(row.first_partial)]))
    return lines


def _times(quantiles: dict[str, float] | None) -> list[str]:
    return ["-" if quantiles is None else f"{quantiles[name]:.3f}" for name in QUANTILES]


def _width(column: str) -> int:
    return max(len(column), 7)
