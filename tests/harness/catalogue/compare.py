"""How far apart results are, and how far rounding alone moves them."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from sidestream.workers.outputs import tensors_of

Tensors = dict[str, torch.Tensor]


def plain(pipeline: Any, call: dict[str, Any], seed: int) -> Tensors:
    """Call a copy of the pipeline as its own documentation says."""
    pipeline = duplicate(pipeline)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    latent = call.get("output_type") == "latent"
    with torch.no_grad():
        return tensors_of(pipeline(**call), latent=latent)


def duplicate(pipeline: Any) -> Any:
    """Return a copy that shares nothing with a pipeline."""
    # weights under weight normalisation are computed ones, which `copy` refuses
    for module in _modules(pipeline):
        for part in module.modules():
            for name, value in vars(part).items():
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    setattr(part, name, value.detach())
    return copy.deepcopy(pipeline)


def identical(a: Tensors, b: Tensors) -> bool:
    """Whether two results are the same bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: Tensors, b: Tensors) -> float:
    """Return the largest difference, relative to the largest value."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return math.inf
    pairs = [(a[name].double(), b[name].double()) for name in a if a[name].numel()]
    return max((_distance(x, y) for x, y in pairs), default=0.0)


def precision(tensors: Tensors) -> float:
    """Return the rounding of the coarsest type among the tensors."""
    kinds = {one.dtype for one in tensors.values() if one.is_floating_point()}
    return max((torch.finfo(kind).eps for kind in kinds), default=0.0)


@contextlib.contextmanager
def rounded(pipeline: Any) -> Iterator[None]:
    """Disturb the output of every layer by one rounding."""
    noise = torch.Generator().manual_seed(0)

    def disturb(module: Any, args: Any, result: Any) -> Any:
        return _disturbed(result, noise)

    parts = {id(part): part for module in _modules(pipeline) for part in module.modules()}
    handles = [part.register_forward_hook(disturb) for part in parts.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _modules(pipeline: Any) -> Iterator[torch.nn.Module]:
    return (value for value in vars(pipeline).values() if isinstance(value, torch.nn.Module))


def _distance(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x - y).abs().max()) / max(1e-9, float(y.abs().max()))


def _disturbed(value: Any, noise: torch.Generator) -> Any:
    if isinstance(value, dict) and value:
        return type(value)(**{name: _disturbed(part, noise) for name, part in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_disturbed(part, noise) for part in value)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    signs = torch.randint(0, 2, value.shape, generator=noise) * 2 - 1
    return value * (1 + signs * torch.finfo(value.dtype).eps)
