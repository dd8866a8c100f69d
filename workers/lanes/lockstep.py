"""The schedule of request mode: the lanes of a wave run to their end, together where they can."""

from collections.abc import Sequence

from .batcher import Batcher
from .hub import Hub
from .lane import Lane
from .rounds import Rounds


class Lockstep:
    """Drives the lanes of a wave; see `Rounds`."""

    def __init__(self, hub: Hub, batcher: Batcher) -> None:
        self._hub = hub
        self._rounds = Rounds(hub, batcher)

    def run(self, lanes: Sequence[Lane]) -> None:
        """Run the lanes until all are done, or until the device is lost."""
        self._rounds.start(lanes)
        while self._hub.poison is None:
            waiting = [lane for lane in lanes if not lane.cancel_if_asked()]
            if not waiting:
                return
            self._rounds.advance(waiting)
