"""How far the host may run ahead of the device.

A tick of step mode, or a step of the requests of a wave, is over for the host when its work is in
the device's queue. Were nothing to hold it back, the host would queue all steps of a request at
once, and then the next request's; the device would still take them after the request was cancelled
or had to yield, and progress would tell of steps that are to come.
"""

from typing import Any

from .platform import Platform

AHEAD = 2
"""Ticks or steps in the device's queue: while one runs there, the host prepares the next."""


class Pace:
    """Lets the host prepare a tick or step when all but the last one are over on the device."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._ends: list[Any] = []

    def has_room(self) -> bool:
        """Whether the next one may be prepared now."""
        self._ends = [end for end in self._ends if not self._platform.has_happened(end)]
        return len(self._ends) < AHEAD

    @property
    def oldest(self) -> Any:
        """The end that there is room after."""
        return self._ends[0]

    def wait(self) -> None:
        """Wait until the next one may be prepared.

        Raises:
            Exception: what the device has to say about work that it was given before.
        """
        while len(self._ends) >= AHEAD and not self.has_room():
            self._platform.synchronize_event(self._ends.pop(0))

    def mark(self) -> Any:
        """Note the end of one that is in the device's queue now; return its event."""
        event = self._platform.record_device_event()
        if event is not None:
            self._ends.append(event)
        return event
