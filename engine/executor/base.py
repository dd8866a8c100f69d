"""`DiffusionExecutor`: what the engine asks of a backend, whatever it is.

An executor runs what the scheduler decided, on workers numbered from 0. It never admits, reorders
or forwards requests,
and it knows nothing of claims: it carries messages both ways and tells when a worker has gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from ...ipc_ext.messages import AsyncDiffusionOutput, Form, NewRequestData, TensorPiece
from ...ipc_ext.tensors import TensorDescriptor


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An array that a request carries."""

    name: str
    """The pipeline's argument, or ``argument.index`` for an item of a list."""
    form: Form
    """What the pipeline is to receive."""
    descriptor: TensorDescriptor
    data: memoryview
    """Its bytes, C order."""


@dataclass(frozen=True, slots=True)
class DispatchedRequest:
    """A request on its way to a worker."""

    data: NewRequestData
    inputs: Sequence[InputTensor] = ()


@dataclass(frozen=True, slots=True)
class DispatchedTick:
    """A tick on its way to a worker."""

    new: Sequence[DispatchedRequest]
    """Requests that start in it."""
    scheduled: Sequence[int]
    """`async_output_id` of each request that takes a step, the new ones among them."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as its executor sees it."""

    index: int
    pid: int | None
    """None for a worker on a thread of this process."""
    device: str
    state: str
    heartbeat_age: float
    """Seconds since the worker last showed that it lives."""
    output_ring_bytes: int
    output_ring_used: int
    """Bytes of output that are on their way or held by the caller's arrays."""
    output_ring_held: int
    """Of these, the bytes that the caller's arrays hold."""


class DiffusionExecutor(Protocol):
    """The backend contract."""

    async def start(self, services: trio.Nursery) -> list[dict[str, Any]]:
        """Start the workers and wait until each has loaded its model.

        Args:
          services: where tasks may be started that live as long as the engine.

        Returns:
          Each worker's capabilities.

        Raises:
          StartupError: with the worker's reason. Whatever was started is for `close` to end.
        """
        ...

    async def dispatch(self, worker: int, wave: Sequence[DispatchedRequest]) -> None:
        """Hand a wave to a worker; suspends while its rings are full."""
        ...

    async def dispatch_step(self, worker: int, tick: DispatchedTick) -> None:
        """Hand a tick to a worker; suspends while its rings are full. The worker answers ticks in
        order, each by one STEP_DONE."""
        ...

    def abort(self, worker: int, request: NewRequestData) -> None:
        """Ask a worker to let go of a request before its next component call."""
        ...

    async def receive(self) -> Sequence[tuple[int, AsyncDiffusionOutput]]:
        """Wait for messages; the engine's pump is the only caller.

        Raises:
          WorkerDiedError: a worker has gone and everything that it sent has been received.
        """
        ...

    def lease(self, worker: int, piece: TensorPiece) -> Any:
        """Return a read-only buffer of a piece of output; its last reference gives the piece
        back."""
        ...

    def release(self, worker: int, piece: TensorPiece) -> None:
        """Give a piece of output back unread."""
        ...

    async def fit_outputs(self, largest: int) -> None:
        """Make room for outputs of `largest` bytes, or for usual ones if that is 0, as far as the
        configuration leaves it open. No request is in any worker meanwhile.

        Raises:
          StartupError: there is no memory for it.
        """
        ...

    def is_crowded(self, worker: int) -> bool:
        """Whether callers hold so much output memory that results should be copied out of it."""
        ...

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Call an exposed method on every worker and return the answers in order.

        Raises:
          ExecutionError: it raised in a worker.
        """
        ...

    def check_health(self) -> None:
        """Raise what is wrong with the backend, if anything is."""
        ...

    def workers(self) -> Sequence[WorkerStatus]:
        """Return how the workers are."""
        ...

    async def close(self, grace: float) -> None:
        """Stop the workers, kill those that take longer than `grace` seconds, and give everything
        back. Idempotent."""
        ...


Capabilities = Mapping[str, Any]
CAPABILITIES_NEEDED = frozenset(
    ("pipeline", "arguments", "required", "defaults", "accepts_any", "num_outputs", "from_image")
)
"""What the engine must know of a worker; see `DiffusionModelRunner.capabilities`."""
