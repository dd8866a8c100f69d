"""What a process holds besides Python objects, so that a test can say "and nothing is left"."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import trio

from sidestream.engine import DiffusionEngine

_IDLE_THREAD = re.compile(r"Trio thread \d+")
"""Trio keeps threads for a while after their work, under this name."""
_SEGMENT = "memfd:sidestream"

PATIENCE = 90.0
"""Seconds after which something that must end is called hung."""


@dataclass(frozen=True)
class Surroundings:
    """Threads at work, child processes, open files and mapped segments of this process."""

    threads: Counter[str]
    processes: Counter[int]
    files: Counter[str]
    segments: Counter[str]

    def beyond(self, before: Surroundings) -> dict[str, Counter[Any]]:
        """Return what is held here and was not held then, by kind; empty if there is nothing."""
        held, had = vars(self), vars(before)
        return {kind: more for kind in held if (more := held[kind] - had[kind])}


def survey() -> Surroundings:
    """Look at what this process holds now."""
    threads = (thread.name for thread in threading.enumerate())
    return Surroundings(
        threads=Counter(name for name in threads if not _IDLE_THREAD.fullmatch(name)),
        processes=Counter(child.pid for child in psutil.Process().children(recursive=True)),
        files=Counter(_open_files()),
        segments=Counter(
            line.split()[4] for line in _lines_of("/proc/self/maps") if _SEGMENT in line
        ),
    )


def _open_files() -> list[str]:
    """Return the kinds of the open descriptors: their numbers and inodes are given anew."""
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of this very listing
            continue
        kinds.append(re.sub(r":\[\d+\]$", "", target))
    return kinds


def _lines_of(path: str) -> list[str]:
    with open(path) as file:
        return file.read().splitlines()


@asynccontextmanager
async def nothing_left(*, at_once: bool = True) -> AsyncIterator[None]:
    """Check that the block leaves nothing that it did not find.

    What it found may be gone afterwards: a thread of an earlier test that nobody could wait for.

    Args:
      at_once: else what is left may still be on its way out: a worker thread that nobody could
        wait for ends at its next look at the rings.
    """
    gc.collect()  # a traceback may hold a frame that holds an array that holds a segment
    before = survey()
    yield
    gc.collect()
    if not at_once:
        await settled(lambda: not survey().beyond(before))
    assert_nothing_beyond(before)


def assert_nothing_beyond(before: Surroundings) -> None:
    """Check that this process holds nothing now that it did not hold before."""
    left = survey().beyond(before)
    assert not left, f"left behind: {left}"


async def assert_idle(engine: DiffusionEngine, patience: float = PATIENCE) -> None:
    """Check that the engine holds nothing for anybody, once nobody wants anything."""
    with trio.fail_after(patience):
        await engine.wait_idle()
    if holdings(engine).keys() <= {"ring_bytes_used", "ring_bytes_held"}:
        # A thread has its tensors in hand for some microseconds after its result was delivered.
        await settled(lambda: not holdings(engine), patience)
    left = holdings(engine)
    assert not left, f"the engine still holds {left}"


def holdings(engine: DiffusionEngine) -> dict[str, object]:
    """Return what the engine holds for requests, by the name in its statistics; empty when idle."""
    statistics = asdict(engine.statistics())
    names = (
        "waiting preempted running aborting pending_outputs claims waves cancel_slots_used"
        " ring_bytes_used ring_bytes_held"
    )
    return {name: statistics[name] for name in names.split() if statistics[name]}


async def settled(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Give other threads the time to make something true that nobody tells of."""
    with trio.move_on_after(patience):
        while not condition():
            await trio.lowlevel.checkpoint()
