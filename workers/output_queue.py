"""What waits for the output thread: outputs and chunks, in order and bounded; previews, of which
only the latest of each request counts."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ipc_ext import RingShutDown

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..ipc_ext.messages import NewRequestData
    from .platform import Mark
    from .ring_writer import Transfer


@dataclass(slots=True)
class PendingOutput:
    """An output on its way."""

    request: NewRequestData
    tensors: dict[str, torch.Tensor]
    forward_start: Mark
    forward_end: Mark
    made: Any
    """The event of the device after which the tensors are there."""
    transfer: Transfer | None = None
    """Its copy, if that was begun before it came to the output thread."""


@dataclass(slots=True)
class PendingChunk:
    """A finished part of an output, on its way."""

    request: NewRequestData
    index: int
    tensors: dict[str, torch.Tensor]
    event: Any
    """Of the device, when the tensors are there."""


@dataclass(slots=True)
class PendingPreview:
    """A picture that may be made, if there is time."""

    request: NewRequestData
    step: int
    draw: Callable[[], torch.Tensor | None]
    """Makes the picture: (H, W, 3), uint8; None if it cannot."""
    event: Any
    """Of the device, when what it is made of is there."""


Pending = PendingOutput | PendingChunk | PendingPreview


class OutputQueue:
    """Between the forward's thread, which puts, and the output thread, which takes.

    Args:
      limit: outputs and chunks that may wait. Previews are at most one for each request.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._outputs: deque[PendingOutput | PendingChunk] = deque()
        self._previews: dict[int, PendingPreview] = {}
        self._taken: int | None = None
        self._behind = False
        self._resting = False
        self._changed = threading.Condition()
        self._finished = False
        self._abandoned = False

    def put(self, item: PendingOutput | PendingChunk) -> None:
        """Add an output or a chunk; blocks while too many wait.

        With its output, a request's preview loses its point.

        Raises:
          RingShutDown: nobody takes any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or len(self._outputs) < self._limit)
            if self._abandoned:
                raise RingShutDown("the output thread has ended")
            if isinstance(item, PendingOutput):
                self._previews.pop(item.request.async_output_id, None)
            self._outputs.append(item)
            self._changed.notify_all()

    def offer(self, preview: PendingPreview) -> bool:
        """Add a preview in place of the request's last one, whose turn it takes, unless as many
        outputs wait as may.

        Returns:
          Whether it was added; never blocks.
        """
        with self._changed:
            if self._abandoned or self._finished or len(self._outputs) >= self._limit:
                return False
            self._previews[preview.request.async_output_id] = preview
            self._changed.notify_all()
            return True

    def forget(self, async_output_id: int) -> None:
        """Drop what waits of a request that has ended without an output, and let nothing more be
        done for what was taken of it."""
        with self._changed:
            self._previews.pop(async_output_id, None)
            if any(item.request.async_output_id == async_output_id for item in self._outputs):
                others = (i for i in self._outputs if i.request.async_output_id != async_output_id)
                self._outputs = deque(others)
                self._changed.notify_all()
            if self._taken == async_output_id:
                self._taken = None

    @property
    def is_full(self) -> bool:
        """Whether `put` would block."""
        with self._changed:
            return len(self._outputs) >= self._limit

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits, and the output thread is done with all that it took."""
        with self._changed:
            return self._resting and not self._outputs and not self._previews

    @property
    def has_begun(self) -> bool:
        """Whether the copies of all outputs and chunks so far have begun: the next may begin too,
        and does not take the room that an earlier one waits for."""
        with self._changed:
            return not self._behind and all(map(_has_begun, self._outputs))

    def take(self) -> Pending | None:
        """Wait for the next: outputs and chunks in order, previews when none of these waits.

        Returns:
          None when no more is to come.
        """
        with self._changed:
            self._taken, self._behind, self._resting = None, False, True
            self._changed.wait_for(lambda: self._outputs or self._previews or self._finished)
            self._resting = False
            item: Pending | None = None
            if self._outputs:
                item = self._outputs.popleft()
                self._behind = not _has_begun(item)
                self._changed.notify_all()
            elif self._previews:
                item = self._previews.pop(next(iter(self._previews)))
            self._taken = None if item is None else item.request.async_output_id
            return item

    def act(self, action: Callable[[], bool]) -> bool:
        """Do something that does not block on behalf of what was taken last, unless its request was
        forgotten in the meantime, nor while that happens.

        Returns:
          What the action does; False if it was not done.
        """
        with self._changed:
            return self._taken is not None and action()

    def finish(self) -> None:
        """Let `take` end once all outputs are taken."""
        with self._changed:
            self._finished = True
            self._previews.clear()
            self._changed.notify_all()

    def abandon(self) -> list[PendingOutput | PendingChunk]:
        """Drop everything: nobody takes any more, and whoever waits in `put` is told.

        Returns:
          The outputs and chunks that waited.
        """
        with self._changed:
            self._abandoned = True
            dropped = list(self._outputs)
            self._outputs.clear()
            self._previews.clear()
            self._changed.notify_all()
            return dropped


def _has_begun(item: PendingOutput | PendingChunk) -> bool:
    return isinstance(item, PendingOutput) and item.transfer is not None
