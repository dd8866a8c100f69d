"""A pipeline that returns, or raises, what nobody expects."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch


def long_class_name() -> None:
    raise type("Wrong" * 100_000, (Exception,), {})("its name is long")


def lone_surrogate() -> None:
    raise OSError("no such file: pictures/\udc80.png")


def leaves() -> None:
    sys.exit("the pipeline gave up")


ODD: dict[str, Callable[[], Any]] = {
    "good": lambda: torch.full((1, 3, 8, 8), 0.5),
    "numbered": lambda: {1: torch.zeros(1), 2: torch.ones(1)},
    "many": lambda: {f"tensor {i}": torch.full((1,), float(i)) for i in range(1000)},
    "large beside large": lambda: {str(i): torch.full((250 << 10,), i).byte() for i in range(6)},
    "no data": lambda: {"images": torch.zeros(1, 3, 8, 8), "lost": torch.zeros(9, device="meta")},
    "long name": lambda: {"n" * 300_000: torch.zeros(1)},
    "surrogate name": lambda: {"\udc80": torch.zeros(1)},
    "surrogate error": lone_surrogate,
    "long class name": long_class_name,
    "leaves": leaves,
}


class OddPipeline:
    """Called like a diffusers pipeline; the prompt says what it does."""

    components: ClassVar[dict[str, Any]] = {}

    def __call__(self, prompt: str) -> Any:
        return ODD.get(prompt, ODD["good"])()
