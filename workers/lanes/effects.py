"""Whether a component has written into its arguments: a merged call gets copies of them."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from .call import Arguments


class Given:
    """Remembers the arguments of a call as they were before it.

    Args:
        arguments: By name.
    """

    def __init__(self, arguments: Arguments) -> None:
        given = list(_walk(arguments))
        self._tensors = [(part, _mark(part)) for part in given if isinstance(part, torch.Tensor)]
        self._containers = [(part, copy.copy(part)) for part in given if type(part) in (dict, list)]

    def changed(self) -> bool:
        """Whether tensors, or entries of dicts and lists, are others now.

        Entries that are gone do not count: some components empty the lists that they are given,
        which nobody else uses.
        """
        return any(_written(*pair) for pair in self._tensors) or any(
            _gained(*pair) for pair in self._containers
        )


def _walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _walk(part)


def _mark(tensor: torch.Tensor) -> Any:
    """Return what tells whether a tensor is written to; those of inference mode do not count it."""
    return tensor.clone() if tensor.is_inference() else tensor._version


def _written(tensor: torch.Tensor, mark: Any) -> bool:
    if isinstance(mark, torch.Tensor):
        return not torch.equal(tensor, mark)
    return bool(tensor._version != mark)


def _gained(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return any(key not in before or value is not before[key] for key, value in now.items())
    return any(all(value is not old for old in before) for value in now)
