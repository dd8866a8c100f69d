"""A lane: one request's call of the pipeline, suspended whenever it wants to call a component."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import greenlet
from torch import nn

from ...ipc_ext import call_at_stack_end
from ..clean_sample import SchedulerStep, StepTap
from .call import CacheContext, ComponentCall, Offer
from .changes import ModuleChanges
from .counted import StepObserver
from .modes import FunctionModes
from .proxy import ModuleProxy, unwrap
from .view import PipelineView, total_steps

if TYPE_CHECKING:
    from .hub import Hub


class LaneCancelled(BaseException):
    """Thrown into a lane at its suspension point; no component call of the lane runs after it."""


@dataclass(slots=True)
class Outcome:
    """What work inside a lane came to: a value, or the error that it raised."""

    value: Any
    error: Exception | None = None

    def take(self) -> Any:
        """Return the value, and forget it: it is the lane's alone then, whoever else may still hold
        the outcome."""
        value, self.value = self.value, None
        return value


class Lane:
    """Runs `pipeline(**kwargs)` on a private copy of the pipeline, in a greenlet of its own.

    The hub owns the thread. `start`, `resume`, `perform` and `cancel` are the hub's; each gives the
    thread to the lane and returns when the lane gives it back. The rest is called from within.

    Attributes:
        kwargs: What the pipeline is called with; dropped once it is.
        on_stop: Told when the lane has stopped.
        pipeline: The lane's own copy of the pipeline, while it runs.
        pending: The component call that the lane waits for.
        awaits: The event of the device that the lane waits for instead.
        passed: The event that it has waited for, if it has called no component since.
        wants_exclusive: The lane waits until no other runs before it is done with a shared module.
        done: The pipeline has returned, raised or been cancelled.
        value: What the pipeline returned.
        error: What the pipeline raised.
        cancelled: The lane was cancelled.
        calls: How many component calls it has made.
        steps: How many denoising steps it has made.
        denoiser_calls: How many of its calls went to a denoiser.
        waited: How many rounds it has been held back for others.
        changes: What it does to shared modules.
        tap: Shown each denoising step.
    """

    def __init__(
        self,
        hub: "Hub",
        kwargs: dict[str, Any],
        seed: int,
        cancelled: Callable[[], bool],
        on_stop: Callable[["Lane"], None],
        adapters: Mapping[str, float],
    ) -> None:
        self.kwargs = kwargs
        self.on_stop = on_stop
        self.pending: ComponentCall | None = None
        self.awaits: Any = None
        self.passed: Any = None
        self.wants_exclusive = False
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.cancelled = False
        self.calls = 0
        self.steps = 0
        self.denoiser_calls = 0
        self.waited = 0
        self._hub = hub
        self._seed = seed
        self._asked = cancelled
        self._adapters = adapters
        self._offer: Offer | None = None
        self._offered = False
        self._visited: dict[Any, set[Any]] = {}
        self._called: set[tuple[str, str]] = set()
        self._repeated: set[tuple[str, str]] = set()
        self._steps_asked: int | None = kwargs.get("num_inference_steps")
        self._busy = False
        self._contexts: tuple[CacheContext, ...] = ()
        self._proxies: dict[int, ModuleProxy] = {}
        self._ambient: Any = None
        self.parts = hub.parts
        self._modes = FunctionModes(hub.shadow)
        self.changes = ModuleChanges(hub.thread.slots)
        self.tap: StepTap | None = None
        self.pipeline: Any = None
        self._observers: list[StepObserver] = []
        self._greenlet: Any = None

    # ------------------------------------------------------------------ the hub's side

    def start(self) -> None:
        """Run the pipeline up to its first component call (or to its end)."""
        self._ambient = self._hub.thread.open(self._seed)
        self._greenlet = greenlet.greenlet(partial(call_at_stack_end, self._main))
        self._greenlet.sidestream_lane = self
        self._greenlet.gr_context = copy_context()
        self._greenlet.switch()
        self._stopped()

    def resume(self, outcome: Outcome) -> None:
        """Answer the pending call and run up to the next one."""
        self._hub.thread.activate(self._ambient)
        self._greenlet.switch(outcome)
        self._stopped()

    def make_ready(self) -> None:
        """Give the lane its thread state already, so that `resume` takes less time."""
        self._hub.thread.activate(self._ambient)

    def perform(self, work: Callable[[], Any]) -> Outcome:
        """Run `work` inside the lane (its thread state, its context variables), still suspended."""
        self._hub.thread.activate(self._ambient)
        outcome: Outcome = self._greenlet.switch(work)
        return outcome

    def cancel(self) -> None:
        """End the lane where it stands: the pipeline unwinds, and calls no component again."""
        self.cancelled = True
        if self._greenlet is None:
            self.done = True
        elif not self.done:
            self._hub.thread.activate(self._ambient)
            self._greenlet.throw(LaneCancelled())
        self._stopped()

    def cancel_if_asked(self) -> bool:
        """End the lane if its request was cancelled; say whether it is done."""
        if not self.done and self._asked():
            self.cancel()
        return self.done

    def _stopped(self) -> None:
        if self.done:
            self.changes.undo_recasts(self)
            if self._ambient is not None:
                self._hub.thread.close(self._ambient)
        self._hub.stopped(self)
        self.on_stop(self)
        if self.done:
            self._let_go()

    def _let_go(self) -> None:
        """Break the cycles between the lane and what it made: nothing waits for the collector."""
        self.pending = self._offer = self.tap = self.passed = None
        self.on_stop = _ignore
        if self._greenlet is not None:
            self._greenlet.sidestream_lane = None
        for observer in self._observers:
            observer.scheduler = None
        self.pipeline, self._observers = None, []
        self._proxies.clear()

    def forsake(self) -> None:
        """End the lane if it is open still; nobody is told."""
        self.on_stop = _ignore
        self.cancel()

    def progress(self) -> tuple[int, int | None]:
        """Return how many denoising steps were made, and of how many (None: not known)."""
        if self._observers:
            return self.step, total_steps(self.pipeline, self._observers)
        return self.step, self._steps_asked

    @property
    def step(self) -> int:
        """How many denoising steps were made; calls of the denoiser where nothing counts steps."""
        return self.steps if self._observers else self.denoiser_calls

    @property
    def busy(self) -> bool:
        """Whether a component runs inside the lane."""
        return self._busy

    @property
    def started(self) -> bool:
        """Whether the pipeline has been called."""
        return self._greenlet is not None

    @property
    def at_denoiser(self) -> bool:
        """Whether the lane waits for a denoiser, or for what it has called in an earlier step."""
        call = self.pending
        return call is not None and (call.at_denoiser or (call.path, call.method) in self._repeated)

    @property
    def offer(self) -> Offer | None:
        """What the pending call could be merged with; None: it has to run alone."""
        if not self._offered and self.pending is not None:
            self._offer = self._hub.offer(self.pending, self._ambient)
            self._offered = True
        return self._offer

    def forget_offer(self) -> None:
        """Look again at what the pending call could be merged with: modules may have changed."""
        self._offer, self._offered = None, False

    def may_come_to(self, offer: Offer) -> bool:
        """Whether the lane may make a call like this: it has made one, or has not come that far.

        A lane that is about to call the component for the first time, with other shapes, has come
        that far: its prompt has another length.
        """
        where = offer.signature[:2]
        seen = self._visited.get(where)
        if seen is not None:
            return offer.signature in seen
        own = self.offer
        if own is None or own.signature[:2] != where:
            return True
        return own.shapes() == offer.shapes()

    # ------------------------------------------------------------------ inside the lane

    def _main(self) -> None:
        kwargs, self.kwargs = self.kwargs, {}
        self._modes.put_back()
        try:
            self._hub.adapters.select(self._adapters)
            view = PipelineView(self._hub.pipeline, self)
            self.pipeline, self._observers = view.pipeline, view.observers
            self.value = view.pipeline(**kwargs)
        except LaneCancelled:
            pass
        except Exception as error:
            if not self.cancelled:
                self.error = error
        finally:
            self._modes.put_aside()
            self.changes.settle()
            self.done = True

    def call(
        self,
        module: nn.Module,
        path: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Suspend the lane until the hub has had the component called; return what it returned."""
        if self.cancelled:
            raise LaneCancelled
        args = tuple(map(unwrap, args))
        kwargs = {name: unwrap(value) for name, value in kwargs.items()}
        call = ComponentCall(module, path, method, args, kwargs, self._contexts)
        if self._busy or greenlet.getcurrent() is not self._greenlet:
            return self._hub.executor(call)  # a component that calls back, or another thread
        outcome = self._await(call)
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:
                del outcome
        return outcome.take()

    def _await(self, call: ComponentCall) -> Outcome:
        self.pending, self.passed = call, None
        outcome = self._suspend()
        offer = self._offer
        self.pending = None
        self.forget_offer()
        self._called.add((call.path, call.method))
        self.calls += 1
        self.waited = 0
        self.denoiser_calls += call.at_denoiser
        if offer is not None:
            self._visited.setdefault(offer.signature[:2], set()).add(offer.signature)
        return outcome

    def give_way_to_device(self) -> None:
        """Suspend the lane until the device has done what the current stream holds now, if the hub
        has a use for the thread meanwhile. If not, whoever calls this has to wait still."""
        if self.busy or self.cancelled or not self._hub.lends(self):
            return
        event = self._hub.platform.record_device_event()
        if event is None:
            return
        self.awaits = event
        try:
            self._suspend()
        finally:
            self.awaits = None
        self.passed = event

    def _suspend(self) -> Outcome:
        self._modes.put_aside()
        try:
            self.changes.settle()
            hub = self._greenlet.parent
            message = hub.switch()
            while not isinstance(message, Outcome):
                message = hub.switch(self._perform(message))
            return message
        finally:
            self._modes.put_back()

    def _perform(self, work: Callable[[], Any]) -> Outcome:
        self._busy = True
        try:
            with self._modes.for_components():
                return Outcome(work())
        except Exception as error:
            return Outcome(None, error)
        finally:
            self._busy = False

    def proxy(self, module: nn.Module, path: str) -> ModuleProxy:
        """Return this lane's stand-in for a module."""
        found = self._proxies.get(id(module))
        if found is None:
            found = self._proxies[id(module)] = ModuleProxy(self, module, path)
        return found

    @contextmanager
    def cache_context(self, module: nn.Module, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Remember a component's cache context; executors enter it around each call."""
        outer = self._contexts
        self._contexts = (*outer, CacheContext(module, args, kwargs))
        try:
            yield
        finally:
            self._contexts = outer

    def on_step(self, taken: SchedulerStep) -> None:
        """Note that one of the private schedulers has made a step."""
        self.steps += 1
        if self.tap is not None:
            self.tap(*self.progress(), taken)
        self._repeated |= self._called
        self._called.clear()

    def become_exclusive(self) -> None:
        """Suspend the lane until no other may run before it gives way."""
        if self._hub.exclusive is self or self._busy:
            return
        if self.cancelled:
            raise LaneCancelled
        self.wants_exclusive = True
        self._suspend()
        self.wants_exclusive = False

    def give_way(self) -> None:
        """Let the other lanes run again."""
        self._hub.exclusive = None


def _ignore(lane: Lane) -> None:
    """Tell nobody that a lane has stopped."""
