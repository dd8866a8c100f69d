"""A lane's own copy of a pipeline: proxies for modules, copies of schedulers, all else shared."""

import contextlib
import copy
import functools
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from torch import nn

from .counted import StepObserver, private_scheduler

if TYPE_CHECKING:
    from .lane import Lane

MOST_STEPS = 1 << 31
_LEAVES = (str, bytes, int, float, bool, type(None), type)
_LIBRARIES = sys.stdlib_module_names | {
    "diffusers",
    "numpy",
    "PIL",
    "tokenizers",
    "torch",
    "transformers",
}
"""Whose objects hold no pipelines."""


class PipelineView:
    """Builds one lane's copy of a pipeline, nested pipelines included.

    Attributes:
        pipeline: The copy.
        observers: The step counters of the private schedulers.
    """

    def __init__(self, pipeline: Any, lane: "Lane") -> None:
        self.observers: list[StepObserver] = []
        self._lane = lane
        self._made: dict[int, Any] = {}
        self.pipeline = self._pipeline(pipeline, "")

    def _pipeline(self, shared: Any, prefix: str) -> Any:
        if not hasattr(shared, "__dict__") or isinstance(shared, types.FunctionType):
            return shared
        view = self._made[id(shared)] = copy.copy(shared)
        attributes = vars(view)
        for name, value in list(attributes.items()):
            if not isinstance(value, _LEAVES):
                attributes[name] = self._private(value, f"{prefix}{name}", shared, view)
        if hasattr(shared, "maybe_free_model_hooks"):
            # the stock method resets the feature caches of every request
            attributes["maybe_free_model_hooks"] = _do_nothing
        if hasattr(shared, "set_progress_bar_config"):
            # the progress bars of several requests would fight for one terminal line
            attributes["_progress_bar_config"] = {"disable": True}
        return view

    def _private(self, value: Any, path: str, shared: Any, view: Any) -> Any:
        if isinstance(value, _LEAVES):
            return value
        if isinstance(value, nn.Module):
            return self._lane.proxy(value, path.replace("_modules.", ""))
        if id(value) in self._made:
            return self._made[id(value)]
        if type(value) in (dict, OrderedDict, defaultdict):
            twin = self._made[id(value)] = copy.copy(value)
            for key, part in value.items():
                twin[key] = self._private(part, f"{path}.{key}", shared, view)
            return twin
        if type(value) is list:
            twin = self._made[id(value)] = []
            twin.extend(self._private(v, f"{path}.{i}", shared, view) for i, v in enumerate(value))
            return twin
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):
            parts = [self._private(v, f"{path}.{i}", shared, view) for i, v in enumerate(value)]
            return value._make(parts) if hasattr(value, "_make") else tuple(parts)
        if type(value) in (types.MethodType, types.FunctionType, functools.partial):
            return self._function(value, path, shared, view)
        if is_scheduler(value):
            return self._scheduler(value)
        if is_pipeline(value):
            return self._pipeline(value, f"{path}.")
        if type(value).__module__.startswith("diffusers.guiders"):
            self._made[id(value)] = copy.deepcopy(value)
            return self._made[id(value)]
        return value

    def _function(self, value: Any, path: str, shared: Any, view: Any) -> Any:
        """Return what a pipeline keeps to call it, of the lane's own parts."""
        if isinstance(value, types.FunctionType):
            return self._closure(value, path, shared, view) if value.__closure__ else value
        if isinstance(value, types.MethodType):
            owner = self._private(value.__self__, path, shared, view)
            if owner is value.__self__:
                return value
            return (
                types.MethodType(value.__func__, view)
                if owner is view
                else getattr(owner, value.__name__)
            )
        bound = (value.func, value.args, value.keywords)
        function, args, keywords = (self._private(part, path, shared, view) for part in bound)
        return functools.partial(function, *args, **keywords)

    def _closure(self, function: Any, path: str, shared: Any, view: Any) -> Any:
        """Return a function that knows the lane's own parts; the shared one if it knows none."""
        cells = tuple(types.CellType() for _ in function.__closure__)
        twin = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        self._made[id(function)] = functools.update_wrapper(twin, function)
        differs = False
        for cell, own in zip(function.__closure__, cells, strict=True):
            with contextlib.suppress(ValueError):  # nothing is in the cell yet
                held = part = cell.cell_contents
                if not isinstance(held, (list, dict)):  # those collect things for others to look at
                    part = self._private(held, path, shared, view)
                own.cell_contents = part
                differs |= part is not held and part is not twin
        if not differs:
            self._made[id(function)] = function
        return self._made[id(function)]

    def _scheduler(self, shared: Any) -> Any:
        private, observer = private_scheduler(shared, self._lane.on_step)
        if observer is not None:
            self.observers.append(observer)
        self._made[id(shared)] = private
        return private


def total_steps(pipeline: Any, observers: Sequence[StepObserver]) -> int | None:
    """Return how many steps a lane's schedulers will make, once that is known.

    Args:
        pipeline: The lane's copy of the pipeline.
        observers: The step counters of its schedulers.
    """
    totals = [observer.total for observer in observers if observer.steps]
    if len(totals) == 1 and observers[0].steps:
        # some pipelines skip the first of the scheduler's time steps, and say so here
        own: Any = getattr(pipeline, "_num_timesteps", None)
        plausible = isinstance(own, Integral) and 0 <= int(own) < MOST_STEPS
        return int(own) if plausible else totals[0]
    return sum(total or 0 for total in totals) or None


def is_scheduler(value: Any) -> bool:
    """Whether a pipeline's attribute is a scheduler, which keeps one request's state."""
    return hasattr(value, "set_timesteps") and hasattr(value, "step")


def is_pipeline(value: Any, depth: int = 3) -> bool:
    """Whether a pipeline's attribute is itself a pipeline: an object that holds components.

    Args:
        value: The attribute.
        depth: How far to look into helpers that hold helpers.
    """
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    held = list(vars(value).values())
    if any(isinstance(part, nn.Module) or is_scheduler(part) for part in held):
        return True
    if depth == 0 or type(value).__module__.partition(".")[0] in _LIBRARIES:
        return False
    return any(is_pipeline(part, depth - 1) for part in held if not isinstance(part, _LEAVES))


def modules_of(pipeline: Any) -> list[nn.Module]:
    """Return the components of a pipeline and of the pipelines nested in it."""
    seen: set[int] = {id(pipeline)}
    return [found for value in _attributes(pipeline) for found in _modules(value, seen)]


def _modules(value: Any, seen: set[int]) -> Iterator[nn.Module]:
    if id(value) in seen or isinstance(value, _LEAVES):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _modules(part, seen)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _modules(part, seen)
    elif is_pipeline(value):
        for part in _attributes(value):
            yield from _modules(part, seen)


def _attributes(value: Any) -> list[Any]:
    return list(getattr(value, "__dict__", {}).values())


def _do_nothing() -> None:
    """Replace a method that reaches into what all lanes share."""
