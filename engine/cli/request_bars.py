"""A progress bar for each request that runs, below the one of the batch, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from tqdm import tqdm

BAR = "  {desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"
LIMIT = 8
"""Most bars at a time; further requests run without one."""
LABEL = 32
"""Columns of a label."""


class RequestBars:
    """Gives bars to requests as they begin, and takes them back as they end.

    Args:
      labels: of the requests.
      file: where bars are drawn; nothing is, if it is no terminal.
      hidden: draw nothing.
    """

    def __init__(self, labels: Sequence[str], file: IO[str], *, hidden: bool = False) -> None:
        self._labels = labels
        self._file = file
        self._hidden = hidden or not file.isatty()
        self._bars: dict[int, Any] = {}
        self._free = list(range(LIMIT, 0, -1))  # the first line is the batch's

    def step(self, index: int, step: int, total: int | None, eta: float | None = None) -> None:
        """Show that a request has taken `step` of `total` steps, and needs `eta` seconds more."""
        left = None if eta is None else f"{eta:.0f} s left"
        bar = self._bars.get(index)
        if bar is not None:
            bar.total = total
            bar.set_postfix_str(left or "", refresh=False)
            bar.update(step - bar.n)
        elif self._free and not self._hidden:
            self._bars[index] = tqdm(
                desc=_fitted(self._labels[index]),
                initial=step,
                total=total,
                postfix=left,
                bar_format=BAR,
                position=self._free.pop(),
                file=self._file,
                leave=False,
            )

    def done(self, index: int) -> None:
        """Take a request's bar away."""
        bar = self._bars.pop(index, None)
        if bar is not None:
            self._free.append(-bar.pos)
            self._free.sort(reverse=True)
            bar.close()

    def close(self) -> None:
        """Take all bars away."""
        for index in list(self._bars):
            self.done(index)


def _fitted(label: str) -> str:
    """Make a label as wide as all others; of a long one, its beginning and its end are kept."""
    if len(label) > LABEL:
        label = f"{label[: LABEL - 15]}...{label[-12:]}"
    return label.ljust(LABEL)
