"""An entry of the catalogue: a pipeline class, its components, the arguments of a request."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import diffusers
import torch
from torch import nn

from .arguments import generator

STEPS = {"num_inference_steps"}


@dataclass(frozen=True)
class Entry:
    """One pipeline class.

    Attributes:
        name: The class's name in diffusers.
        parts: What its constructor takes; functions are called, and those that it does not take
            are passed over, so that one table serves many classes.
        arguments: What it is called with; functions are called with the number of the request.
    """

    name: str
    parts: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @property
    def kind(self) -> type:
        """The pipeline class."""
        kind: type = getattr(diffusers, self.name)
        # Some pipelines clean prompts with this library and do not ask whether it is installed.
        vars(sys.modules[kind.__module__]).setdefault("ftfy", SimpleNamespace(fix_text=str))
        return kind

    def build(self) -> Any:
        """Make the pipeline, the same weights each time."""
        wanted = inspect.signature(self.kind).parameters
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            parts = {n: _made(part) for n, part in self.parts.items() if n in wanted}
            for part in parts.values():
                _enliven(part)
            pipeline = self.kind(**parts)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def call(self, index: int, further_steps: int = 0) -> dict[str, Any]:
        """Return the arguments of the index-th request, fresh objects.

        Args:
            index: The number of the request.
            further_steps: How many more steps it makes than usual, where that can be said.
        """
        accepted = inspect.signature(self.kind.__call__).parameters
        usual = {"generator": generator, "output_type": "pt"}
        usual = {name: value for name, value in usual.items() if name in accepted}
        arguments = {**usual, **self.arguments}
        call = {n: v(index) if callable(v) else v for n, v in arguments.items()}
        for name in call.keys() & STEPS:
            call[name] += further_steps
        return call


def entry(name: str, parts: Mapping[str, Any], **arguments: Any) -> Entry:
    """Write an entry in one line."""
    return Entry(name, parts, arguments)


def _made(part: Any) -> Any:
    if isinstance(part, (FunctionType, partial, type)):
        part = part()
    if isinstance(part, nn.Module):
        part.eval()
    return part


def _enliven(part: Any) -> None:
    """Give weights that start as zero, or as nothing, a value: a shut gate proves nothing."""
    if isinstance(part, (list, tuple)):
        for each in part:
            _enliven(each)
    if not isinstance(part, nn.Module):
        return
    with torch.no_grad():
        for parameter in part.parameters():
            if not parameter.numel():
                continue
            usable = parameter.isfinite().all() and parameter.abs().max() < 100
            if not usable or not parameter.any():
                parameter.normal_(0, 0.05)
