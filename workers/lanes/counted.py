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
        stepping: Its `step` is running, perhaps one that calls that of a base class.
    """

    def __init__(self, on_step: Callable[[SchedulerStep], None]) -> None:
        self.scheduler: Any = None
        self.steps = 0
        self.stepping = False
        self._on_step = on_step

    @property
    def total(self) -> int | None:
        """The number of steps that the scheduler was set up for, once it is."""
        timesteps = getattr(self.scheduler, "timesteps", None)
        if not self.steps or timesteps is None:
            return None
        try:
            return len(timesteps)
        except TypeError:  # whatever a scheduler keeps under this name
            return None

    def stepped(self, taken: SchedulerStep) -> None:
        """Count a step."""
        self.steps += 1
        self._on_step(taken)

    def __deepcopy__(self, memo: dict[int, Any]) -> "StepObserver":
        return self


def private_scheduler(
    shared: Any, on_step: Callable[[SchedulerStep], None]
) -> tuple[Any, StepObserver | None]:
    """Return a deep copy of a scheduler that reports its steps.

    Its class is the same, since some pipelines ask whether it is exactly a certain one. So the
    class's `step` is replaced, once, by one that tells the observer of an instance that has one.

    Args:
        shared: The pipeline's scheduler.
        on_step: Told of each `step` when it has returned.
    """
    private = copy.deepcopy(shared)
    if not _observe(shared.__class__):
        return private, None
    observer = StepObserver(on_step)
    observer.scheduler = private
    vars(private)[_OBSERVER] = observer
    return private, observer


@functools.lru_cache(maxsize=256)
def _observe(kind: type) -> bool:
    """Have a class's `step` tell observers; False: it has none."""
    step = getattr(kind, "step", None)
    if step is None:
        return False

    @functools.wraps(step)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = getattr(self, _OBSERVER, None)
        if observer is None or observer.scheduler is not self or observer.stepping:
            return step(self, *args, **kwargs)
        observer.stepping = True
        try:
            result = step(self, *args, **kwargs)
        finally:
            observer.stepping = False
        observer.stepped(SchedulerStep(self, step, args, kwargs, result))
        return result

    setattr(kind, "step", told)  # noqa: B010 - mypy would not have the class changed
    return True
