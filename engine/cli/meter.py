"""The progress bar of a batch: denoising steps of all requests, and how many are done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, Any, Self

from tqdm import tqdm

from .request_bars import RequestBars

BAR = "{desc} {percentage:3.0f}%|{bar}|{postfix}, {rate_fmt}, {remaining} left"


class Meter:
    """Shows a bar on stderr while its block lasts.

    Args:
      count: requests.
      label: what is going on until `begin`.
      hidden: show nothing; lines are printed all the same.
      bars: labels of the requests, if each is to have a bar of its own while it runs.
    """

    def __init__(
        self, count: int, label: str, *, hidden: bool = False, bars: Sequence[str] = ()
    ) -> None:
        self._count = count
        self._label = label
        self._hidden = hidden
        self._done = 0
        self._steps = [0] * count
        self._bar: Any = None
        self._bars = RequestBars(bars, sys.stderr, hidden=hidden or not bars)

    def __enter__(self) -> Self:
        tqdm.monitor_interval = 0  # no thread of its own
        self._bar = tqdm(
            desc=self._label,
            unit="step",
            bar_format="{desc}",
            disable=self._hidden,
            file=sys.stderr,
            leave=False,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars away."""
        self._bars.close()
        self._bar.close()

    def begin(self, label: str) -> None:
        """Say that the steps begin."""
        self._bar.bar_format = BAR
        self._bar.set_description(label, refresh=False)
        self._bar.reset()
        self._refresh()

    def step(self, index: int, step: int, total: int | None, eta: float | None = None) -> None:
        """Note that a request has taken `step` of `total` steps, and needs `eta` seconds more; None
        if that is not known."""
        self._steps[index] = step
        self._bars.step(index, step, total, eta)
        if total is not None and self._bar.total is None:
            self._bar.total = total * self._count
        self._refresh()

    def done(self, index: int) -> None:
        """Note that a request has ended, well or not."""
        self._done += 1
        self._bars.done(index)
        if self._bar.total is not None:
            self._steps[index] = self._bar.total // self._count
        self._refresh()

    def print(self, line: str, file: IO[str]) -> None:
        """Print a line above the bar."""
        tqdm.write(line, file=file)
        file.flush()

    def _refresh(self) -> None:
        self._bar.set_postfix_str(f"{self._done}/{self._count} done", refresh=False)
        self._bar.update(sum(self._steps) - self._bar.n)
