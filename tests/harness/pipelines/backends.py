"""An executor of somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sidestream.engine import EngineConfig
from sidestream.engine.executor import UniProcDiffusionExecutor
from sidestream.engine.executor.base import DispatchedRequest


class CountingExecutor(UniProcDiffusionExecutor):
    """Counts what it dispatches."""

    waves: ClassVar[list[int]] = []

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.waves.clear()

    async def dispatch(self, worker: int, wave: Sequence[DispatchedRequest]) -> None:
        self.waves.append(len(wave))
        await super().dispatch(worker, wave)
