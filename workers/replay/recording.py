"""`Recording`: a component call whose work on the device can be repeated with other values."""

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

from ..graphs import Graphs
from ..lanes.call import Arguments, ComponentCall, execute_eagerly
from ..lanes.structure import copied, parts_of, rebuilt

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Unrecordable(Exception):
    """A call cannot be replayed; the text says why."""


def signature_of(value: Any) -> Hashable:
    """Return what has to be equal for a recorded call to stand for another one: all but the values
    of tensors.

    Raises:
      Unrecordable: there is something whose changes nobody would see.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided:
            raise Unrecordable(f"an argument is a {type(value).__name__}, {value.layout}")
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    if type(value) is dict:
        return tuple((name, signature_of(part)) for name, part in value.items())
    if type(value) in (list, tuple):
        return (type(value), tuple(map(signature_of, value)))
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, torch.Generator):
        return (torch.Generator, value.device)  # nothing is drawn from it, or there is no recording
    raise Unrecordable(f"an argument is a {type(value).__name__}")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or in a result, in order."""
    return (part for part in parts_of(value) if isinstance(part, torch.Tensor))


class Recording:
    """One call, recorded.

    Args:
      graphs: records.
      call: whose work is recorded.
      arguments: of the call, by name; their values do not matter.

    Raises:
      Unrecordable: its result is something that cannot be copied.
    """

    def __init__(self, graphs: Graphs, call: ComponentCall, arguments: Arguments) -> None:
        self._inputs: list[torch.Tensor] = []
        self._device = graphs.device
        static = rebuilt(self._input, arguments)
        run = call.with_arguments(copied(static))
        self._replay, self._result = graphs.capture(lambda: execute_eagerly(run))
        check_result(self._result)

    def _input(self, tensor: torch.Tensor) -> torch.Tensor:
        # A copy, not a view: what is expanded has one element in several places.
        static = tensor.detach().to(self._device, copy=True)
        self._inputs.append(static)
        return static

    def replay(self, arguments: Arguments) -> Any:
        """Do the work on other values, and return a result that nobody else holds."""
        for static, given in zip(self._inputs, tensors_in(arguments), strict=True):
            static.copy_(given, non_blocking=True)
        self._replay()
        return rebuilt(torch.clone, self._result)


def check_result(result: Any) -> None:
    """Return if a copy of a result is as good as the result.

    Raises:
      Unrecordable: it is not.
    """
    if any(tensor.requires_grad for tensor in tensors_in(result)):
        raise Unrecordable("gradients may be asked for")
    for part in parts_of(result):
        if not isinstance(part, (torch.Tensor, *_PLAIN)):
            raise Unrecordable(f"the result holds a {type(part).__name__}")
