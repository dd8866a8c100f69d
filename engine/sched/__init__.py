"""Scheduling: pure policy, no I/O, time passed in."""

from .base import BaseScheduler as BaseScheduler
from .request_scheduler import RequestScheduler as RequestScheduler
from .states import (
    DiffusionRequestStatus as DiffusionRequestStatus,
    DiffusionSchedulerOutput as DiffusionSchedulerOutput,
    RunnerOutput as RunnerOutput,
    SchedulerRequestState as SchedulerRequestState,
)
