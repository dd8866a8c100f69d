"""`Trust`: whether the next wave may run while a request still has something to do.

Both run the same components and the same pipeline's code. So what the first one still uses has to
be its own. A component that leaves its results in the same memory again and again, as engines of
other makers do, would write the next request's over them; one that replaces something it keeps
lets go of memory that the other wave's calls still read; and so it is with a pipeline that keeps a
buffer. Nobody says that of itself. So it is looked at while requests run one after the other: at
the first calls of each kind and shape, and at what the pipeline holds. If anything is found, waves
do not overlap with this pipeline. All this begins when a pipeline waits for the first time.
"""

import functools
import types
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .lanes import ComponentCall, Executor
from .lanes.structure import parts_of
from .lanes.view import is_scheduler
from .outputs import are_owned

LOOKS = 6
"""Calls of one kind and shape that are looked at; what records itself does so within three."""
HELD = 2
"""Results of earlier calls that are held meanwhile, so that their memory cannot be given anew."""
HELD_BYTES = 32 << 20
"""Of one result; a component that makes larger ones lets other waves go on first."""
HELD_KINDS = 16
SETTINGS_KEPT = 1024
KINDS_KEPT = 256
_NEVER = -1
VISITS = 5000
"""Objects of a pipeline that are looked at; one that holds more is not trusted."""
_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType)
_LIBRARIES = ("tokenizers", "transformers")
"""Whose objects hold large tables, and nothing of the device."""

Kind = Hashable
"""A component's name, a method's, and the shapes of the arguments."""


class Trust:
    """An executor that looks at what calls return, and knows what was found.

    Args:
        pipeline: The pipeline.
        executor: Runs the calls.
    """

    def __init__(self, pipeline: Any, executor: Executor) -> None:
        self._pipeline = pipeline
        self._executor = executor
        self._left: dict[Kind, int] = {}
        self._held: dict[Kind, deque[list[torch.Tensor]]] = {}
        self._kept: dict[int, set[int]] = {}
        self._settings: set[Hashable] = set()
        self._looks = False
        self._broken = False

    def look(self) -> None:
        """Begin to look, if that has not begun: it would be of use."""
        self._looks = not self._broken

    def __call__(self, call: ComponentCall) -> Any:
        """Run a call, and look at it if it is one of the first of its kind."""
        if not self._looks:
            return self._executor(call)
        kind = kind_of(call)
        if self._left.get(kind, LOOKS) <= 0 or len(self._left) >= KINDS_KEPT:
            return self._executor(call)
        passed_on = _places(_tensors_in([call.args, call.kwargs]))
        result = self._executor(call)
        made = [one for one in _tensors_in([result]) if not _places([one]) & passed_on]
        self._look(kind, call.module, made)
        return result

    def _look(self, kind: Kind, module: nn.Module, made: list[torch.Tensor]) -> None:
        held = self._held.setdefault(kind, deque(maxlen=HELD))
        kept = _kept_by(module)
        before = self._kept.setdefault(id(module), kept)
        if kept != before or any(_places(made) & _places(one) for one in held):
            self._lose()
            return
        held.append(made)
        large = sum(tensor.untyped_storage().nbytes() for tensor in made) > HELD_BYTES
        self._left[kind] = _NEVER if large else self._left.get(kind, LOOKS) - 1
        if self._left[kind] <= 0:
            del self._held[kind]
        elif len(self._held) > HELD_KINDS:  # one that has not come for long begins anew
            forgotten = next(iter(self._held))
            del self._held[forgotten], self._left[forgotten]

    def note_output(self, settings: Hashable, tensors: Mapping[str, torch.Tensor]) -> None:
        """Note what a request has come to.

        Args:
            settings: Of the request.
            tensors: What the pipeline returned; its result was dropped.
        """
        if not self._looks or settings in self._settings:
            return
        held = (one for results in self._held.values() for one in results)
        if any(_places(one) & _places(tensors.values()) for one in held):
            return  # it is this that holds them
        if not are_owned(tensors) or _holds_memory(self._pipeline):
            self._lose()
        elif len(self._settings) < SETTINGS_KEPT:
            self._settings.add(settings)

    def _lose(self) -> None:
        self._broken, self._looks = True, False
        for found in (self._left, self._held, self._kept, self._settings):
            found.clear()

    def covers_request(self, settings: Hashable) -> bool:
        """Whether another wave may begin beside a request with such settings."""
        return settings in self._settings

    def covers_calls(self, calls: Iterable[ComponentCall]) -> bool:
        """Whether such calls may be made while another wave's request is not done."""
        return all(self._left.get(kind_of(call)) == 0 for call in calls)


def kind_of(call: ComponentCall) -> Kind:
    """Return what calls have in common that use memory in the same way."""
    shapes = (
        tuple(part.shape) if isinstance(part, torch.Tensor) else type(part)
        for part in parts_of([call.args, call.kwargs])
    )
    return (call.path, call.method, *shapes)


def settings_of(kwargs: Mapping[str, Any]) -> Hashable:
    """Return what decides on the memory that a request needs: sizes, counts, the kind of output."""
    return frozenset(
        (name, value)
        for name, value in kwargs.items()
        if type(value) in (int, bool) or (name == "output_type" and isinstance(value, str))
    )


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [part for part in parts_of(value) if isinstance(part, torch.Tensor)]


def _places(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return where tensors lie; empty ones are nowhere."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def _kept_by(module: nn.Module) -> set[int]:
    """Return where the tensors lie that a module keeps, weights and buffers among them."""
    kept = [value for part in module.modules() for value in vars(part).values()]
    plain = [value for value in kept if isinstance(value, (torch.Tensor, dict, list, tuple))]
    return _places(part for part in _walk(plain, nn.Module) if isinstance(part, torch.Tensor))


def _holds_memory(pipeline: Any) -> bool:
    """Whether a pipeline holds tensors or arrays beside its components and schedulers, of which
    requests have their own; or so much that it is not looked through."""
    held = getattr(pipeline, "__dict__", {}).values()
    for visit, part in enumerate(_walk(held, nn.Module)):
        if isinstance(part, (torch.Tensor, np.ndarray)) or visit > VISITS:
            return True
    return False


def _walk(values: Iterable[Any], *without: type) -> Iterator[Any]:
    """Yield values and what they hold, each once, but for schedulers and for some types."""
    seen: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, (*_LEAVES, *without)) or id(value) in seen:
            continue
        seen.add(id(value))
        if not is_scheduler(value):
            yield value
            left.extend(_held_by(value))


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor) or type(value).__module__.startswith(_LIBRARIES):
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    return list(getattr(value, "__dict__", {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
