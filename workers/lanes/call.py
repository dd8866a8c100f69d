"""A component call: what a lane waits for, and what an executor runs."""

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from .structure import parts_of

Arguments = dict[Any, Any]  # by name, or by position where there is none


class NotMergeable(Exception):
    """Calls of different requests cannot share one call of the component; the text says why."""


class CacheContext(NamedTuple):
    """A `cache_context` that a pipeline has entered, to be entered around each of its calls.

    Attributes:
        module: The real component whose context it is.
        args: Its positional arguments, the context's name among them.
        kwargs: Its keyword arguments.
    """

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class ComponentCall:
    """One call of a component's method.

    Attributes:
        module: The real component, shared by all requests.
        path: Where the pipeline keeps it, such as `unet` or `prior_pipe.text_encoder`.
        method: The method's name, `__call__` for the module itself.
        args: Positional arguments.
        kwargs: Keyword arguments.
        contexts: The cache contexts around the call, the outermost first.
    """

    module: nn.Module
    path: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    contexts: tuple[CacheContext, ...] = ()

    @property
    def target(self) -> Callable[..., Any]:
        """What is to be called."""
        if self.method == "__call__":
            return self.module
        return getattr(self.module, self.method)  # type: ignore[no-any-return]

    @property
    def at_denoiser(self) -> bool:
        """Whether the component is one of those that run once or more in each denoising step."""
        return is_denoiser(self.path)

    def named_arguments(self) -> Arguments:
        """Give every argument its name, so that calls can be compared argument by argument.

        Returns:
            The arguments by name; by position, if positional ones have no names.
        """
        if not self.args:
            return dict(self.kwargs)
        function: Any = self.module.forward if self.method == "__call__" else self.target
        bound = getattr(function, "__func__", None)
        names = _names(function) if bound is None else _names(bound)[1:]
        taken = names[: len(self.args)]
        if len(taken) < len(self.args) or not self.kwargs.keys().isdisjoint(taken):
            return {**dict(enumerate(self.args)), **self.kwargs}
        return {**dict(zip(taken, self.args, strict=True)), **self.kwargs}

    def with_arguments(self, arguments: Arguments) -> "ComponentCall":
        """Return the same call with other arguments, as `named_arguments` gives them."""
        args = tuple(value for key, value in arguments.items() if isinstance(key, int))
        kwargs = {key: value for key, value in arguments.items() if isinstance(key, str)}
        return ComponentCall(self.module, self.path, self.method, args, kwargs, self.contexts)


class Offer(NamedTuple):
    """What a pending call brings to a merge.

    Attributes:
        signature: Calls with equal signatures may be merged.
        arguments: The named arguments.
        rows: The batch size.
    """

    signature: Any
    arguments: Arguments
    rows: int

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of all tensors among the arguments, without their first dimensions."""
        parts = parts_of(self.arguments)
        return [tuple(part.shape[1:]) for part in parts if isinstance(part, torch.Tensor)]


class Executor(Protocol):
    """The one place where a component really runs.

    It is called inside a lane, with that lane's thread state active. Whoever wants to run
    components differently (graph replay, remote execution) puts another executor here.
    """

    def __call__(self, call: ComponentCall) -> Any:
        """Run the call and return what the component returned."""


def execute_eagerly(call: ComponentCall) -> Any:
    """Run a call as the pipeline would have run it."""
    if not call.contexts:
        return call.target(*call.args, **call.kwargs)
    with ExitStack() as stack:
        for context in call.contexts:
            stack.enter_context(context.module.cache_context(*context.args, **context.kwargs))
        return call.target(*call.args, **call.kwargs)


@functools.lru_cache(maxsize=256)
def is_denoiser(path: str) -> bool:
    """Whether a component of this name runs once or more in each denoising step."""
    parent, _, name = path.rpartition(".")
    base = name.rstrip("0123456789_")
    if base == "decoder":  # of a cascade, not of an autoencoder
        return not parent or parent.endswith("_pipe")
    return base in ("transformer", "unet", "prior", "denoiser", "dit")


@functools.lru_cache(maxsize=512)
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that may be given by position or by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
