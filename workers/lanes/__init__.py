"""Lanes: running any pipeline, unmodified, with every component call in the runner's hands."""

from .batcher import Batcher, Counts
from .call import ComponentCall, Executor, execute_eagerly
from .hub import Hub
from .lane import Lane, LaneCancelled, Outcome
from .rounds import Rounds
from .stepwise import Stepwise

__all__ = [
    "Batcher",
    "ComponentCall",
    "Counts",
    "Executor",
    "Hub",
    "Lane",
    "LaneCancelled",
    "Outcome",
    "Rounds",
    "Stepwise",
    "execute_eagerly",
]
