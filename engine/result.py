"""What a caller gets: `DiffusionResult`, and the events of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .trace import RequestTrace


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """How long the phases of a request took, seconds; each begins where the one before it ended."""

    queued: float
    """From submission until the forward began on the device."""
    forward: float
    """The forward, on the device."""
    output: float
    """From the end of the forward until the output was in the engine's hands."""
    postprocess: float
    """Conversion and encoding."""
    total: float
    """From submission to the result."""
    trace: RequestTrace
    """The time stamps that these come from."""

    @classmethod
    def of(cls, trace: RequestTrace, total: float) -> RequestTimings:
        """Make them of the time stamps of a request whose result is there."""
        now = trace.postprocess_end
        return cls(
            queued=max(0.0, total - (now - trace.forward_start) / 1e9),
            forward=(trace.forward_end - trace.forward_start) / 1e9,
            output=(trace.arrived - trace.forward_end) / 1e9,
            postprocess=(now - trace.postprocess_start) / 1e9,
            total=total,
            trace=trace,
        )


@dataclass(frozen=True, slots=True)
class DiffusionResult:
    """The outputs of a request."""

    request_id: str
    outputs: list[Any]
    """One entry for each output that was asked for; its type follows
    `SamplingParams.output_type`."""
    seed: int
    """Seed of the first output; output `i` has ``seed + i``."""
    timings: RequestTimings

    @property
    def output(self) -> Any:
        """The first output."""
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of what `DiffusionEngine.stream` tells."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The request was admitted; `position` others wait ahead of it."""

    position: int


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The request was handed to a worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """A denoising step was taken. The latest one wins: a slow reader sees fewer of them."""

    step: int
    """Steps taken."""
    total: int | None
    """Steps to take, None where the pipeline does not tell."""
    eta: float | None = field(default=None, compare=False)
    """Seconds until the last step, at the pace since the first; None before there is a pace."""


@dataclass(frozen=True, slots=True)
class Preview(Event):
    """What the output may become, as far as can be told after a step. The latest one wins."""

    image: Any
    """As `SamplingParams.output_type` says, at most 512 pixels wide and high; a uint8 array
    (height, width, 3) for types that are no pictures."""
    step: int
    """Steps taken when it was made."""


@dataclass(frozen=True, slots=True)
class Chunk(Event):
    """A finished part of the output, from pipelines that finish it in parts; none is left out."""

    index: int
    """Counts from 0."""
    outputs: list[Any]
    """The part of each output, as an entry of `DiffusionResult.outputs`."""

    @property
    def output(self) -> Any:
        """The part of the first output."""
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """The request ended well; the last event."""

    result: DiffusionResult
