"""Running component calls of lanes, alone or merged into one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .call import Arguments, ComponentCall, NotMergeable, Offer
from .effects import Given
from .entropy import restore_snapshot, take_snapshot
from .hub import Hub
from .lane import Lane, Outcome
from .merge import Merger
from .plans import Plan, PlanBook
from .probe import Inconclusive, Probe
from .readings import Reading
from .sameness import Sameness
from .structure import copied


@dataclass(slots=True)
class Counts:
    """What a batcher has done so far.

    Attributes:
        calls: Real component calls, probes not included.
        merged_calls: How many of these served several lanes.
        merged_lanes: How many lanes those served, added up.
        probes: How many probes were run.
        fallbacks: How many merged calls failed and were run separately instead.
    """

    calls: int = 0
    merged_calls: int = 0
    merged_lanes: int = 0
    probes: int = 0
    fallbacks: int = 0


class Batcher:
    """Runs pending calls. How calls can be merged is found out by probes and kept in a plan book.

    Attributes:
        counts: What was done.
        book: The plans.
    """

    def __init__(self, hub: Hub) -> None:
        self.counts = Counts()
        self.book = PlanBook()
        self._hub = hub
        self._same = Sameness()

    def run(self, group: Sequence[Lane]) -> None:
        """Run the pending calls of lanes, merged where that is proven to be right.

        Afterwards each lane waits for its next call or is done. A lane that was cancelled in the
        meantime ends without its call being run.

        Args:
            group: One lane, or several whose offers have one signature.
        """
        group = [lane for lane in group if not lane.cancel_if_asked()]
        if len(group) < 2:
            self._separately(group)
            return
        plan = self._plan(group)
        width = plan.widest or len(group)
        for start in range(0, len(group), width):
            self._piece(plan, group[start : start + width])

    def _piece(self, plan: Plan, piece: Sequence[Lane]) -> None:
        if plan.refusal is not None or len(piece) < 2:
            self._separately(piece)
        elif not self._together(plan, piece):
            self._separately_with_probe(plan, piece)

    def _plan(self, group: Sequence[Lane]) -> Plan:
        call, offer = _pending(group[0]), _offer(group[0])
        key = (offer.signature, frozenset(_offer(lane).rows for lane in group))
        return self.book.plan(key, call.path, call.method)

    # ------------------------------------------------------------------ separately

    def _separately(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if not lane.cancel_if_asked():
                lane.resume(self._execute(lane))

    def _execute(self, lane: Lane) -> Outcome:
        if self._hub.poison is not None:
            return Outcome(None, self._hub.poison)
        self.counts.calls += 1
        call = _pending(lane)
        self._hub.publish(lane, call.module)
        outcome = lane.perform(partial(self._hub.executor, call))
        self._hub.note(outcome.error)
        return outcome

    def _execute_each(self, lanes: Sequence[Lane]) -> list[tuple[Lane, Outcome]]:
        return [(lane, self._execute(lane)) for lane in lanes if not lane.cancel_if_asked()]

    # ------------------------------------------------------------------ together

    def _together(self, plan: Plan, lanes: Sequence[Lane]) -> bool:
        """Run the calls as one, under the first reading that fits; False: none does."""
        for reading in plan.readings:
            outcome = lanes[0].perform(partial(self._merged, reading, lanes))
            self._hub.note(outcome.error)
            if outcome.error is None:
                self._deliver(lanes, outcome.value)
                return True
            if not isinstance(outcome.error, NotMergeable):
                self._fall_back(plan, lanes, outcome.error)
                return True
        return False

    def _merged(self, reading: Reading, lanes: Sequence[Lane]) -> list[Any]:
        offers = [_offer(lane) for lane in lanes]
        merger = Merger(reading, [offer.rows for offer in offers], self._same)
        arguments = merger.merge([offer.arguments for offer in offers])
        return merger.split(self._hub.executor(_pending(lanes[0]).with_arguments(arguments)))

    def _deliver(self, lanes: Sequence[Lane], parts: Sequence[Any]) -> None:
        self.counts.calls += 1
        self.counts.merged_calls += 1
        self.counts.merged_lanes += len(lanes)
        for lane, part in zip(lanes, parts, strict=True):
            lane.resume(Outcome(part))

    def _fall_back(self, plan: Plan, lanes: Sequence[Lane], error: Exception) -> None:
        """Run the calls separately after a merged one failed: only the guilty request fails."""
        self.counts.fallbacks += 1
        no_memory = self._hub.platform.is_out_of_memory(error)
        reason = f"merged call failed: {type(error).__name__}: {error}"
        error.__traceback__ = None  # its frames hold the merged tensors
        if no_memory:
            self._hub.platform.empty_cache()
            plan.limit(len(lanes))
        ran = self._execute_each(lanes)
        if not no_memory and all(outcome.error is None for _, outcome in ran):
            plan.refusal = reason
        for lane, outcome in ran:
            lane.resume(outcome)

    # ------------------------------------------------------------------ probing

    def _separately_with_probe(self, plan: Plan, lanes: Sequence[Lane]) -> None:
        """Run the calls separately, and find out on two of them how they could have been merged."""
        # some components empty the lists that they are given
        arguments = {lane: copied(_offer(lane).arguments) for lane in lanes}
        given = [Given(_offer(lane).arguments) for lane in lanes] if plan.may_probe else []
        ran = self._execute_each(lanes)
        if any(one.changed() for one in given):
            plan.refusal = "it changes its arguments"
        good = [(lane, outcome) for lane, outcome in ran if outcome.error is None]
        if len(good) >= 2 and plan.may_probe:
            self._probe(plan, good, arguments)
        for lane, outcome in ran:
            lane.resume(outcome)

    def _probe(
        self, plan: Plan, ran: Sequence[tuple[Lane, Outcome]], arguments: dict[Lane, Arguments]
    ) -> None:
        self.counts.probes += 1
        plan.probes += 1
        ran = sorted(ran, key=lambda pair: _offer(pair[0]).rows)
        pair = (ran[0], ran[-1])
        call = _pending(pair[0][0])
        probe = Probe(
            lambda arguments: self._hub.executor(call.with_arguments(copied(arguments))),
            [arguments[lane] for lane, _ in pair],
            [_offer(lane).rows for lane, _ in pair],
            [outcome.value for _, outcome in pair],
        )
        outcome = pair[0][0].perform(partial(self._find, probe))
        self._hub.note(outcome.error)
        if outcome.error is None:
            plan.readings.append(outcome.value)
        elif isinstance(outcome.error, Inconclusive):
            plan.give_up(str(outcome.error))
        elif not plan.readings:
            plan.refusal = str(outcome.error)

    def _find(self, probe: Probe) -> Reading:
        """Run a probe so that it leaves no trace, in random generators or attention processors."""
        generators = self._hub.thread.generators
        kept = self._hub.thread.slots.kept()
        before = take_snapshot(generators)
        try:
            reading = probe.find()
        finally:
            after = take_snapshot(generators)
            restore_snapshot(before, generators)
            quiet = _put_back(kept)
        if not before.same(after):
            raise NotMergeable("it draws random numbers")
        if not quiet:
            raise NotMergeable("its attention processors keep something of each call")
        return reading


def _put_back(kept: Sequence[tuple[Any, dict[str, Any]]]) -> bool:
    """Give processors what they held; say whether they still held that."""
    changed = [(one, held) for one, held in kept if not _holds(vars(one), held)]
    for one, held in changed:
        vars(one).clear()
        vars(one).update(held)
    return not changed


def _holds(present: dict[str, Any], held: dict[str, Any]) -> bool:
    return present.keys() == held.keys() and all(present[name] is held[name] for name in held)


def _pending(lane: Lane) -> ComponentCall:
    assert lane.pending is not None
    return lane.pending


def _offer(lane: Lane) -> Offer:
    assert lane.offer is not None
    return lane.offer
