"""The hub: what the lanes of one pipeline share while they take turns on a thread."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any

from torch import nn

from ..platform import Platform
from .adapters import Adapters
from .ambient import Ambient, ThreadState
from .call import ComponentCall, Executor, NotMergeable, Offer, execute_eagerly
from .configuration import Configurations
from .feature_cache import FeatureCaches
from .lane import Lane
from .merge import rows_of, signature_of
from .offloading import Parts
from .shadow import HostShadow
from .slots import Slots
from .view import modules_of
from .waits import give_way_at_stream_waits


class Hub:
    """Owns the calling thread while lanes run; a context manager around each wave and each tick.

    It decides nothing: a schedule (`../waves.py`, `stepwise.py`) says whose calls run next, and a
    batcher (`batcher.py`) runs them.

    Lanes that are open when the body ends stay open. The thread is then theirs but for its modes,
    until `release`: a tick costs little, and whoever else wants to use the thread has to say so.

    Attributes:
        pipeline: The shared pipeline.
        platform: The device's platform.
        executor: Runs one component call; nothing else does.
        adapters: Which of the pipeline's adapters are at work, for whose turn it is.
        thread: The thread's state, and whose it is.
        parts: The parts of the shared modules.
        shadow: The function mode that the pipeline's own code runs in; None: there is no device.
        exclusive: The lane that may change shared modules; no other may run until it is done.
        poison: The error after which the device cannot be used any more.
        lends: Whether a lane that waits for the device shall be suspended, since there is a use for
            the thread, or may be.
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
        self.adapters = Adapters(modules, getattr(pipeline, "sidestream_lora", ()))
        self.thread = ThreadState(
            Slots(modules, self.adapters), platform.default_generators(), platform.device_types
        )
        device_type = platform.device_types[-1]
        self.shadow = None
        if device_type != "cpu":
            self.shadow = HostShadow(device_type)
            give_way_at_stream_waits()
        self.parts = Parts()
        self.exclusive: Lane | None = None
        self.poison: Exception | None = None
        self.lends: Callable[[Lane], bool] = _never
        self._caches = FeatureCaches(modules)
        self._configurations = Configurations(modules, adapters=not self.adapters.names)
        self._configuration: int | None = None
        self._open: set[Lane] = set()

    def __enter__(self) -> "Hub":
        if self.thread.entered:
            self.thread.wake()
            return self
        for slot in self._caches.find():
            self.thread.slots.watch(slot, slot.read())
        self._configuration = None
        self.thread.enter()
        for lane in self._open:
            lane.forget_offer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open:
            self.thread.rest()
        else:
            self.release()

    def release(self) -> None:
        """Give the thread back as it was before there were lanes, for other uses than lanes.

        Open lanes go on later as if nothing had happened, with the shared modules as they are then.
        """
        if self.thread.entered:
            self.drive(self.thread.leave)
            if self.thread.entered:  # the device was found to be lost
                self.thread.leave()

    def drive(self, schedule: Callable[[], None]) -> None:
        """Run a schedule.

        Asynchronous errors of the device may show up anywhere, also between two lanes; there they
        become `poison`.
        """
        try:
            schedule()
        except Exception as error:
            self.note(error)
            if self.poison is not error:
                raise

    def open(
        self,
        kwargs: dict[str, Any],
        seed: int,
        cancelled: Callable[[], bool],
        on_stop: Callable[[Lane], None],
        adapters: Mapping[str, float],
    ) -> Lane:
        """Make a lane; it runs when it is started.

        Args:
            kwargs: What the pipeline is called with.
            seed: Seeds the global random generators as the lane sees them.
            cancelled: Asked before each of the lane's component calls.
            on_stop: Called when the lane has stopped: at its next component call, or for good.
            adapters: Those at work in the lane's component calls, with their scales.
        """
        lane = Lane(self, kwargs, seed, cancelled, on_stop, adapters)
        self._open.add(lane)
        return lane

    def abandon(self, lanes: Iterable[Lane]) -> None:
        """Cancel those lanes that are open still; nobody listens to them any more."""
        for lane in self._open.intersection(lanes):
            lane.forsake()

    # ------------------------------------------------------------------ for lanes

    def stopped(self, lane: Lane) -> None:
        """Note that a lane waits for its next call, or is done."""
        if lane.done:
            self._open.discard(lane)
            self.note(lane.error)
            if self.exclusive is lane:
                self.exclusive = None

    def note(self, error: Exception | None) -> None:
        """Look at an error: after some of them, nothing may run any more."""
        if error is not None and self.platform.is_fatal(error):
            self.poison = error
            self.thread.forget_device()

    def offer(self, call: ComponentCall, ambient: Ambient) -> Offer | None:
        """Say which other calls this one could be merged with.

        Args:
            call: What a lane waits for.
            ambient: The lane's share of the thread's state.

        Returns:
            None if the call has to run alone.
        """
        if not self._merge or self._caches.concern(call.module):
            return None
        modes = self.thread.modes_of(ambient)
        if modes.grad:
            return None
        try:
            arguments = call.named_arguments()
            rows = rows_of(arguments)
        except NotMergeable:
            return None
        if self._configuration is None:  # only now: a request that is alone needs none
            self._configuration = self._configurations.number()
        token = self.thread.token_of(ambient)
        where = (id(call.module), call.method, modes, token, self._configuration)
        return Offer((*where, signature_of(arguments, rows)), arguments, rows)

    def has_cache(self, module: nn.Module) -> bool:
        """Whether a component has a feature cache, which decides on data what is computed."""
        return self._caches.concern(module)

    def surroundings(self) -> Hashable:
        """Return what the component call that runs now depends on beside its arguments and the
        values of weights: the thread's modes, and how the shared modules are configured."""
        if self._configuration is None:
            self._configuration = self._configurations.number()
        return (*self.thread.present(), self._configuration)

    def publish(self, lane: Lane, module: nn.Module) -> None:
        """Show where the lane is to a cache's callbacks, which look at the shared pipeline."""
        if self._caches.concern(module):
            own = vars(lane.pipeline)
            if "_current_timestep" in own:
                self.pipeline._current_timestep = own["_current_timestep"]


def _never(lane: Lane) -> bool:
    """Lend nobody's waits."""
    return False
