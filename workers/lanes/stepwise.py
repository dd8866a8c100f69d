"""The schedule of step mode: lanes make one denoising step each, and stay open."""

from collections.abc import Sequence
from enum import Enum, auto

from .batcher import Batcher
from .hub import Hub
from .lane import Lane
from .rounds import Rounds


class Phase(Enum):
    """Where in a tick a lane is."""

    BEFORE = auto()
    """Its pipeline prepares: it encodes."""
    DENOISING = auto()
    """It is on its way to the end of a step."""
    AFTER = auto()
    """It has made its last step: it decodes."""
    STEPPED = auto()
    """It has made its step and waits for the next tick."""
    DONE = auto()


class Stepwise:
    """Advances lanes by one denoising step each.

    First everything that comes before the denoiser, then the steps, then what comes after the last
    one, so that calls of one kind meet and none of them waits between two others.
    """

    def __init__(self, hub: Hub, batcher: Batcher) -> None:
        self._hub = hub
        self._rounds = Rounds(hub, batcher)

    def tick(self, lanes: Sequence[Lane]) -> None:
        """Make one step of each lane, or less of those that end.

        A step has been made when the lane's progress has grown and it waits for a denoiser again.
        Returns early when the device is lost.

        Args:
            lanes: Lanes that are not done. Some may not have been started.
        """
        before = {lane: lane.step for lane in lanes}
        self._rounds.start(lane for lane in lanes if not lane.started)
        for phase in (Phase.BEFORE, Phase.DENOISING, Phase.AFTER):
            self._run(phase, before)

    def _run(self, phase: Phase, before: dict[Lane, int]) -> None:
        while self._hub.poison is None:
            lanes = [lane for lane, step in before.items() if _phase(lane, step) is phase]
            waiting = [lane for lane in lanes if not lane.cancel_if_asked()]
            if not waiting:
                return
            self._rounds.advance(waiting)


def _phase(lane: Lane, before: int) -> Phase:
    if lane.done:
        return Phase.DONE
    if lane.step > before:
        return Phase.STEPPED if lane.at_denoiser else Phase.AFTER
    preparing = not (lane.at_denoiser or lane.denoiser_calls or lane.step)
    return Phase.BEFORE if preparing else Phase.DENOISING
