"""`Restraint`: which component calls are not made while another wave waits for the device."""

from collections.abc import Iterable

LATE_NS = 1_000_000
FIRST_HOLD = 16
LONGEST_HOLD = 4096
"""Calls of a kind."""

Kind = tuple[str, str]
"""A component's name and a method's."""


class Restraint:
    """Learns which kinds of calls make another wave late.

    The device takes so many kernels ahead and no more. A component that has thousands of them takes
    the thread until it is well under way, and the wave that has waited meanwhile goes on late. That
    is noticed when it has happened; calls of its kind are then held back for some time, and each
    time that it happens again for twice as long.
    """

    def __init__(self) -> None:
        self._left: dict[Kind, int] = {}
        self._next: dict[Kind, int] = {}

    def holds(self, kind: Kind) -> bool:
        """Whether a call has to let the other wave go on first."""
        return bool(self._left) and self._left.get(kind, 0) > 0

    def note(self, kinds: Iterable[Kind], late_ns: int) -> None:
        """Note that calls were made, and by how much a wave was late because of them."""
        for kind in kinds:
            if late_ns > LATE_NS:
                self._left[kind] = self._next.get(kind, FIRST_HOLD)
                self._next[kind] = min(2 * self._left[kind], LONGEST_HOLD)
            elif kind in self._left:
                self._left[kind] -= 1
