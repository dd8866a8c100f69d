"""Executors: the backends that run what the scheduler decides."""

from __future__ import annotations

from ..config import EngineConfig, imported
from .base import DiffusionExecutor as DiffusionExecutor
from .link import cancel_slots_for as cancel_slots_for
from .multiproc import MultiprocDiffusionExecutor as MultiprocDiffusionExecutor
from .uniproc import UniProcDiffusionExecutor as UniProcDiffusionExecutor

BUILT_IN: dict[str, type[DiffusionExecutor]] = {
    "uni": UniProcDiffusionExecutor,
    "mp": MultiprocDiffusionExecutor,
}


def make_executor(config: EngineConfig) -> DiffusionExecutor:
    """Make the executor that a config names: a built-in one, an import path, or a class.

    Raises:
      ConfigError: the import path leads nowhere, or files that the config names are not there.
    """
    wanted = config.executor
    if isinstance(wanted, str):
        wanted = BUILT_IN.get(wanted) or imported("executor", wanted)
    executor: DiffusionExecutor = wanted(config)
    return executor
