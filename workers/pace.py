"""How far the host may run ahead of the device in step mode.

A tick is over for the host when its work is in the device's queue. Were nothing to hold it back,
the host would queue all steps of a request at once; the device would still take them after the
request was cancelled or had to yield, and progress would tell of steps that are to come.
"""

from collections import deque
from typing import Any

from .platform import Platform

AHEAD = 2
"""Ticks in the device's queue: while one runs there, the host prepares the next."""


class Pace:
    """Lets the host prepare a tick when all but the last one are over on the device."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._ends: deque[Any] = deque()

    def wait(self) -> None:
        """Wait until a tick may be prepared.

        Raises:
            Exception: what the device has to say about work that it was given before.
        """
        while len(self._ends) >= AHEAD:
            self._platform.synchronize_event(self._ends.popleft())

    def mark(self) -> None:
        """Note the end of a tick that is in the device's queue now."""
        event = self._platform.record_device_event()
        if event is not None:
            self._ends.append(event)
