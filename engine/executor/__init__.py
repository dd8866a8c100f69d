"""Executors: the backends that run what the scheduler decides."""

from __future__ import annotations

import importlib

from ..config import EngineConfig
from ..errors import ConfigError
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
      ConfigError: the import path leads nowhere.
    """
    wanted = config.executor
    if isinstance(wanted, str):
        wanted = BUILT_IN.get(wanted) or _imported(wanted)
    executor: DiffusionExecutor = wanted(config)
    return executor


def _imported(path: str) -> type:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"executor {path!r} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(f"executor {path!r} is not a class")
    return found
