"""The doorbell in Trio: the one module here that knows an event loop."""

from __future__ import annotations

import contextlib
import os

import trio

from .segment import Segment


async def wait(segment: Segment) -> None:
    """Sleep until the worker rings, after a ring was armed.

    One ring may stand for several causes: look at everything that was armed. Only one task may
    wait. A cancelled wait loses nothing.

    Raises:
        trio.ClosedResourceError: `close` was called meanwhile.
        trio.BusyResourceError: Another task waits.
    """
    await trio.lowlevel.wait_readable(segment.doorbell)
    with contextlib.suppress(BlockingIOError):  # read by a wait that was cancelled just then
        os.eventfd_read(segment.doorbell)


def close(segment: Segment) -> None:
    """Close the segment, and end a wait for its doorbell with `trio.ClosedResourceError`.

    A descriptor that is closed under its waiter would leave it asleep, or be mistaken for the next
    file of that number.
    """
    if segment.doorbell >= 0:
        trio.lowlevel.notify_closing(segment.doorbell)
    segment.close()
