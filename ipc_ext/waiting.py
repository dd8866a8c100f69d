"""Bounded waiting in C: long waits are cut into slices, so that signal handlers run in between."""

from __future__ import annotations

import time
from collections.abc import Iterator

SLICE_NS = 250_000_000  # a signal ends a slice early; this bounds the ones that come just before it


def slices(timeout: float | None) -> Iterator[int]:
    """Yield the nanoseconds of one C call after the other until the time is over.

    Args:
        timeout: Seconds, at least one slice is yielded; None waits for ever.
    """
    if timeout is None:
        while True:
            yield SLICE_NS
    deadline = time.monotonic_ns() + int(timeout * 1e9)
    while True:
        yield max(0, min(deadline - time.monotonic_ns(), SLICE_NS))
        if time.monotonic_ns() >= deadline:
            return
