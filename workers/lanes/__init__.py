"""Lanes: running any pipeline, unmodified, with every component call in the runner's hands."""

from .batcher import Batcher, Counts
from .call import ComponentCall, Executor, execute_eagerly
from .hub import Hub
from .lane import Lane, LaneCancelled, Outcome
from .lockstep import Lockstep
from .stepwise import Stepwise

__all__ = [
    "Batcher",
    "ComponentCall",
    "Counts",
    "Executor",
    "Hub",
    "Lane",
    "LaneCancelled",
    "Lockstep",
    "Outcome",
    "Stepwise",
    "execute_eagerly",
]
