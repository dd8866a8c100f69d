"""Walking through arguments and results: dicts, lists, tuples, and objects that hold tensors."""

import copy
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import nn

Path = tuple[Hashable, ...]
_MAX_DEPTH = 4


def holds_tensors(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether a value is a tensor or contains one.

    Args:
        value: Any value.
        depth: How far to look into containers and objects.
    """
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0:
        return False
    return any(holds_tensors(part, depth - 1) for part in _inside(value))


def is_record(value: Any) -> bool:
    """Whether a value is an object that holds tensors: a distribution, a key-value cache."""
    if isinstance(value, (dict, list, tuple)):
        return False
    return not isinstance(value, torch.Tensor) and holds_tensors(value)


def parts_of(value: Any) -> Iterator[Any]:
    """Yield all tensors and all other values in a value, in order."""
    if isinstance(value, (dict, list, tuple)) or is_record(value):
        for part in _inside(value):
            yield from parts_of(part)
    else:
        yield value


def copied(value: Any) -> Any:
    """Return a value with dicts, lists and tuples of its own, and the same contents."""
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return value


def rebuilt(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return a value built like another, with each tensor in it changed.

    Args:
        change: Makes the new tensor.
        value: Any value; what is no tensor, and holds none, is taken over as it is.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        parts = {key: rebuilt(change, part) for key, part in value.items()}
        return parts if type(value) is dict else type(value)(**parts)
    if isinstance(value, (list, tuple)):
        items = (rebuilt(change, part) for part in value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_record(value):
        twin = copy.copy(value)
        vars(twin).update({name: rebuilt(change, part) for name, part in vars(value).items()})
        return twin
    return value


def value_at(value: Any, path: Path) -> Any:
    """Return what a path of keys leads to."""
    for key in path:
        value = value[key]
    return value


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(list(value.values()))
    if isinstance(value, (list, tuple)):
        return iter(value)
    if isinstance(value, (nn.Module, type, torch.Generator)) or callable(value):
        return iter(())
    return iter(list(getattr(value, "__dict__", {}).values()))
