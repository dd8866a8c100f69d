"""`DeviceClock`: when a CUDA device passed an event, on the host's clock."""

import time
from dataclasses import dataclass
from typing import Any

import torch

_cuda: Any = torch.cuda  # much of it is untyped
_AGE_NS = 1_000_000_000
_DRIFT = 20e-6
_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A point known on both clocks, and how well."""

    host_ns: int
    event: Any
    window_ns: int

    def error_ns(self, now: int) -> float:
        """Return by how much it may be wrong at a time."""
        return self.window_ns + abs(now - self.host_ns) * _DRIFT


class DeviceClock:
    """Knows a point on both clocks, and measures from there.

    The point is found by waiting for an event on a stream that has no work, which would hold it up.
    Another is looked for every second, as clocks drift apart, and taken if it is better: the wait
    may be held up by others that talk to the device.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _cuda.Stream(device)
        self._anchor: _Anchor | None = None
        self._looked_ns = 0

    def time_of(self, event: Any) -> int:
        """Return when a timing event, which is past, happened; ns of CLOCK_MONOTONIC."""
        anchor = self._recent_anchor()
        elapsed_ms: float = anchor.event.elapsed_time(event)
        return anchor.host_ns + round(elapsed_ms * 1e6)

    def _recent_anchor(self) -> _Anchor:
        now = time.monotonic_ns()
        if self._anchor is not None and now - self._looked_ns < _AGE_NS:
            return self._anchor
        known = [] if self._anchor is None else [self._anchor]
        known += [self._find_anchor() for _ in range(_TRIES)]
        self._anchor = min(known, key=lambda anchor: anchor.error_ns(now))
        self._looked_ns = now
        return self._anchor

    def _find_anchor(self) -> _Anchor:
        event = _cuda.Event(enable_timing=True)
        before = time.monotonic_ns()
        event.record(self._stream)
        event.synchronize()
        after = time.monotonic_ns()
        return _Anchor((before + after) // 2, event, (after - before) // 2)
