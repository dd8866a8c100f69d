"""What goes into the runner and what comes out: requests, outputs, events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .clean_sample import StepTap

Progress = tuple[str, int, int | None]
"""A request's id, how many steps it has made, and of how many (None: not known yet)."""


@dataclass
class RunnerRequest:
    """One call of the pipeline.

    Attributes:
        request_id: Names the request in events.
        kwargs: The pipeline's keyword arguments; the runner may keep and change them.
        cancelled: Asked before each component call; True ends the request there.
        seed: Seeds the global random generators for the request; None: the seed of the generator
            among `kwargs`, or a fresh one.
        tap: Shown each denoising step of the request's lane; must not wait for the device.
        lora: Adapters at work in the request's component calls, with their scales.
    """

    request_id: str
    kwargs: dict[str, Any]
    cancelled: Callable[[], bool] = field(default=lambda: False)
    seed: int | None = None
    tap: StepTap | None = None
    lora: Mapping[str, float] = field(default_factory=dict)


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
        waited: The event of the device that the pipeline has waited for at its end, where its
            forward was over; None: it has not waited.
    """

    request_id: str
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    error: str | None = None
    error_type: str | None = None
    aborted: bool = False
    fatal: bool = False
    waited: Any = None


class RunnerEvents(Protocol):
    """What the runner tells; called on the runner's thread, between component calls."""

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        """A request has made `step` of `total` denoising steps; None: not known yet.

        In step mode the last step only, before what follows it: a tick returns the progress of
        those that go on.
        """

    def on_done(self, output: RunnerOutput) -> None:
        """A request has ended; others may go on."""
