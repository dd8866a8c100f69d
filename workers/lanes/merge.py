"""Merging calls under a reading, and splitting what the merged call returns."""

import copy
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .call import Arguments, NotMergeable
from .readings import (
    EACH,
    ENTRIES,
    JOIN,
    SHARE,
    SPREAD,
    TIME_LIKE,
    Leaf,
    Reading,
    Role,
)
from .sameness import Sameness
from .structure import Path, holds_tensors, is_record

LEADING = ("hidden_states", "sample", "x", "latents", "noisy_latents", "latent_model_input")


def rows_of(arguments: Arguments) -> int:
    """Return the batch size of a call.

    Raises:
        NotMergeable: No argument looks like a batch.
    """
    for name in (*LEADING, *arguments):
        value = arguments.get(name)
        if isinstance(value, torch.Tensor) and value.ndim >= 2 and len(value):
            return len(value)
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return len(value)
    raise NotMergeable("no argument looks like a batch")


def signature_of(value: Any, rows: int, name: str = "") -> Any:
    """Return what has to be equal in calls that may share one call: everything but tensor values.

    A first dimension that is a multiple of the batch size counts as such. Objects that cannot be
    compared stand for themselves, so that calls that hold different ones never meet.

    Args:
        value: The named arguments, or a value among them.
        rows: The batch size of the call.
        name: The argument's name.
    """
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        if shape and shape[0] and shape[0] % rows == 0:
            shape = (-(shape[0] // rows), *shape[1:])
        return (shape, value.dtype, value.device)
    if isinstance(value, dict):
        items = value.items()
        return (type(value), tuple((k, signature_of(v, rows, str(k))) for k, v in items))
    if isinstance(value, (list, tuple)):
        return (type(value), _list_signature(value, rows))
    if _is_number(value, name):
        return (type(value), "number")
    if isinstance(value, torch.Generator):  # a probe finds out whether it is used
        return (type(value), value.device)
    if isinstance(value, (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)):
        return (type(value), value)
    return ("object", id(value))


def _list_signature(value: Any, rows: int) -> Any:
    if len(value) == rows and all(isinstance(part, torch.Tensor) for part in value):
        # perhaps one entry for each sample, of any size
        return tuple((part.ndim, part.dtype, part.device) for part in value)
    return tuple(signature_of(part, rows) for part in value)


def _is_number(value: Any, name: Hashable) -> bool:
    return name in TIME_LIKE and isinstance(value, (int, float)) and not isinstance(value, bool)


def leaves_of(calls: Sequence[Arguments], same: Sameness) -> list[Leaf]:
    """Return every tensor, number and list of tensors in the calls, which have one signature."""
    return [leaf for name in calls[0] for leaf in _leaves([c[name] for c in calls], (name,), same)]


def _leaves(values: list[Any], path: Path, same: Sameness) -> Iterator[Leaf]:
    first = values[0]
    if isinstance(first, torch.Tensor):
        yield Leaf(path, tuple(tuple(v.shape) for v in values), same.all(values))
    elif _is_number(first, path[-1]):
        yield Leaf(path, ((),) * len(values), all(v == first for v in values), is_number=True)
    elif isinstance(first, dict):
        for key in first:
            yield from _leaves([v[key] for v in values], (*path, key), same)
    elif isinstance(first, (list, tuple)) and holds_tensors(first):
        yield Leaf(path, tuple((len(v),) for v in values), False, is_list=True)
        if len({len(v) for v in values}) == 1:
            for index in range(len(first)):
                yield from _leaves([v[index] for v in values], (*path, index), same)


def name_of(path: Path) -> str:
    """Return an argument's path as one would write it."""
    return ".".join(map(str, path))


class Merger:
    """Merges calls of given batch sizes under one reading, and splits the result."""

    def __init__(self, reading: Reading, rows: Sequence[int], same: Sameness) -> None:
        self._reading = reading
        self._rows = list(rows)
        self._same = same
        self._device: torch.device | None = None

    def merge(self, calls: Sequence[Arguments]) -> Arguments:
        """Return the arguments of the merged call.

        Args:
            calls: The named arguments of each call, which have one signature.

        Raises:
            NotMergeable: An argument that the reading shares differs between the calls.
        """
        self._device = _device_of(calls[0])
        return {name: self._merge([call[name] for call in calls], (name,)) for name in calls[0]}

    def _merge(self, values: list[Any], path: Path) -> Any:
        first = values[0]
        role = self._reading.roles.get(path)
        if isinstance(first, dict):
            return {k: self._merge([v[k] for v in values], (*path, k)) for k in first}
        if role is None:
            return self._constant(values, path)
        if role == EACH:
            parts = (self._merge([v[i] for v in values], (*path, i)) for i in range(len(first)))
            return type(first)(parts)
        if role == ENTRIES:
            return type(first)(entry for value in values for entry in value)
        if (role == SHARE or path in self._reading.equal) and not self._same.all(values):
            raise NotMergeable(f"{name_of(path)} differs between the requests")
        if role == SHARE:
            return first
        if role == SPREAD:
            return self._join(self._spread(values), 0)
        return self._join(values, role.axis)

    def _constant(self, values: list[Any], path: Path) -> Any:
        if holds_tensors(values[0]):
            raise NotMergeable(f"{name_of(path)} has different shapes")
        return values[0]

    def _spread(self, values: list[Any]) -> list[torch.Tensor]:
        tensors = [torch.as_tensor(value, device=self._device) for value in values]
        firsts = [one if one.ndim else one.reshape(1) for one in tensors]
        return [
            one.expand(count, *one.shape[1:]) for one, count in zip(firsts, self._rows, strict=True)
        ]

    def _join(self, values: list[torch.Tensor], axis: int) -> torch.Tensor:
        if len({(*v.shape[:axis], *v.shape[axis + 1 :]) for v in values}) > 1:
            raise NotMergeable("an argument has different shapes")
        chunks = self._reading.chunks
        if chunks == 1:
            return torch.cat(values, axis)
        parts = [value.chunk(chunks, axis) for value in values]
        return torch.cat([part[index] for index in range(chunks) for part in parts], axis)

    def split(self, result: Any) -> list[Any]:
        """Return each call's part of a result.

        Raises:
            NotMergeable: The result does not have the parts that the reading knows.
        """
        return self._split(result, ())

    def _split(self, value: Any, path: Path) -> list[Any]:
        if value is None or isinstance(value, (bool, int, float, str)):
            return [value] * len(self._rows)
        if isinstance(value, dict):
            parts = {k: self._split(v, (*path, k)) for k, v in value.items()}
            made = [{k: p[i] for k, p in parts.items()} for i in range(len(self._rows))]
            return made if type(value) is dict else [type(value)(**fields) for fields in made]
        role = self._reading.outputs.get(path)
        if role == SHARE:
            return [value] * len(self._rows)
        if isinstance(value, torch.Tensor) and role is not None:
            return self._unjoin(value, role.axis)
        if isinstance(value, (list, tuple)) and role == ENTRIES:
            return _cut(value, self._rows)
        if isinstance(value, (list, tuple)) and role == EACH:
            each = [self._split(part, (*path, index)) for index, part in enumerate(value)]
            return [type(value)(part[i] for part in each) for i in range(len(self._rows))]
        if is_record(value):
            return self._split_record(value, path)
        raise NotMergeable(f"the result holds a {type(value).__name__} that cannot be split")

    def _split_record(self, value: Any, path: Path) -> list[Any]:
        copies = [copy.copy(value) for _ in self._rows]
        for name, field in vars(value).items():
            if holds_tensors(field):
                for part, own in zip(copies, self._split(field, (*path, name)), strict=True):
                    vars(part)[name] = own
        return copies

    def _unjoin(self, value: torch.Tensor, axis: int) -> list[torch.Tensor]:
        times, odd = divmod(value.shape[axis], sum(self._rows))
        if odd or not times:
            raise NotMergeable(f"a result of shape {tuple(value.shape)} for {sum(self._rows)} rows")
        chunks = self._reading.chunks
        sizes = [times * count // chunks for count in self._rows]
        if chunks == 1:
            return list(torch.split(value, sizes, axis))
        pieces = [torch.split(chunk, sizes, axis) for chunk in value.chunk(chunks, axis)]
        return [torch.cat([p[i] for p in pieces], axis) for i in range(len(sizes))]


def _device_of(value: Any) -> torch.device | None:
    if isinstance(value, torch.Tensor):
        return value.device
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple)):
        return None
    return next((device for part in parts if (device := _device_of(part)) is not None), None)


def output_roles(result: Any, total: int, *, entries: bool) -> dict[Path, Role]:
    """Guess how a merged call's result is to be split; the probe checks the guess.

    Args:
        result: What the merged call returned.
        total: The merged batch size.
        entries: Read lists as one entry for each row where they have that length.
    """
    return dict(_output_roles(result, (), total, entries))


def _output_roles(value: Any, path: Path, total: int, entries: bool) -> Iterator[tuple[Path, Role]]:
    if isinstance(value, nn.Parameter):
        yield path, SHARE  # the component's own
    elif isinstance(value, torch.Tensor):
        axes = [a for a, size in enumerate(value.shape) if size == total or (a == 0 and size)]
        fitting = [axis for axis in axes if value.shape[axis] % total == 0]
        if fitting:
            yield path, JOIN._replace(axis=fitting[0])
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _output_roles(part, (*path, key), total, entries)
    elif isinstance(value, (list, tuple)):
        if entries and len(value) == total:
            yield path, ENTRIES
            return
        yield path, EACH
        for index, part in enumerate(value):
            yield from _output_roles(part, (*path, index), total, entries)
    elif is_record(value):
        for name, part in vars(value).items():
            if isinstance(part, torch.Tensor) and not part.ndim:
                yield (*path, name), SHARE  # a setting of the object: the window of a cache
            else:
                yield from _output_roles(part, (*path, name), total, entries)


def _cut(value: Any, sizes: Sequence[int]) -> list[Any]:
    parts, start = [], 0
    for size in sizes:
        parts.append(type(value)(value[start : start + size]))
        start += size
    return parts
