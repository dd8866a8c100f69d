"""Models that cannot be loaded or run, each in its own way."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, ClassVar

import torch

INSIDE, GO = threading.Event(), threading.Event()
"""Set by `blocks`, and what ends it, where the test and the model share a process."""


def raises() -> None:
    raise LookupError("the weights are lost")


class _Weights:
    """Take a while to be let go of, in torch's C++."""

    def __del__(self) -> None:
        matrix = torch.ones(256, 256)
        for _ in range(1000):
            matrix = matrix @ matrix


def lingers() -> None:
    weights = _Weights()
    raise LookupError(f"{type(weights).__name__} are lost")


def exits() -> None:
    print("these are its last words", file=sys.stderr, flush=True)
    os._exit(3)


def leaves() -> None:
    sys.exit("the loader gave up")


def blocks() -> None:
    INSIDE.set()
    GO.wait()
    raise LookupError("too late")


def hangs() -> None:
    print("hanging", file=sys.stderr, flush=True)
    GO.wait()


ERRORS: dict[str, tuple[type[Exception], str]] = {
    "plain": (ArithmeticError, "this does not work"),
    "poisoned": (torch.AcceleratorError, "CUDA error: an illegal memory access was encountered"),
}


class TroubledPipeline:
    """Raises what its options say, for every prompt or for one that says so."""

    components: ClassVar[dict[str, Any]] = {}

    def __init__(self, error: str, when: str = "") -> None:
        self._error = error
        self._when = when

    def __call__(self, prompt: str) -> tuple[torch.Tensor]:
        if self._when in prompt:
            if self._error == "exit":
                exits()
            if self._error == "block":
                blocks()
            if self._error == "hang":
                hangs()
            kind, message = ERRORS[self._error]
            raise kind(message)
        return (torch.zeros(1, 3, 8, 8),)
