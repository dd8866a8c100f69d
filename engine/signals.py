"""`Signal`: a wake-up that remembers that it was given, for one waiting task."""

from __future__ import annotations

import math

import trio


class Signal:
    """An event that resets itself when a wait sees it, so that no `set` is ever missed and none is
    seen twice."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the waiter now, or let the next wait return at once."""
        self._event.set()

    async def wait(self, deadline: float = math.inf) -> bool:
        """Wait for `set`.

        Args:
          deadline: on Trio's clock.

        Returns:
          Whether it was set; False if the deadline came first.
        """
        event = self._event
        if deadline == math.inf:  # a scope takes longer than the rest
            await event.wait()
        else:
            with trio.move_on_at(deadline):
                await event.wait()
        seen = event.is_set()
        if seen and self._event is event:
            self._event = trio.Event()
        return seen
