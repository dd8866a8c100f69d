"""`Trust`: whether the next wave may run while a request still has something to do.

Both run the same components and the same pipeline's code. So what the first one still uses has to
be its own: a component that leaves its results in the same memory at each call, as engines of other
makers do, would write the next request's over them, and so would a pipeline that keeps a buffer.
Nobody says that of itself. So it is looked at while requests run one after the other: the result of
a component must not lie where an earlier one lies that is still held, nor may a pipeline know the
memory of what it has returned, or hold any memory of the device. If one does, waves do not overlap.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch

from .lanes import ComponentCall, Executor
from .lanes.structure import parts_of
from .lanes.view import is_scheduler
from .outputs import are_owned

Kind = tuple[str, str]
"""A component's name and a method's."""
SETTINGS_KEPT = 1024


class Trust:
    """An executor that looks at what calls return, and knows what was found.

    Args:
        pipeline: The pipeline.
        executor: Runs the calls.
    """

    def __init__(self, pipeline: Any, executor: Executor) -> None:
        self._executor = executor
        self._fresh: set[Kind] = set()
        self._held: dict[Kind, list[torch.Tensor]] = {}
        self._settings: set[Hashable] = set()
        self._broken = _holds_memory(pipeline)

    def __call__(self, call: ComponentCall) -> Any:
        """Run a call; the result of a kind's first one is kept until its second one has run."""
        result = self._executor(call)
        kind = (call.path, call.method)
        if kind not in self._fresh and not self._broken:
            passed_on = _places(_tensors_in([call.args, call.kwargs]))
            made = [one for one in _tensors_in([result]) if not _places([one]) & passed_on]
            self._compare(kind, made)
        return result

    def _compare(self, kind: Kind, tensors: list[torch.Tensor]) -> None:
        before = self._held.pop(kind, None)
        if before is None:
            self._held[kind] = tensors
        elif _places(before) & _places(tensors):
            self._lose()
        else:
            self._fresh.add(kind)

    def note_output(self, settings: Hashable, tensors: Mapping[str, torch.Tensor]) -> None:
        """Note what a request has come to.

        Args:
            settings: Of the request.
            tensors: What the pipeline returned; its result was dropped.
        """
        if any(_places(held) & _places(tensors.values()) for held in self._held.values()):
            return  # it is this that holds them
        if not are_owned(tensors):
            self._lose()
        elif len(self._settings) < SETTINGS_KEPT and not self._broken:
            self._settings.add(settings)

    def _lose(self) -> None:
        self._broken = True
        self._held.clear()
        self._settings.clear()
        self._fresh.clear()

    def covers_request(self, settings: Hashable) -> bool:
        """Whether another wave may begin beside a request with such settings."""
        return settings in self._settings

    def covers_calls(self, kinds: Iterable[Kind]) -> bool:
        """Whether such calls may be made while another wave's request is not done."""
        return self._fresh.issuperset(kinds)


def settings_of(kwargs: Mapping[str, Any]) -> Hashable:
    """Return what decides on the memory that a request needs: sizes, counts, the kind of output."""
    return frozenset(
        (name, value)
        for name, value in kwargs.items()
        if type(value) in (int, bool) or name == "output_type"
    )


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [part for part in parts_of(value) if isinstance(part, torch.Tensor)]


def _holds_memory(pipeline: Any) -> bool:
    """Whether a pipeline holds memory of the device. Schedulers are each request's own."""
    held = [one for one in getattr(pipeline, "__dict__", {}).values() if not is_scheduler(one)]
    return any(tensor.device.type != "cpu" for tensor in _tensors_in(held))


def _places(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return where tensors lie; empty ones are nowhere."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
