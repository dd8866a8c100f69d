"""How much memory this process may still take: what the machine has free, and what its container
allows."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def allowed_addresses() -> int:
    """Return bytes of addresses that this process may still take: `ulimit -v`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    used = "".join(_lines(ROOT / "proc/self/statm")).split()
    return max(0, limit - int(used[0]) * resource.getpagesize() if used else limit)


def allowed_file() -> int:
    """Return the largest size of a file that this process may make: `ulimit -f`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def available_memory(root: Path = ROOT) -> int:
    """Return bytes that can be had without pushing anything out but caches.

    Args:
      root: where `proc` and `sys` are.
    """
    kibibytes = _table(root / "proc/meminfo").get("MemAvailable:")
    free = _physical() if kibibytes is None else kibibytes * 1024
    return max(0, min([free, *_left_in_containers(root)]))


def _physical() -> int:
    """Return all memory that the machine has, for one that does not tell what is free."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_containers(root: Path) -> Iterator[int]:
    """Yield what each control group around this process leaves it (cgroup v2, else v1)."""
    for group in _groups(root, "", root / "sys/fs/cgroup"):
        limit = _number(group / "memory.max")
        if limit is not None:
            yield limit - _kept(group, _number(group / "memory.current"))
    for group in _groups(root, "memory", root / "sys/fs/cgroup/memory"):
        limit = _number(group / "memory.limit_in_bytes")
        if limit is not None:
            yield limit - _kept(group, _number(group / "memory.usage_in_bytes"))


def _groups(root: Path, controller: str, top: Path) -> Iterator[Path]:
    """Yield the control groups of a controller that this process is in, the outermost last."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = top / path.lstrip("/")
            yield from (one for one in (group, *group.parents) if one.is_relative_to(top))


def _kept(group: Path, used: int | None) -> int:
    """Return what a group uses, less the caches of files, which give way."""
    stat = _table(group / "memory.stat")
    caches = sum(stat.get(name, 0) for name in ("inactive_file", "active_file"))
    return max(0, (used or 0) - caches)


def _table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """Return what a file says, None for no file, and for "max"."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
