"""`WorkerLoad`: what one worker has been given, as the ledger keeps account of it."""

from __future__ import annotations

from collections import deque

from ..ipc_ext.messages import TensorPiece
from .delivery import Claim
from .executor.base import DiffusionExecutor
from .trace import DeviceMeter


class WorkerLoad:
    """What a worker has been given and has not finished."""

    def __init__(self, cancel_slots: int) -> None:
        self.waves: dict[int, set[int]] = {}
        self.ticks: deque[tuple[Claim, ...]] = deque()
        """Those under way in step mode, in order, each with who takes a step in it."""
        self.outputs = 0
        self.device = DeviceMeter()
        self.dispatched = 0
        self.free_slots = list(range(cancel_slots))
        self.cancel_slots = cancel_slots

    @property
    def in_flight(self) -> int:
        """Waves and ticks under way."""
        return len(self.waves) + len(self.ticks)


class WorkerPieces:
    """The pieces of one worker, as `OutputAssembly` wants them."""

    def __init__(self, executor: DiffusionExecutor, worker: int) -> None:
        self._executor, self._worker = executor, worker

    def lease(self, piece: TensorPiece) -> object:
        return self._executor.lease(self._worker, piece)

    def release(self, piece: TensorPiece) -> None:
        self._executor.release(self._worker, piece)
