"""Where in the machine a device is, and how to be near it.

New pages come from the memory of the processor that first touches them, so a thread that runs there
for a while makes memory there. Nothing here fails: who cannot know or choose stays where it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SYS = Path("/sys")


def cpus_near(pci_address: str, sys: Path = SYS) -> frozenset[int]:
    """Return the CPUs of the NUMA node of a device, none if it is not known.

    Args:
      pci_address: such as ``0000:3b:00.0``.
      sys: where sysfs is.
    """
    node = _text(sys / "bus/pci/devices" / pci_address.lower() / "numa_node")
    if not node.isdigit():  # -1: unknown, or there is one node only
        return frozenset()
    return frozenset(_listed(_text(sys / f"devices/system/node/node{node}/cpulist")))


@contextmanager
def on_cpus(cpus: Collection[int]) -> Iterator[bool]:
    """Run the body's thread on some CPUs.

    Yields:
      Whether it runs there; not if there are none, or none that it may use.
    """
    before = os.sched_getaffinity(0)  # of this thread
    wanted = before.intersection(cpus)
    try:
        if wanted:
            os.sched_setaffinity(0, wanted)
    except OSError:
        wanted = set()
    try:
        yield bool(wanted)
    finally:
        if wanted:
            with suppress(OSError):  # they may have been taken from us meanwhile
                os.sched_setaffinity(0, before)


def _listed(text: str) -> Iterator[int]:
    """Read a list like ``0-3,8,10-11``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
