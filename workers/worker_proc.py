"""`WorkerProc`: a worker's end of the rings. It takes messages, hands them to the
`DiffusionWorker`, and sends answers.

It knows no model and no policy: what to run, and in which order, was decided before the messages
were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ipc_ext import RingShutDown, Segment, WorkerState
from ..ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    Configure,
    Execute,
    ExecuteStep,
    InputPart,
    Message,
    Rpc,
    Stop,
    encode_outputs,
)
from . import faults
from .diffusion_worker import DiffusionWorker
from .inbox import Inbox
from .remote import remote_error

LOAD_FAILED = 1


class WorkerProc:
    """Serves one engine over one segment; runs in a worker process, or on a thread of the
    engine's."""

    def __init__(self, segment: Segment, ready: Callable[[], None] = lambda: None) -> None:
        """Make one.

        Args:
          segment: the worker's end of it.
          ready: called once the pipeline is loaded.
        """
        self._segment = segment
        self._ready = ready

    @classmethod
    def attach(cls, segment_fd: int, doorbell_fd: int) -> WorkerProc:
        """Make one from descriptors, which it owns from then on."""
        return cls(Segment.attach(segment_fd, doorbell_fd))

    def run(self) -> int:
        """Serve until `Stop` or until the segment is shut; return an exit status."""
        try:
            return self._serve()
        except RingShutDown:
            return 0
        finally:
            self._segment.close()

    def _serve(self) -> int:
        faults.point("attached")
        inbox = Inbox(self._segment.submissions)
        configuration = inbox.take()
        if not isinstance(configuration, Configure):
            raise TypeError(
                f"the first message must be Configure, not {type(configuration).__name__}"
            )
        faults.point("configured")
        self._segment.control.state = WorkerState.LOADING
        try:
            worker = DiffusionWorker(configuration, self._segment, self.send)
        except Exception as error:  # the engine raises it as StartupError
            self._answer(0, error=error)
            return LOAD_FAILED
        with worker:
            faults.point("loaded")
            self._ready()
            self._segment.control.state = WorkerState.READY
            self._answer(0, result=worker.capabilities())
            faults.point("greeted")
            for message in inbox:
                if isinstance(message, Stop):
                    faults.point("stopping")
                    break
                self._handle(worker, message, inbox)
            self._segment.control.state = WorkerState.STOPPING
        return 0

    def _handle(self, worker: DiffusionWorker, message: Message, inbox: Inbox) -> None:
        match message:
            case Execute(requests=requests):
                worker.execute_model_batch(requests, inbox)
            case ExecuteStep(new=new, scheduled=scheduled):
                worker.execute_stepwise(new, scheduled)
            case InputPart():
                worker.take_input(message)
            case Rpc(rpc_id=rpc_id, method=method, args=args):
                try:
                    result = worker.call(method, *args)
                except Exception as error:  # the engine raises it as ExecutionError
                    self._answer(rpc_id, error=error)
                else:
                    self._answer(rpc_id, result=result)
            case _:
                raise TypeError(f"{type(message).__name__} cannot come here")

    def _answer(self, rpc_id: int, *, result: Any = None, error: Exception | None = None) -> None:
        self.send(
            AsyncDiffusionOutput(
                AsyncOutputKind.RPC_RESULT,
                rpc_id=rpc_id,
                result=result,
                error=None if error is None else remote_error(error),
            )
        )

    def send(self, *messages: AsyncDiffusionOutput, droppable: bool = False) -> bool:
        """Send messages to the engine in one frame, from any thread.

        Args:
          messages: what to send; they come together, in this order.
          droppable: leave them out rather than wait, or take the last half of the ring from
            messages that matter.

        Returns:
          Whether they went out.
        """
        results = self._segment.results
        frame = encode_outputs(messages)
        if not droppable:
            results.push_wait(frame)
            return True
        return 2 * results.free_bytes > results.capacity and results.push(frame)
