"""The hub: what the lanes of one pipeline share while they take turns on a thread."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import nn

from ..platform import Platform
from .ambient import ThreadState
from .call import ComponentCall, Executor, NotMergeable, Offer, execute_eagerly
from .feature_cache import FeatureCaches
from .lane import Lane
from .merge import rows_of, signature_of
from .slots import Slots
from .view import modules_of


class Hub:
    """Owns the calling thread while lanes are open; a context manager around each wave.

    It decides nothing: a schedule (`lockstep.py`) says whose calls run next, and a batcher
    (`batcher.py`) runs them.

    Attributes:
        pipeline: The shared pipeline.
        platform: The device's platform.
        executor: Runs one component call; nothing else does.
        thread: The thread's state, and whose it is.
        exclusive: The lane that may change shared modules; no other may run until it is done.
        poison: The error after which the device cannot be used any more.
        on_change: Called when a lane has stopped: at its next component call, or for good.
    """

    def __init__(
        self,
        pipeline: Any,
        platform: Platform,
        *,
        merge: bool = True,
        executor: Executor = execute_eagerly,
    ) -> None:
        modules = modules_of(pipeline)
        self.pipeline = pipeline
        self.platform = platform
        self.executor = executor
        self._merge = merge
        self.thread = ThreadState(
            Slots(modules), platform.default_generators(), platform.device_types
        )
        self.exclusive: Lane | None = None
        self.poison: Exception | None = None
        self.on_change: Callable[[Lane], None] = _ignore
        self._caches = FeatureCaches(modules)
        self._open: set[Lane] = set()

    def __enter__(self) -> "Hub":
        for slot in self._caches.find():
            self.thread.slots.watch(slot, slot.read())
        self.thread.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.on_change = _ignore
        for lane in list(self._open):
            lane.cancel()
        self.thread.leave()

    def open(self, kwargs: dict[str, Any], seed: int, cancelled: Callable[[], bool]) -> Lane:
        """Make a lane; it runs when it is started.

        Args:
            kwargs: What the pipeline is called with.
            seed: Seeds the global random generators as the lane sees them.
            cancelled: Asked before each of the lane's component calls.
        """
        lane = Lane(self, kwargs, seed, cancelled)
        self._open.add(lane)
        return lane

    # ------------------------------------------------------------------ for lanes

    def stopped(self, lane: Lane) -> None:
        """Note that a lane waits for its next call, or is done."""
        if lane.done:
            self._open.discard(lane)
            self.note(lane.error)
            if self.exclusive is lane:
                self.exclusive = None
        self.on_change(lane)

    def note(self, error: Exception | None) -> None:
        """Look at an error: after some of them, nothing may run any more."""
        if error is not None and self.platform.is_fatal(error):
            self.poison = error

    def offer(self, call: ComponentCall) -> Offer | None:
        """Say which other calls this one could be merged with; called inside the lane.

        Returns:
            None if the call has to run alone.
        """
        if not self._merge or len(self._open) < 2 or self._caches.concern(call.module):
            return None
        modes = self.thread.modes()
        if modes.grad:
            return None
        try:
            arguments = call.named_arguments()
            rows = rows_of(arguments)
        except NotMergeable:
            return None
        where = (id(call.module), call.method, modes, self.thread.token())
        return Offer((*where, signature_of(arguments, rows)), arguments, rows)

    def publish(self, lane: Lane, module: nn.Module) -> None:
        """Show where the lane is to a cache's callbacks, which look at the shared pipeline."""
        if self._caches.concern(module):
            own = vars(lane.pipeline)
            if "_current_timestep" in own:
                self.pipeline._current_timestep = own["_current_timestep"]


def _ignore(lane: Lane) -> None:
    """Do nothing about a lane that has stopped."""
