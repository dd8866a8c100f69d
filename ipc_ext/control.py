"""Control block: cancel flags, heartbeat and state, seen by the other side without a message."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from ._ring import ffi, lib
from .errors import CorruptSegment, failure

if TYPE_CHECKING:
    from ._ring import CData


class WorkerState(IntEnum):
    """What a worker says about itself. A fresh segment says STARTING."""

    STARTING = 0
    LOADING = 1
    READY = 2
    STOPPING = 3
    DEAD = 4


class ControlBlock:
    """The words that engine and worker share outside of their rings."""

    def __init__(self, control: CData) -> None:
        self._control = control

    def cancel(self, slot: int, ticket: int) -> None:
        """Cancel the request that holds a slot (engine).

        Args:
            slot: From 0 to the layout's `cancel_slots` - 1.
            ticket: The number, never used twice and not 0, that the request got with its slot.

        Raises:
            IndexError: There is no such slot, or the ticket is 0.
            RingShutDown: The segment is closed.
        """
        self._settled(lib.ss_control_cancel(self._control, slot, ticket), slot)

    def is_cancelled(self, slot: int, ticket: int) -> bool:
        """Say whether the request that holds this slot and ticket was cancelled (worker).

        Raises:
            IndexError: There is no such slot, or the ticket is 0.
            RingShutDown: The segment is closed.
        """
        return self._settled(lib.ss_control_is_cancelled(self._control, slot, ticket), slot)

    def beat(self) -> None:
        """Record that the worker is alive now.

        Raises:
            RingShutDown: The segment is closed.
        """
        self._settled(lib.ss_control_beat(self._control))

    def heartbeat_age(self) -> float:
        """Return the seconds since the last beat, or since the segment was made.

        Raises:
            RingShutDown: The segment is closed.
        """
        age = lib.ss_control_age(self._control)
        if age < 0:
            raise failure(age)
        return age / 1e9

    @property
    def state(self) -> WorkerState:
        """What the worker does (set by the worker).

        Raises:
            CorruptSegment: Not a state.
            RingShutDown: The segment is closed.
        """
        state = lib.ss_control_state(self._control)
        if state < 0:
            raise failure(state)
        try:
            return WorkerState(state)
        except ValueError:
            raise CorruptSegment(f"no worker state: {state}") from None

    @state.setter
    def state(self, state: WorkerState) -> None:
        self._settled(lib.ss_control_set_state(self._control, state))

    def _settled(self, status: int, slot: int = 0) -> bool:
        if status == lib.SS_RANGE:
            raise IndexError(f"no cancel slot {slot}, or ticket 0")
        if status < 0:
            raise failure(status)
        return status > 0

    def _detach(self) -> None:
        """Let go of the mapping; the C core answers a null block with "shut down"."""
        self._control = ffi.NULL
