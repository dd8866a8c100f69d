"""What probes found out, for each kind of call, in bounded memory."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from .readings import Reading

MAX_PROBES = 3


@dataclass(slots=True)
class Plan:
    """How calls of one kind are merged.

    Attributes:
        component: The component's path.
        method: The component's method.
        readings: The readings that were proven, for different patterns of equal arguments.
        refusal: Why calls of this kind are not merged (any more).
        probes: How many probes were run.
        widest: The largest number of requests to merge; None: no limit is known.
    """

    component: str
    method: str
    readings: list[Reading] = field(default_factory=list)
    refusal: str | None = None
    probes: int = 0
    widest: int | None = None

    @property
    def may_probe(self) -> bool:
        """Whether another probe may teach something."""
        return self.refusal is None and self.probes < MAX_PROBES

    def limit(self, width: int) -> None:
        """Never again merge `width` requests: there was no memory for it."""
        self.widest = max(1, min(width, self.widest or width) // 2)
        if self.widest == 1:
            self.refusal = "no memory for a batch of two"

    def give_up(self, reason: str) -> None:
        """Stop probing after an inconclusive probe, if it was the last one allowed."""
        if not self.readings and self.probes >= MAX_PROBES:
            self.refusal = reason


class PlanBook:
    """Plans by kind of call; the least recently used are forgotten."""

    def __init__(self, capacity: int = 512) -> None:
        self._capacity = capacity
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()

    def plan(self, key: Hashable, component: str, method: str) -> Plan:
        """Return the plan for a kind of call, an empty one if there is none."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(component, method)
            if len(self._plans) > self._capacity:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return plan

    def __iter__(self) -> Iterator[Plan]:
        return iter(list(self._plans.values()))

    def __len__(self) -> int:
        return len(self._plans)
