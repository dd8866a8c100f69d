"""Scheduling: pure policy, no I/O, time passed in."""

from .base import BaseScheduler as BaseScheduler
from .request_scheduler import RequestScheduler as RequestScheduler
from .states import (
    DiffusionRequestStatus as DiffusionRequestStatus,
)
from .states import (
    DiffusionSchedulerOutput as DiffusionSchedulerOutput,
)
from .states import (
    RunnerOutput as RunnerOutput,
)
from .states import (
    SchedulerRequestState as SchedulerRequestState,
)
