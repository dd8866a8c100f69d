"""What all schedules share: one round of component calls, merged where they can be."""

from collections.abc import Iterable, Sequence
from typing import Any

from .batcher import Batcher
from .hub import Hub
from .lane import Lane, Outcome

PATIENCE = 4  # rounds that a lane waits for others to come to the same call


class Rounds:
    """Advances lanes round by round; in each round every lane makes one component call, or waits.

    The calls of one step often come in phases (negative, positive prompt). Lanes in different
    phases would never meet if all of them advanced in every round, so those that may be met are
    held back.
    """

    def __init__(self, hub: Hub, batcher: Batcher) -> None:
        self._hub = hub
        self._batcher = batcher

    def start(self, lanes: Iterable[Lane]) -> None:
        """Run lanes up to their first component calls."""
        for lane in lanes:
            if self._hub.poison is None and not lane.cancel_if_asked():
                lane.start()

    def advance(self, waiting: Sequence[Lane]) -> None:
        """Run one round.

        A lane that has changed a shared module goes on alone, also if it is not among `waiting`:
        nobody else can run before it is done with that.

        Args:
            waiting: The lanes that are there, none of them done. Only these wait for each other.
        """
        asking = next((lane for lane in waiting if lane.wants_exclusive), None)
        if self._hub.exclusive is not None:
            self._batcher.run([self._hub.exclusive])
        elif asking is not None:
            self._hub.exclusive = asking
            asking.resume(Outcome(None))
        elif len(waiting) == 1:
            self._batcher.run(waiting)
        else:
            self._round(waiting)

    def _round(self, waiting: Sequence[Lane]) -> None:
        first, *others = sorted(_groups(waiting), key=_urgency)
        running = [first]
        for group in others:
            if _worth_holding(group, first):
                for lane in group:
                    lane.waited += 1
            else:
                running.append(group)
        for group in running:
            if self._hub.poison is None:
                self._batcher.run(group)


def _groups(lanes: Iterable[Lane]) -> list[list[Lane]]:
    groups: dict[Any, list[Lane]] = {}
    for lane in lanes:
        key = lane if lane.offer is None else lane.offer.signature
        groups.setdefault(key, []).append(lane)
    return list(groups.values())


def _urgency(group: Sequence[Lane]) -> tuple[int, int]:
    """Largest groups first, then those who are furthest behind."""
    return (-len(group), min(lane.calls for lane in group))


def _worth_holding(group: Sequence[Lane], first: Sequence[Lane]) -> bool:
    """Whether lanes of `first` are likely to come to the call that `group` waits for."""
    lane, offer = group[0], group[0].offer
    if offer is None or any(member.waited >= PATIENCE for member in group):
        return False
    finishing = lane.steps > 0 and not lane.at_denoiser
    return not finishing and any(other.may_come_to(offer) for other in first)
