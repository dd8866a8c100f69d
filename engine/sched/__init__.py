"""Scheduling: pure policy, no I/O, time passed in."""

from __future__ import annotations

import inspect

from ..config import EngineConfig, imported
from ..errors import ConfigError
from .base import BaseScheduler as BaseScheduler
from .request_scheduler import RequestScheduler as RequestScheduler
from .states import (
    DiffusionRequestStatus as DiffusionRequestStatus,
    DiffusionSchedulerOutput as DiffusionSchedulerOutput,
    RunnerOutput as RunnerOutput,
    SchedulerRequestState as SchedulerRequestState,
)
from .step_scheduler import StepScheduler as StepScheduler


def make_scheduler(config: EngineConfig) -> BaseScheduler:
    """Make the scheduler that a config names, or the one of its mode.

    Raises:
      ConfigError: it is no scheduler of this mode.
    """
    wanted = config.scheduler
    if wanted is None:
        wanted = StepScheduler if config.mode == "step" else RequestScheduler
    elif isinstance(wanted, str):
        wanted = imported("scheduler", wanted)
    if not issubclass(wanted, BaseScheduler) or inspect.isabstract(wanted):
        raise ConfigError(
            f"scheduler must be a subclass of BaseScheduler that can be made, not {wanted.__name__}"
        )
    mode = getattr(wanted, "mode", None)
    if mode != config.mode:
        raise ConfigError(
            f"scheduler {wanted.__name__} is of mode {mode!r}, the engine of {config.mode!r}"
        )
    try:
        scheduler = wanted.from_config(config)
    except ConfigError:
        raise
    except Exception as error:  # other people's code
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"scheduler {wanted.__name__} cannot be made: {reason}") from error
    if not isinstance(scheduler, BaseScheduler):
        raise ConfigError(f"scheduler {wanted.__name__}.from_config returned {scheduler!r}")
    return scheduler
