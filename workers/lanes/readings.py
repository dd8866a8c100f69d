"""How the arguments of several calls might be read as one batch.

Which reading is right cannot be seen from the calls: a tensor whose first dimension equals the
batch size may be a table, a list may hold one entry for each sample or for each layer, a batch may
be made of chunks that have to stay together. This module lists the possibilities, likely ones
first; a probe decides. It works on shapes alone.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .structure import Path

MAX_READINGS = 24
TIME_LIKE = frozenset(
    (
        *("timestep", "timesteps", "timestep_r", "t", "r", "time"),
        *("sigma", "guidance", "noise_level", "c_noise"),
    )
)


class Role(NamedTuple):
    """What is done with one argument.

    Attributes:
        kind: "join" (concatenate along `axis`), "share" (pass one, all are equal), "spread" (repeat
            a scalar, or the only row, for each row, then concatenate), "each" (a list: merge it
            element by element) or "entries" (a list with one entry for each row: concatenate the
            lists).
        axis: The axis to join or split.
    """

    kind: str
    axis: int = 0


SHARE, SPREAD, EACH, ENTRIES = Role("share"), Role("spread"), Role("each"), Role("entries")
JOIN = Role("join")


@dataclass(frozen=True)
class Leaf:
    """One argument (or one tensor inside it), as it appears in each of the calls.

    Attributes:
        path: Its name and the keys inside it, such as `("added_cond_kwargs", "time_ids")`.
        shapes: Its shape in each call; for a list, its length.
        alike: The values are equal in all calls.
        is_list: A list or tuple that holds tensors.
        is_number: A Python number.
    """

    path: Path
    shapes: tuple[tuple[int, ...], ...]
    alike: bool
    is_list: bool = False
    is_number: bool = False

    @property
    def time_like(self) -> bool:
        """Whether the name is one of those that carry one scalar for each sample."""
        return self.path[-1] in TIME_LIKE


@dataclass(frozen=True)
class Reading:
    """One way to read calls as parts of one batch.

    Attributes:
        roles: What is done with each argument, by path.
        chunks: The batch is made of this many equal chunks (negative, positive, perturbed), so that
            the merged batch has all first chunks first.
        outputs: What is done with each part of the result, by path.
        equal: Arguments that were equal when the reading was proven, so that it holds only while
            they are.
    """

    roles: Mapping[Path, Role]
    chunks: int = 1
    outputs: Mapping[Path, Role] = field(default_factory=dict)
    equal: frozenset[Path] = frozenset()

    def describe(self) -> str:
        """Return the reading in words, without what goes without saying."""
        odd = [
            f"{'.'.join(map(str, path))}: {role.kind} {role.axis or ''}".rstrip()
            for path, role in self.roles.items()
            if role not in (JOIN, EACH)
        ]
        return (
            "; ".join([*([f"{self.chunks} chunks"] if self.chunks > 1 else []), *odd]) or "joined"
        )


def roles_for(leaf: Leaf, rows: Sequence[int]) -> list[Role]:
    """Return what may be done with an argument, the likeliest first; empty: it cannot be merged.

    Args:
        leaf: The argument.
        rows: The batch size of each call.
    """
    share = [SHARE] if leaf.alike else []
    if leaf.is_list:
        return _list_roles(leaf, rows)
    if leaf.is_number:
        return [*share, *([SPREAD] if leaf.time_like else [])]
    if _is_scalar(leaf, rows):
        return [SPREAD, *share] if leaf.time_like else [*share, SPREAD]
    joins = [Role("join", axis) for axis in range(len(leaf.shapes[0])) if _fits(leaf, rows, axis)]
    if joins and joins[0].axis == 0 and leaf.shapes[0][0] == rows[0]:
        return [joins[0], *share, *joins[1:]]
    spread = [SPREAD] if _is_broadcast(leaf, rows) else []
    return [*share, *joins, *spread]


def readings(leaves: Sequence[Leaf], rows: Sequence[int]) -> Iterator[Reading]:
    """Yield the possible readings of the calls, the likeliest first, at most `MAX_READINGS`.

    Args:
        leaves: All arguments.
        rows: The batch size of each call.
    """
    options = {leaf.path: roles_for(leaf, rows) for leaf in leaves}
    options = {path: roles for path, roles in options.items() if roles}
    times = {leaf.path for leaf in leaves if leaf.time_like}
    seen: set[tuple[int, tuple[Role, ...]]] = set()
    for roles, chunks in itertools.islice(_candidates(options, times, rows), 4 * MAX_READINGS):
        key = (chunks, tuple(roles.values()))
        if key not in seen and len(seen) < MAX_READINGS:
            seen.add(key)
            yield Reading(roles, chunks)


def _candidates(
    options: dict[Path, list[Role]], times: set[Path], rows: Sequence[int]
) -> Iterator[tuple[dict[Path, Role], int]]:
    likely = {path: roles[0] for path, roles in options.items()}
    shared = {path: SHARE if SHARE in roles else roles[0] for path, roles in options.items()}
    tables = {path: likely[path] if path in times else role for path, role in shared.items()}
    joined = {path: JOIN if JOIN in roles else roles[0] for path, roles in options.items()}
    spread = {path: SPREAD if SPREAD in roles else roles[0] for path, roles in options.items()}
    listed = {path: ENTRIES if ENTRIES in roles else roles[0] for path, roles in options.items()}
    chunked = [n for n in (1, 2, 3) if all(count % n == 0 for count in rows)]
    yield from itertools.product([likely], chunked)
    yield from itertools.product([listed, tables, shared, joined, spread], chunked[:1])
    for path, roles in options.items():
        for role in roles[1:]:
            yield {**likely, path: role}, 1
    yield from itertools.product([shared, joined], chunked[1:])


def _list_roles(leaf: Leaf, rows: Sequence[int]) -> list[Role]:
    lengths = [shape[0] for shape in leaf.shapes]
    each = [EACH] if len(set(lengths)) == 1 else []
    return [*each, *([ENTRIES] if lengths == list(rows) else [])]


def _is_scalar(leaf: Leaf, rows: Sequence[int]) -> bool:
    if any(len(shape) > 1 or shape not in ((), (1,)) for shape in leaf.shapes):
        return False
    return leaf.shapes[0] == () or any(count > 1 for count in rows)


def _is_broadcast(leaf: Leaf, rows: Sequence[int]) -> bool:
    """Whether every call has one row of this for all its rows, and they agree in the rest."""
    first = leaf.shapes[0]
    if len(first) < 2 or first[0] != 1 or min(rows) < 2:
        return False
    return all(shape == first for shape in leaf.shapes)


def _fits(leaf: Leaf, rows: Sequence[int], axis: int) -> bool:
    """Whether `axis` is the batch axis in all calls, or (axis 0) a multiple of it."""
    first = leaf.shapes[0]
    times, odd = divmod(first[axis], rows[0])
    if odd or times == 0 or (axis > 0 and times > 1):
        return False
    return all(
        shape[axis] == times * count
        and shape[:axis] == first[:axis]
        and shape[axis + 1 :] == first[axis + 1 :]
        for shape, count in zip(leaf.shapes, rows, strict=True)
    )
