"""How far apart two results are, and how to make an argument different."""

import math
from typing import Any

import torch

from .structure import parts_of

ALIKE = 0.05  # two arguments whose relative distance is less do not tell requests apart


def distance(a: Any, b: Any) -> float:
    """Return the largest relative distance between the tensors of two values.

    Floating-point tensors: the L2 norm of the difference over the L2 norm of `b`. Integers and
    other
    values: 0 if equal. Infinite if the structures, shapes or dtypes differ, or if NaN appears.

    Args:
        a: A tensor, number, or nested dicts, lists and tuples of them.
        b: The value to compare with.
    """
    ours, theirs = list(parts_of(a)), list(parts_of(b))
    if len(ours) != len(theirs):
        return math.inf
    return max(map(_distance, ours, theirs), default=0.0)


def rounding_of(value: Any) -> tuple[float, float]:
    """Return the least and the most relative distance that rounding alone may cause.

    Args:
        value: What a component returned; the coarsest dtype in it counts.
    """
    kinds = {part.dtype for part in parts_of(value) if isinstance(part, torch.Tensor)}
    coarsest = max((torch.finfo(kind).eps for kind in kinds if kind.is_floating_point), default=0.0)
    return (max(coarsest, 1e-5), 3e-2 if coarsest > 1e-6 else 1e-3)


def disturb(value: Any) -> Any:
    """Move the elements of a floating-point tensor by one rounding, every second one upwards.

    Args:
        value: A tensor; anything else is returned as it is.
    """
    if not (isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()):
        return value
    signs = torch.arange(value.numel(), device=value.device).reshape(value.shape) % 2 * 2 - 1
    return value + (value * signs * _unit(value)).to(value.dtype)


def _unit(value: torch.Tensor) -> float:
    """Return the relative rounding of computations: that of tensor cores where there may be any."""
    eps = torch.finfo(value.dtype).eps
    return eps if value.device.type == "cpu" else max(eps, 2.0**-11)


def vary(value: Any) -> Any:
    """Return something of the same kind that is materially different, and in the same range.

    Integers may be indices, and one that is out of range ends a GPU's process. So they stay
    between those that are there; where all are zero, nothing is varied.

    Args:
        value: A tensor of any shape and dtype, or a number.
    """
    if not isinstance(value, torch.Tensor):
        return type(value)(value / 2) if value else type(value)(1)
    if value.dtype == torch.bool:
        rolled = value.roll(1, -1) if value.ndim else value
        return rolled if not torch.equal(rolled, value) else _flipped(value)
    if not value.is_floating_point() and not (value > 0).any():
        return value
    if value.ndim <= 1:
        return torch.where(value == 0, torch.ones_like(value), _half(value))
    changed = (value.roll(1, -1), _nudged(value), -value)
    return next((one for one in changed[:2] if distance(one, value) >= ALIKE), changed[-1])


def _half(value: torch.Tensor) -> torch.Tensor:
    return value / 2 if value.is_floating_point() else value // 2


def _flipped(value: torch.Tensor) -> torch.Tensor:
    """Change the last element of each row."""
    flipped = value.clone()
    (flipped[..., -1:] if flipped.ndim else flipped).logical_not_()
    return flipped


def _nudged(value: torch.Tensor) -> torch.Tensor:
    """Change the last element of each row: 1 becomes 0 (masks), 0 becomes -1 (biases) or 1."""
    nudged = value.clone()
    last = nudged[..., -1:]
    if value.is_floating_point():
        last.sub_(1)
    else:
        last.copy_(torch.where(last > 0, last - 1, last + 1))
    return nudged


def _distance(a: Any, b: Any) -> float:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return _number_distance(a, b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if not (b.is_floating_point() or b.is_complex()):
        return 0.0 if torch.equal(a, b) else math.inf
    wide = torch.complex64 if b.is_complex() else torch.float32
    x, y = a.to(wide), b.to(wide)
    difference = float(torch.linalg.vector_norm(x - y))
    scale = float(torch.linalg.vector_norm(y))
    if math.isnan(difference) or math.isnan(scale):
        return math.inf
    return difference / scale if scale else (math.inf if difference else 0.0)


def _number_distance(a: Any, b: Any) -> float:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) / abs(b) if b else float(a != b)
    return 0.0 if type(a) is type(b) and (a is b or a == b) else math.inf
