"""Step mode for pipelines that implement the step protocol."""

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from .endings import Endings
from .lanes import Batcher, Hub
from .requests import Progress, RunnerEvents, RunnerOutput, RunnerRequest
from .step_protocol import InputBatch, StepPipeline, StepRequestState

T = TypeVar("T")
MOST_STEPS = 1_000_000


class ProtocolSteps:
    """The open requests of a pipeline that runs its own steps, and the ticks that advance them."""

    def __init__(
        self, pipeline: StepPipeline, hub: Hub, batcher: Batcher, endings: Endings
    ) -> None:
        self._pipeline = pipeline
        self._hub = hub
        self._counts = batcher.counts
        self._endings = endings
        self._states: dict[str, StepRequestState] = {}
        self._cancelled: dict[str, Callable[[], bool]] = {}
        self._events: RunnerEvents | None = None

    def tick(
        self, new: Sequence[RunnerRequest], scheduled: Sequence[str], events: RunnerEvents
    ) -> list[Progress]:
        """Run one tick; see `DiffusionModelRunner.execute_stepwise`."""
        self._events = events
        for request in new:
            self._take_on(request)
        with torch.no_grad():
            for state in list(self._states.values()):
                self._goes_on(state)
            self._advance(self._open(scheduled))
        if self._hub.poison is not None:
            for state in list(self._states.values()):
                self._fail(state, self._hub.poison)
        return [(self._name(state), state.step, state.total) for state in self._open(scheduled)]

    def abandon(self) -> None:
        """End all open requests without a word."""
        self._states.clear()
        self._cancelled.clear()

    def _take_on(self, request: RunnerRequest) -> None:
        name = request.request_id
        if name in self._states:
            raise ValueError(f"request {name!r} is open already")
        self._states[name] = StepRequestState(request.kwargs, name, cancelled=request.cancelled)
        self._cancelled[name] = request.cancelled

    def _is_open(self, state: StepRequestState) -> bool:
        return any(state is other for other in self._states.values())

    def _name(self, state: StepRequestState) -> str:
        """Return the name of an open request, whatever the pipeline has written into its state."""
        return next(name for name, other in self._states.items() if other is state)

    def _open(self, scheduled: Sequence[str]) -> list[StepRequestState]:
        return [self._states[name] for name in dict.fromkeys(scheduled) if name in self._states]

    # ------------------------------------------------------------------ a tick

    def _advance(self, states: Sequence[StepRequestState]) -> None:
        for state in states:
            if state.total is None:
                self._attempt(state, self._prepare)
        for batch in _batches(filter(self._is_open, states)):
            self._denoise(batch)
        for state in filter(self._is_open, states):
            if state.total is not None and state.step >= state.total:
                output = self._attempt(state, self._decode)
                if output is not None:
                    self._end(state, output)

    def _prepare(self, state: StepRequestState) -> None:
        self._pipeline.prepare_encode(state)
        if state.total is None:
            raise ValueError("prepare_encode has to set the total number of steps")
        _check(state)

    def _denoise(self, states: Sequence[StepRequestState]) -> None:
        """Make one step of requests that share a call; if the call fails, of each alone."""
        states = [state for state in states if self._goes_on(state)]
        try:
            predictions = self._predict(states) if states else []
        except Exception as error:
            self._hub.note(error)
            if len(states) == 1:
                self._fail(states[0], error)
                return
            self._fall_back(error)
        else:
            for state, prediction in zip(states, predictions, strict=True):
                self._attempt(state, partial(self._apply, prediction))
            return
        for state in states:
            self._denoise([state])

    def _predict(self, states: Sequence[StepRequestState]) -> Sequence[Any]:
        self._counts.calls += 1
        predictions = self._pipeline.denoise_step(InputBatch(states))
        if len(predictions) != len(states):
            raise ValueError(f"{len(predictions)} predictions for {len(states)} requests")
        if len(states) > 1:
            self._counts.merged_calls += 1
            self._counts.merged_lanes += len(states)
        return predictions

    def _fall_back(self, error: Exception) -> None:
        self._counts.fallbacks += 1
        if self._hub.platform.is_out_of_memory(error):
            error.__traceback__ = None  # its frames hold the joined tensors
            self._hub.platform.empty_cache()

    def _apply(self, prediction: Any, state: StepRequestState) -> None:
        self._pipeline.step_scheduler(state, prediction)
        state.step += 1
        _check(state)

    def _decode(self, state: StepRequestState) -> RunnerOutput:
        assert self._events is not None
        self._events.on_progress(self._name(state), state.step, state.total)
        result = self._pipeline.post_decode(state)
        latent = state.kwargs.get("output_type") == "latent"
        return self._endings.of_result(self._name(state), result, latent=latent)

    # ------------------------------------------------------------------ ends

    def _goes_on(self, state: StepRequestState) -> bool:
        """Whether the next call of a request is to be made; if it was cancelled, end it."""
        if not self._is_open(state) or self._hub.poison is not None:
            return False
        if self._cancelled[self._name(state)]():
            self._end(state, RunnerOutput(self._name(state), aborted=True))
            return False
        return True

    def _attempt(self, state: StepRequestState, work: Callable[[StepRequestState], T]) -> T | None:
        """Do one thing for one request; None: the request has ended, by an error or before."""
        if not self._goes_on(state):
            return None
        try:
            return work(state)
        except Exception as error:
            self._hub.note(error)
            self._fail(state, error)
            return None

    def _fail(self, state: StepRequestState, error: Exception) -> None:
        self._end(state, self._endings.of_error(self._name(state), error))

    def _end(self, state: StepRequestState, output: RunnerOutput) -> None:
        del self._states[output.request_id], self._cancelled[output.request_id]
        assert self._events is not None
        self._events.on_done(output)


def _check(state: StepRequestState) -> None:
    """Raise if a pipeline has left something in a state that others would stumble over."""
    state.step, state.total = operator.index(state.step), operator.index(state.total or 0)
    if not 0 <= state.step <= MOST_STEPS or not 0 <= state.total <= MOST_STEPS:
        raise ValueError(f"step {state.step} of {state.total}: at most {MOST_STEPS} are counted")
    hash(state.batch_key)


def _batches(states: Iterable[StepRequestState]) -> list[list[StepRequestState]]:
    """Group requests that have steps left by their batch keys."""
    batches: dict[Hashable, list[StepRequestState]] = {}
    for state in states:
        if state.total is not None and state.step < state.total:
            batches.setdefault(state.batch_key, []).append(state)
    return list(batches.values())
