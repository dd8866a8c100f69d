"""Finding out how calls can be merged, by trying it beside the separate calls.

A probe runs the component with the calls of two requests, separately and merged under one reading
after another, and keeps the first reading whose parts equal the separate results. Its inputs have
to tell the requests apart, or a wrong reading could pass: arguments that are too alike in both are
varied first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .call import Arguments, NotMergeable
from .distance import ALIKE, distance, disturb, rounding_of, vary
from .merge import Merger, leaves_of, output_roles
from .readings import ENTRIES, JOIN, SPREAD, Leaf, Reading, readings
from .sameness import Sameness
from .structure import Path, holds_tensors, value_at

NOISE_MARGIN = 4.0  # rounding of one call against rounding of another
DEPTH_MARGIN = 32.0  # rounding in every layer against rounding of the arguments alone

_BATCHED = (JOIN.kind, SPREAD.kind, ENTRIES.kind)


class Inconclusive(Exception):
    """The requests cannot be told apart by their results, so nothing was proven."""


class Probe:
    """Looks for the reading under which two calls can share one.

    Args:
        run: Runs the component with the given named arguments.
        calls: The named arguments of two requests' calls, of one signature.
        rows: Their batch sizes.
        results: What the component returned for each of them.
    """

    def __init__(
        self,
        run: Callable[[Arguments], Any],
        calls: Sequence[Arguments],
        rows: Sequence[int],
        results: Sequence[Any],
    ) -> None:
        self._run = run
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._calls = [self._guarded(call) for call in calls]
        self._rows = rows
        self._same = Sameness()
        self._references: dict[frozenset[Path], tuple[Any, Any]] = {
            frozenset(): (self._calls, list(results))
        }
        self._reasons: list[str] = []
        self._doubt: Inconclusive | None = None

    def find(self) -> Reading:
        """Return the first reading that proves right.

        Raises:
            NotMergeable: None did; the text says why.
            Inconclusive: The inputs do not tell the requests apart.
        """
        leaves = leaves_of(self._calls, self._same)
        for reading in readings(leaves, self._rows):
            proven = self._try(reading, leaves)
            if self._has_drawn():
                raise NotMergeable("it draws from a generator that it is given")
            if proven is not None:
                return proven
        if self._doubt is not None:
            raise self._doubt
        raise NotMergeable("; ".join(dict.fromkeys(self._reasons)) or "no reading of the arguments")

    def _guarded(self, value: Any) -> Any:
        """Copy arguments, with generators that may be drawn from without harm."""
        if isinstance(value, torch.Generator):
            clone = value.clone_state()
            self._generators.append((clone, clone.get_state()))
            return clone
        if isinstance(value, dict):
            return {key: self._guarded(part) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._guarded, value))
        return value

    def _has_drawn(self) -> bool:
        return any(not torch.equal(g.get_state(), state) for g, state in self._generators)

    def _try(self, reading: Reading, leaves: Sequence[Leaf]) -> Reading | None:
        try:
            reading, calls, results = self._distinct(reading, leaves)
            merger = Merger(reading, self._rows, self._same)
            merged = self._run(merger.merge(calls))
        except Inconclusive as doubt:
            self._doubt = doubt
            return None
        except Exception as error:  # a wrong reading may make the component raise anything
            self._reasons.append(f"{type(error).__name__}: {str(error).strip()[:160]}")
            return None
        for entries in (False, True):
            proven = self._with_outputs(reading, merged, entries=entries)
            if self._agrees(proven, merged, calls, results):
                return proven
        return None

    def _with_outputs(self, reading: Reading, merged: Any, *, entries: bool) -> Reading:
        outputs = output_roles(merged, sum(self._rows), entries=entries)
        return replace(reading, outputs=outputs)

    def _agrees(
        self, reading: Reading, merged: Any, calls: Sequence[Any], results: Sequence[Any]
    ) -> bool:
        try:
            parts = Merger(reading, self._rows, self._same).split(merged)
            tolerance = self._tolerance(reading, calls[0], results[0])
        except NotMergeable as error:
            self._reasons.append(str(error))
            return False
        errors = [distance(part, result) for part, result in zip(parts, results, strict=True)]
        if max(errors) <= tolerance:
            return True
        self._reasons.append(f"results differ by {max(errors):.1e}, rounding by {tolerance:.1e}")
        return False

    def _tolerance(self, reading: Reading, call: Arguments, result: Any) -> float:
        """Measure what batching alone does to a result: merge a call with itself."""
        rows = [self._rows[0]] * 2
        merger = Merger(reading, rows, self._same)
        noise = distance(merger.split(self._run(merger.merge([call, call])))[0], result)
        floor, ceiling = rounding_of(result)
        if noise > floor:  # rounding, or a reading under which the rows are mixed up a little?
            disturbed = {name: _mapped(disturb, value) for name, value in call.items()}
            ceiling = min(ceiling, DEPTH_MARGIN * distance(self._run(disturbed), result))
        if not noise <= ceiling:
            raise NotMergeable(f"a batch changes the result by {noise:.1e}")
        return max(NOISE_MARGIN * noise, floor)

    def _distinct(
        self, reading: Reading, leaves: Sequence[Leaf]
    ) -> tuple[Reading, list[Any], list[Any]]:
        """Return calls that differ in every batched argument, and their separate results.

        What cannot be made to differ is noted in the reading.
        """
        first, second = self._calls
        alike = frozenset(
            leaf.path
            for leaf in leaves
            if leaf.path in reading.roles
            and reading.roles[leaf.path].kind in _BATCHED
            and not _differ(value_at(second, leaf.path), value_at(first, leaf.path))
        )
        if alike not in self._references:
            varied = _with(second, alike)
            results = [self._references[frozenset()][1][0], self._run(varied)]
            self._references[alike] = ([first, varied], results)
        calls, results = self._references[alike]
        if (
            self._rows[0] == self._rows[1]
            and distance(*results) <= NOISE_MARGIN * rounding_of(results[0])[0]
        ):
            raise Inconclusive("the requests' results are equal")
        equal = {path for path in alike if not _differ(*(value_at(one, path) for one in calls))}
        return replace(reading, equal=frozenset(equal)), calls, results


def _differ(a: Any, b: Any) -> bool:
    return distance(a, b) >= ALIKE


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Copy a value, with all tensors in its dicts, lists and tuples changed."""
    if isinstance(value, dict):
        return {key: _mapped(change, part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(change, part) for part in value)
    return change(value)


def _with(value: Any, paths: frozenset[Path], path: Path = ()) -> Any:
    """Copy arguments, with what is at `paths` varied."""
    if path in paths:
        return _mapped(vary, value)
    if isinstance(value, dict):
        return {key: _with(part, paths, (*path, key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and holds_tensors(value):
        parts = (_with(part, paths, (*path, index)) for index, part in enumerate(value))
        return type(value)(parts)
    return value
