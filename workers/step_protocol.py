"""The step protocol: what a pipeline has to offer to run its own denoising steps in step mode.

Any pipeline runs in step mode without it. One that has these four methods beside its `__call__` is
not put into lanes there; instead it is handed the requests of a step as one batch, and merges them
itself. `examples/step_protocol.py` is a complete pipeline of this kind.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import torch


@dataclass(eq=False)
class StepRequestState:
    """A request, between its calls.

    Attributes:
        kwargs: The arguments of the request, as `__call__` would get them.
        request_id: Names the request.
        step: How many denoising steps it has made.
        total: How many it will make; set by `prepare_encode`.
        batch_key: Requests with equal keys share a call of `denoise_step`; `prepare_encode` may set
            it, to the shape of the latents for example.
        data: The pipeline's own: whatever it keeps for the request from one call to the next.
        cancelled: Whether the request was cancelled; the runner asks before each call.
    """

    kwargs: dict[str, Any]
    request_id: str = ""
    step: int = 0
    total: int | None = None
    batch_key: Hashable = None
    data: Any = field(default_factory=SimpleNamespace)
    cancelled: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True)
class InputBatch:
    """The requests that make a denoising step together.

    Attributes:
        states: At least one; all have the same `batch_key`, each is at a step of its own.
    """

    states: Sequence[StepRequestState]

    def join(self, name: str) -> torch.Tensor:
        """Return the tensors that the requests keep under a name in `data`, joined by rows.

        Args:
            name: The attribute; shapes may differ in the first dimension only.
        """
        parts = [getattr(state.data, name) for state in self.states]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def split(self, joined: torch.Tensor, name: str) -> list[torch.Tensor]:
        """Return each request's rows of a tensor.

        Args:
            joined: As many rows as `join(name)` has.
            name: The attribute whose rows tell how many belong to each request.
        """
        if len(self.states) == 1:
            return [joined]
        sizes = [len(getattr(state.data, name)) for state in self.states]
        return list(torch.split(joined, sizes))


@runtime_checkable
class StepPipeline(Protocol):
    """A pipeline that runs its own steps.

    The methods are called on one thread, without gradients, those of different requests in turns;
    what belongs to a request has to be in its state. Random numbers are to be drawn from the
    request's generator. An error ends the request whose call raised it.
    """

    def prepare_encode(self, state: StepRequestState) -> None:
        """Do what comes before the first step, and set `total`; called once, first."""

    def denoise_step(self, batch: InputBatch) -> Sequence[Any]:
        """Predict the next step of several requests.

        Returns:
            One prediction for each state, in order. If it raises for several states, it is called
            again with each of them alone.
        """

    def step_scheduler(self, state: StepRequestState, prediction: Any) -> None:
        """Apply a request's prediction; the runner counts `step` up afterwards."""

    def post_decode(self, state: StepRequestState) -> Any:
        """Return what `__call__` would return; called once, last."""
