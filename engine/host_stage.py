"""`HostStage`: from tensors in ring memory to what callers asked for, off the event loop.

It also keeps the ring from being stalled by its readers. While more than half of a ring is free, an
output is ring memory until its last reference goes. When less is free, results are copied out of
it, and so are outputs that nobody has come for yet.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import trio

from ..ipc_ext.tensors import HostTensor
from ..postprocess import Postprocessor
from .delivery import Claim
from .errors import OutputError
from .executor import DiffusionExecutor
from .ledger import ClaimLedger
from .signals import Signal

INLINE_BYTES = 16_384
"""Raw outputs up to this size are handed out on the event loop: a thread would cost more."""


class HostStage:
    """Runs the postprocessor of the engine's pipeline.

    Args:
      executor: tells whether a ring is crowded.
      ledger: where outputs wait for their callers.
      threads: how many outputs are worked on at a time.
    """

    def __init__(self, executor: DiffusionExecutor, ledger: ClaimLedger, threads: int) -> None:
        self.postprocessor = Postprocessor()
        self._executor = executor
        self._ledger = ledger
        self._threads = trio.CapacityLimiter(threads)
        self._crowded = Signal()

    async def run(
        self, claim: Claim, tensors: dict[str, HostTensor], *, preview: bool = False
    ) -> list[Any]:
        """Turn a request's tensors into its outputs, or the one tensor of a preview into its image.

        Raises:
          OutputError: that cannot be done.
        """
        sampling = claim.prepared.request.sampling
        if self._executor.is_crowded(claim.worker):
            tensors = await self._copied(tensors)
        stage = functools.partial(
            self.postprocessor.preview_stage if preview else self.postprocessor.host_stage,
            tensors,
            output_type=sampling.output_type,
            options=sampling.output_options,
        )
        size = sum(tensor.nbytes for tensor in tensors.values())
        if sampling.output_type == "raw" and size <= INLINE_BYTES:
            outputs = _attempt(stage, sampling.output_type)
        else:
            outputs = await trio.to_thread.run_sync(
                _attempt, stage, sampling.output_type, limiter=self._threads
            )
        if isinstance(outputs, OutputError):
            raise outputs
        return outputs

    def note_output(self, worker: int) -> None:
        """Let `make_room` look whether this worker's ring has become crowded."""
        if self._executor.is_crowded(worker):
            self._crowded.set()

    async def make_room(self) -> None:
        """Copy outputs that nobody comes for out of crowded rings, for ever."""
        while True:
            await self._crowded.wait()
            for claim in self._ledger.uncollected():
                if self._executor.is_crowded(claim.worker):
                    await self._move_out(claim)

    async def _move_out(self, claim: Claim) -> None:
        """Copy one output; a function of its own, since a variable of `make_room` would hold the
        ring's memory until the next time."""
        held = claim.output.tensors()
        claim.output.move(held, await self._copied(held))

    async def _copied(self, tensors: dict[str, HostTensor]) -> dict[str, HostTensor]:
        def copy() -> dict[str, HostTensor]:
            return {name: tensor.copy() for name, tensor in tensors.items()}

        return await trio.to_thread.run_sync(copy, limiter=self._threads)


def _attempt(stage: Callable[[], list[Any]], output_type: str) -> list[Any] | OutputError:
    """Run a stage, and return what it makes, or its error as text: its traceback leads to the
    ring's memory, which a log that keeps it would keep.

    Libraries encode, and postprocessors may be somebody else's, so it may be any error.
    """
    try:
        return stage()
    except Exception as error:
        failure = OutputError(f"no {output_type!r} can be made of it: {error}")
        failure.add_note(f"In the host stage:\n{traceback.format_exc().rstrip()}")
        return failure
