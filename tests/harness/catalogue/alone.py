"""Which components are called for one request alone, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sidestream.workers.lanes import Lane
from sidestream.workers.model_runner import DiffusionModelRunner

NO_BATCH = "nothing in its arguments looks like a batch, or it computes gradients"
SHAPES = "shapes differ between the requests: that of an unpadded prompt, say"
SETTINGS = "the requests have configured the modules differently: hooks, attention processors"
NEVER_MET = "requests came to it at different times"

_TOKEN, _SHAPES = 3, -1  # where a signature says how modules are configured, and what is passed


class Alone:
    """Notes the calls that a runner makes for one request, from now on."""

    def __init__(self, runner: DiffusionModelRunner) -> None:
        self._signatures: dict[str, dict[Lane, set[Any]]] = defaultdict(lambda: defaultdict(set))
        self._paths: set[str] = set()
        self._batcher: Any = runner._batcher
        self._run, self._execute = self._batcher.run, self._batcher._execute
        self._batcher.run, self._batcher._execute = self._note, self._note_alone

    def reasons(self) -> dict[str, str]:
        """Stop noting; return for each component why it was called alone, as far as one can see."""
        self._batcher.run, self._batcher._execute = self._run, self._execute
        return {path: _reason(self._signatures[path].values()) for path in sorted(self._paths)}

    def _note(self, group: Sequence[Lane]) -> None:
        for lane in group:
            if lane.pending is not None:
                signature = None if lane.offer is None else lane.offer.signature
                self._signatures[lane.pending.path][lane].add(signature)
        self._run(group)

    def _note_alone(self, lane: Lane) -> Any:
        assert lane.pending is not None
        self._paths.add(lane.pending.path)
        return self._execute(lane)


def _reason(lanes: Collection[set[Any]]) -> str:
    if any(None in signatures for signatures in lanes):
        return NO_BATCH
    if _differ(lanes, lambda signature: signature[_TOKEN]):
        return SETTINGS
    return SHAPES if _differ(lanes, lambda signature: signature[_SHAPES]) else NEVER_MET


def _differ(lanes: Collection[set[Any]], part: Callable[[Any], Any]) -> bool:
    return len({frozenset(map(part, signatures)) for signatures in lanes}) > 1
