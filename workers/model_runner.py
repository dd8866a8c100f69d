"""The model runner: runs waves of requests on one pipeline, unmodified."""

import secrets
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from .capabilities import capabilities_of
from .lanes import Batcher, Hub, Lane, Lockstep
from .outputs import tensors_of
from .platform import Platform


@dataclass
class RunnerRequest:
    """One call of the pipeline.

    Attributes:
        request_id: Names the request in events.
        kwargs: The pipeline's keyword arguments; the runner may keep and change them.
        cancelled: Asked before each component call; True ends the request there.
        seed: Seeds the global random generators for the request; None: the seed of the generator
            among `kwargs`, or a fresh one.
    """

    request_id: str
    kwargs: dict[str, Any]
    cancelled: Callable[[], bool] = field(default=lambda: False)
    seed: int | None = None


@dataclass
class RunnerOutput:
    """How a request ended.

    Attributes:
        request_id: The request's.
        tensors: What the pipeline made, on the device: `images` (n, 3, H, W) in [0, 1], `frames`
            (n, F, C, H, W), `latents`, ...
        error: The traceback, as text.
        error_type: The class name of the exception.
        aborted: The request was cancelled before it was finished.
        fatal: The device context is lost; no further request can run.
    """

    request_id: str
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    error: str | None = None
    error_type: str | None = None
    aborted: bool = False
    fatal: bool = False


class RunnerEvents(Protocol):
    """What the runner tells; called on the runner's thread, between component calls."""

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        """A request has made `step` of `total` denoising steps; None: not known yet."""

    def on_done(self, output: RunnerOutput) -> None:
        """A request has ended; others of the wave may go on."""


class DiffusionModelRunner:
    """Runs requests on a pipeline, each in a lane of its own, merging what can be merged.

    Everything happens on the thread that calls `execute_model_batch`, always the same one.
    """

    def __init__(self, pipeline: Any, platform: Platform, *, merge: bool = True) -> None:
        """Take over a pipeline.

        Args:
            pipeline: Any object called like a diffusers pipeline.
            platform: The platform of the device that it is on.
            merge: Whether calls of different requests may share one call of a component.
        """
        self._pipeline = pipeline
        self._platform = platform
        self._hub = Hub(pipeline, platform, merge=merge)
        self._batcher = Batcher(self._hub)

    def capabilities(self) -> dict[str, Any]:
        """Describe the pipeline in plain values; see `capabilities_of`."""
        return capabilities_of(self._pipeline)

    def execute_model_batch(self, requests: Sequence[RunnerRequest], events: RunnerEvents) -> None:
        """Run a wave of requests; returns when all have ended.

        Args:
            requests: The wave. An error in one of them does not concern the others.
            events: Told about progress, and about each request as soon as it ends.
        """
        with self._hub:
            wave = _Wave(self._platform, events)
            self._hub.on_change = wave.on_change
            for request in requests:
                wave.add(request, self._open(request))
            Lockstep(self._hub, self._batcher).run(wave.lanes)
            if self._hub.poison is not None:
                wave.fail_rest(self._hub.poison)

    def statistics(self) -> dict[str, Any]:
        """Return counts of calls, merges and probes, and which calls are not merged and why."""
        refused = [
            {"component": plan.component, "method": plan.method, "reason": plan.refusal}
            for plan in self._batcher.book
            if plan.refusal is not None
        ]
        plans = sum(bool(plan.readings) for plan in self._batcher.book)
        return {**asdict(self._batcher.counts), "plans": plans, "refused": refused}

    def _open(self, request: RunnerRequest) -> Lane:
        seed = request.seed if request.seed is not None else _seed_of(request.kwargs)
        return self._hub.open(request.kwargs, seed, request.cancelled)


class _Wave:
    """The requests of one wave, and what has been told about them."""

    def __init__(self, platform: Platform, events: RunnerEvents) -> None:
        self._platform = platform
        self._events = events
        self._requests: dict[Lane, tuple[RunnerRequest, bool]] = {}
        self._told: dict[Lane, int] = {}

    @property
    def lanes(self) -> list[Lane]:
        return list(self._requests)

    def add(self, request: RunnerRequest, lane: Lane) -> None:
        """Follow a lane on behalf of a request."""
        self._requests[lane] = (request, request.kwargs.get("output_type") == "latent")

    def on_change(self, lane: Lane) -> None:
        """Tell what is new about a lane that has stopped."""
        request, latent = self._requests[lane]
        step, total = lane.progress()
        if step != self._told.get(lane, 0):
            self._told[lane] = step
            self._events.on_progress(request.request_id, step, total)
        if lane.done:
            del self._requests[lane]
            self._events.on_done(self._output(request.request_id, lane, latent=latent))

    def fail_rest(self, error: Exception) -> None:
        """End every request that is left, because the device is lost."""
        for lane, (request, _) in list(self._requests.items()):
            del self._requests[lane]
            self._events.on_done(self._failure(request.request_id, error))

    def _output(self, request_id: str, lane: Lane, *, latent: bool) -> RunnerOutput:
        if lane.cancelled:
            return RunnerOutput(request_id, aborted=True)
        error, value, lane.value = lane.error, lane.value, None
        if error is None:
            try:
                return RunnerOutput(request_id, tensors_of(value, latent=latent))
            except Exception as odd:  # what the pipeline returned is its own affair
                error = odd
        return self._failure(request_id, error)

    def _failure(self, request_id: str, error: Exception) -> RunnerOutput:
        text = "".join(traceback.format_exception(error))
        output = RunnerOutput(request_id, error=text, error_type=type(error).__name__)
        output.fatal = self._platform.is_fatal(error)
        if self._platform.is_out_of_memory(error):
            _drop_frames(error)
            self._platform.empty_cache()
        return output


def _seed_of(kwargs: dict[str, Any]) -> int:
    generator = kwargs.get("generator")
    if isinstance(generator, (list, tuple)) and generator:
        generator = generator[0]
    if isinstance(generator, torch.Generator):
        return generator.initial_seed()
    return secrets.randbits(63)


def _drop_frames(error: BaseException | None) -> None:
    """Forget the frames of an error and its causes: they hold the request's tensors."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
