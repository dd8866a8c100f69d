"""`visits`: who comes, when, with what, and for how long; the same for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .mix import Kind


@dataclass(frozen=True, slots=True)
class Visit:
    """One request that is to be made."""

    at: float
    """When, seconds from the start; 0 in a closed loop, where it is when a client is free."""
    kind: Kind
    body: dict[str, Any]
    patience: float
    """Seconds after which the client leaves; infinite for most."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the load consists of.

    Args:
      kinds: of requests.
      prompts: taken at random.
      fields: of every body; those of a kind win.
      rate: requests per second, of a Poisson process; None: as clients are free.
      cancel: share of requests whose client leaves.
      cancel_within: longest time until it does, s; the times are uniform.
      seed: of all of this. Arrivals do not depend on the rest of the plan.
    """

    kinds: Sequence[Kind]
    prompts: Sequence[str]
    fields: dict[str, Any]
    rate: float | None = None
    cancel: float = 0.0
    cancel_within: float = 1.0
    seed: int = 0

    def visits(self) -> Iterator[Visit]:
        """Return all visits, without end."""
        arrivals, contents, leaving = (
            random.Random(f"{self.seed} {use}") for use in ("arrivals", "contents", "leaving")
        )
        weights = [kind.weight for kind in self.kinds]
        at = 0.0
        while True:
            if self.rate is not None:
                at += arrivals.expovariate(self.rate)
            (kind,) = contents.choices(self.kinds, weights)
            prompt = contents.choice(self.prompts)
            leaves, patience = leaving.random() < self.cancel, leaving.random()
            yield Visit(
                at=at,
                kind=kind,
                body={"prompt": prompt, **self.fields, **kind.fields},
                patience=patience * self.cancel_within if leaves else math.inf,
            )
