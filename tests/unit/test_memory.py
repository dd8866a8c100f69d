"""How much memory can be had, read from files as Linux has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidestream.engine.memory import available_memory

GIBIBYTE = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 16 GiB available."""
    write(tmp_path / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable:  {16 << 20} kB\n")
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(text))


def test_this_machine_has_some() -> None:
    assert available_memory() > 1 << 20


def test_without_containers_it_is_the_machine_s(root: Path) -> None:
    assert available_memory(root) == 16 * GIBIBYTE
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/memory.max", "max\n")
    assert available_memory(root) == 16 * GIBIBYTE


def test_an_outer_group_may_leave_less_than_an_inner_one(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/pod/box\n")
    write(root / "sys/fs/cgroup/pod/box/memory.max", 12 * GIBIBYTE)
    write(root / "sys/fs/cgroup/pod/box/memory.current", GIBIBYTE)
    assert available_memory(root) == 11 * GIBIBYTE
    write(root / "sys/fs/cgroup/pod/memory.max", 8 * GIBIBYTE)
    write(root / "sys/fs/cgroup/pod/memory.current", 5 * GIBIBYTE)
    assert available_memory(root) == 3 * GIBIBYTE
    # Caches of files give way; shared memory, which counts as file memory too, does not.
    stat = f"file {4 * GIBIBYTE}\ninactive_file {GIBIBYTE}\nactive_file {GIBIBYTE}\n"
    write(root / "sys/fs/cgroup/pod/memory.stat", stat)
    assert available_memory(root) == 5 * GIBIBYTE
    write(root / "sys/fs/cgroup/pod/memory.current", 20 * GIBIBYTE)
    assert available_memory(root) == 0


def test_the_first_version_of_groups(root: Path) -> None:
    write(root / "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n")
    write(root / "sys/fs/cgroup/memory/x/memory.limit_in_bytes", 2 * GIBIBYTE)
    write(root / "sys/fs/cgroup/memory/x/memory.usage_in_bytes", GIBIBYTE)
    assert available_memory(root) == GIBIBYTE


def test_a_machine_that_does_not_tell_what_is_free_has_all_of_it(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
