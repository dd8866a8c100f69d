"""Private schedulers that tell their lane about every denoising step."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from ..clean_sample import SchedulerStep

_OBSERVER = "_sidestream_observer"


class StepObserver:
    """Counts the steps of one scheduler; copies of that scheduler are not counted.

    Attributes:
        scheduler: The lane's private scheduler.
        steps: How often its `step` was called.
    """

    def __init__(self, on_step: Callable[[SchedulerStep], None]) -> None:
        self.scheduler: Any = None
        self.steps = 0
        self._on_step = on_step

    @property
    def total(self) -> int | None:
        """The number of steps that the scheduler was set up for, once it is."""
        timesteps = getattr(self.scheduler, "timesteps", None)
        if not self.steps or timesteps is None:
            return None
        return len(timesteps)

    def stepped(self, taken: SchedulerStep) -> None:
        """Count a step, if it is the lane's own scheduler that stepped."""
        if taken.scheduler is self.scheduler:
            self.steps += 1
            self._on_step(taken)

    def __deepcopy__(self, memo: dict[int, Any]) -> "StepObserver":
        return self


def private_scheduler(
    shared: Any, on_step: Callable[[SchedulerStep], None]
) -> tuple[Any, StepObserver | None]:
    """Return a deep copy of a scheduler that reports its steps.

    The copy's class is a subclass with the same name; an attribute on the instance would follow
    copies that the pipeline makes of the scheduler and call the wrong one.

    Args:
        shared: The pipeline's scheduler.
        on_step: Told of each `step` when it has returned.
    """
    private = copy.deepcopy(shared)
    observed = _observed(shared.__class__)
    if observed is None:
        return private, None
    private.__class__ = observed
    observer = StepObserver(on_step)
    observer.scheduler = private
    vars(private)[_OBSERVER] = observer
    return private, observer


@functools.lru_cache(maxsize=256)
def _observed(kind: type) -> type | None:
    step = getattr(kind, "step", None)
    if step is None:
        return None

    @functools.wraps(step)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(self, *args, **kwargs)
        vars(self)[_OBSERVER].stepped(SchedulerStep(self, step, args, kwargs, result))
        return result

    names = {"step": counted, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)
