"""How the host waits for the device: it looks again and again.

A wait by interrupt comes several times as late, and one that never sleeps takes a core
(benchmarks/event_wait.py). Forwards and copies of one kind take the same time again and again. So
around the time that the last wait took the host looks without a pause, and otherwise sleeps in
between.
"""

import threading
import time
from collections.abc import Callable

from .timer_slack import sleep_exactly

_SHORTEST_S = 20e-6
_LATENESS = 0.005
"""Of the time waited so far: how late the end may be noticed where it is not expected."""
_MARGIN = 0.02
_LEAST_MARGIN_S = 100e-6


class Lookout(threading.local):
    """Waits of one purpose; each thread has its own, and remembers the last one."""

    def __init__(self) -> None:
        super().__init__()
        self._usual = 0.0
        sleep_exactly()

    def wait(self, over: Callable[[], bool]) -> None:
        """Wait until something is over."""
        start = time.monotonic()
        if over():
            return
        while not over():
            time.sleep(self._pause(time.monotonic() - start))
        self._usual = time.monotonic() - start

    def _pause(self, waited: float) -> float:
        margin = max(_LEAST_MARGIN_S, self._usual * _MARGIN)
        left = self._usual - margin - waited
        if left > 0:
            return min(left, max(_SHORTEST_S, waited * _LATENESS))
        if waited <= self._usual + margin:
            return 0.0
        return max(_SHORTEST_S, waited * _LATENESS)
