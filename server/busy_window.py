"""`BusyWindow`: what share of the last minute a device was busy."""

from __future__ import annotations

from collections import deque

WINDOW = 60.0
"""Seconds."""


class BusyWindow:
    """Looks at a counter of busy seconds now and then.

    The counter grows when a forward has ended. Until then, a worker that holds work is taken for
    busy, so that long forwards show while they run.

    Args:
      seconds: how far it looks back.
    """

    def __init__(self, seconds: float = WINDOW) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, float]] = deque()
        self._counted = 0.0
        self._working_since: float | None = None

    def note(self, now: float, counted: float, *, working: bool) -> None:
        """Take a look.

        Args:
          now: seconds, on any clock.
          counted: seconds of the forwards that have ended.
          working: whether the worker holds work.
        """
        if counted < self._counted:  # another worker in its place
            self._samples.clear()
        if not working:
            self._working_since = None
        elif self._working_since is None or counted != self._counted:
            self._working_since = now
        self._counted = counted
        under_way = 0.0 if self._working_since is None else now - self._working_since
        self._samples.append((now, counted + under_way))
        while self._samples[0][0] < now - self._seconds:
            self._samples.popleft()

    @property
    def fraction(self) -> float:
        """From 0 to 1; 0 while there is nothing to compare."""
        (begin, busy_then), (end, busy_now) = self._samples[0], self._samples[-1]
        return min(max((busy_now - busy_then) / (end - begin), 0.0), 1.0) if end > begin else 0.0
