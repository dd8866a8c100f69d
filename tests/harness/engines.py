"""Engines and requests that several tests use."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sidestream.engine import DiffusionResult, EngineConfig, Event, RequestStream, RequestTrace

MEBIBYTE = 1 << 20
LONG = 10_000
"""Steps of a request that is still running whenever a test looks at it."""


def synthetic(
    executor: str | type, *, options: dict[str, Any] | None = None, **settings: Any
) -> EngineConfig:
    """Configure an engine of the synthetic model: one step of a millisecond, 3x64x64 floats."""
    return EngineConfig(
        **{
            "model": "synthetic",
            "model_options": {"forward_ms": 1, "steps": 1} | (options or {}),
            "executor": executor,
            "device": "cpu",
            "output_ring_bytes": 4 * MEBIBYTE,
            "input_ring_bytes": MEBIBYTE,
            "startup_timeout": 180.0,
            **settings,
        }
    )


def painting(executor: str | type, **settings: Any) -> EngineConfig:
    """Configure an engine like `synthetic`, whose outputs are pictures; see `offer_pipelines`."""
    return dataclasses.replace(synthetic(executor, **settings), model="painters:painter")


def filming(executor: str | type, **settings: Any) -> EngineConfig:
    """Configure an engine like `synthetic`, whose outputs are videos; see `offer_pipelines`."""
    return dataclasses.replace(synthetic(executor, **settings), model="movies:filmer")


def offer_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let import paths lead into `pipelines`, in this process and in workers."""
    folder = str(Path(__file__).with_name("pipelines"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)


def moments_of(trace: RequestTrace) -> list[int]:
    """Return the time stamps of a request that came to its end, in the order of its phases."""
    phases = "submitted dispatched forward_start forward_end copy_start copy_end arrived"
    return [getattr(trace, name) for name in f"{phases} postprocess_start postprocess_end".split()]


def values_of(result: DiffusionResult, index: int = 0) -> list[float]:
    """Return the different elements of a raw output."""
    return np.unique(result.outputs[index].numpy()).tolist()  # type: ignore[no-any-return]


async def until(events: RequestStream, kind: type[Event]) -> Event:
    """Read a request's events up to the first of a kind."""
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the request ended without {kind.__name__}")
