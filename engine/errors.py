"""Everything that sidestream raises on purpose."""

from __future__ import annotations


class SidestreamError(Exception):
    """Base class of all errors of this library."""


class ConfigError(SidestreamError, ValueError):
    """A configuration value is unknown or out of range; the message names the field and the valid
    values."""


class RequestError(SidestreamError, ValueError):
    """A request cannot be run as it stands; raised before any work starts, naming the field and the
    valid values."""


class DuplicateRequestError(RequestError):
    """A request with this `request_id` is already in the engine."""


class EngineBusyError(SidestreamError):
    """The queue is full (`max_queued_requests`); nothing of the request was processed. Try again
    later."""


class EngineClosedError(SidestreamError):
    """The engine has been closed, or is closing."""


class EngineDeadError(SidestreamError):
    """The engine cannot run anything any more; `__cause__` is what killed it."""


class StartupError(SidestreamError):
    """The engine could not be started; the message carries the worker's own reason."""


class RequestAborted(SidestreamError):  # the field's name for it
    """Somebody called `DiffusionEngine.abort` for this request."""


class DeadlineExceededError(SidestreamError, TimeoutError):
    """The request's deadline passed while it was queued, running or being delivered."""


class ExecutionError(SidestreamError):
    """The pipeline raised while it ran this request; the engine goes on.

    Attributes:
      remote_type: class name of the exception in the worker.
      remote_traceback: its traceback, as text.
    """

    def __init__(self, remote_type: str, remote_traceback: str) -> None:
        super().__init__(_told_by(remote_type, remote_traceback.strip()))
        self.remote_type = remote_type
        self.remote_traceback = remote_traceback
        self.add_note(f"In the worker:\n{remote_traceback.rstrip()}")


class OutputError(SidestreamError):
    """What the pipeline made cannot be turned into the `output_type` of the request; a note has the
    traceback."""


def _told_by(kind: str, text: str) -> str:
    """Return what a traceback ends with: the exception's class and its message, of any lines."""
    lines = text.splitlines()
    for index in reversed(range(len(lines))):
        if lines[index].partition(":")[0].rpartition(".")[2] == kind:
            return "\n".join(lines[index:])
    return lines[-1] if lines else kind


class WorkerDiedError(SidestreamError):
    """A worker has gone, and the request with it.

    Attributes:
      worker: index of the worker.
      what: what became of it, in words.
      exit_status: exit code, negative for a signal as in `subprocess`; None for a worker thread.
      stderr: the last lines that the worker wrote.
    """

    def __init__(self, worker: int, what: str, exit_status: int | None, stderr: str = "") -> None:
        super().__init__(f"worker {worker} {what}")
        self.worker = worker
        self.what = what
        self.exit_status = exit_status
        self.stderr = stderr
        if stderr:
            self.add_note(f"Its last lines:\n{stderr.rstrip()}")

    def again(self) -> WorkerDiedError:
        """Make an equal error, since each waiter needs one of its own: a raised exception belongs
        to one task."""
        return WorkerDiedError(self.worker, self.what, self.exit_status, self.stderr)
