"""The engine's messages, one of which may be looked at before its turn."""

from __future__ import annotations

from collections.abc import Iterator

from ..ipc_ext import EnvelopeRing
from ..ipc_ext.messages import Message, decode_message


class Inbox:
    """Takes messages out of a ring.

    Iterating ends only with `RingShutDown`.

    Args:
      ring: where the engine puts them; nobody else takes from it.
    """

    def __init__(self, ring: EnvelopeRing) -> None:
        self._ring = ring
        self._next: Message | None = None

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield self.take()

    def peek(self) -> Message | None:
        """Return the message that comes next if it is there; never waits."""
        if self._next is None:
            for frame in self._ring.drain(limit=1):
                self._next = decode_message(frame)
        return self._next

    def take(self) -> Message:
        """Wait for the next message, and return it.

        Raises:
          RingShutDown: the segment was shut.
        """
        while (message := self._next) is None:
            self._ring.wait()
            self.peek()
        self._next = None
        return message
