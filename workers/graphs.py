"""Recording work on a device, to have it done again at the cost of one call."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

_cuda: Any = torch.cuda
_SYNC_WARNING = "synchronizing CUDA operation"


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Tell whoever asks that nothing is recorded: text encoders of transformers build a mask then
    which they do without otherwise, and other kernels give other bits."""
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


@contextmanager
def _substitute(generator: Any) -> Iterator[None]:
    """Let a generator have another state for a while: one that a recording knows can be used for
    nothing else after the recording has failed."""
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


class Graphs(Protocol):
    """Records work on a device; what a platform has to bring for replay."""

    bytes_used: int
    """Device memory that the recorded work holds."""
    device: torch.device
    """Where it is."""

    def rehearse(self, run: Callable[[], Any]) -> Any:
        """Do some work as it is recorded later: whatever happens once only happens now.

        Args:
          run: does the work and returns tensors. They come from another stream; whoever uses them
            tells the allocator so.
        """

    def observe(self, run: Callable[[], Any]) -> tuple[Any, str | None]:
        """Do some work, and tell by what it waited for the device, None if it did not."""

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Record some work without doing it.

        Returns:
          What does the work again, and the tensors that it leaves its results in.
        """

    def drop(self) -> None:
        """Forget what was recorded; nobody replays it any more."""


class CudaGraphs:
    """CUDA graphs that share one pool of memory.

    They never run at the same time and their results are copied at once, so one may use the memory
    of another's intermediate values. What they read and leave stays their own.

    Attributes:
      bytes_used: device memory that recording has taken since the last `drop`.
      device: where it is.

    Args:
      device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes_used = 0
        self._stream = _cuda.Stream(device)
        self._pool = _cuda.graph_pool_handle()

    def rehearse(self, run: Callable[[], Any]) -> Any:
        """Run something on the stream that it is recorded on later: libraries allocate their
        workspaces for each stream, which must not happen while it is recorded."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = run()
        current.wait_stream(self._stream)
        return result

    def observe(self, run: Callable[[], Any]) -> tuple[Any, str | None]:
        """Run something, and tell by what it waited for the device, None if it did not.

        The debug mode is the whole process's; a wait of the output thread counts too, but that has
        none while it copies.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = run()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = [w for w in caught if _SYNC_WARNING in str(w.message)]
        return result, f"{waits[0].filename}:{waits[0].lineno}" if waits else None

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Record what something does on the device.

        Other threads may go on using the device meanwhile.

        Raises:
          RuntimeError: it did what cannot be recorded.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        with (
            _substitute(torch.cuda.default_generators[self._stream.device_index]),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
            _unnoticed(),
        ):
            result = run()
        self.bytes_used += max(0, free - torch.cuda.mem_get_info(self.device)[0])
        return graph.replay, result

    def drop(self) -> None:
        """Give the memory of all recordings, which nobody holds any more, back to the device."""
        torch.cuda.synchronize(self.device)
        self._pool = _cuda.graph_pool_handle()
        self.bytes_used = 0
        torch.cuda.empty_cache()
