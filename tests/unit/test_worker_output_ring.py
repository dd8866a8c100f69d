"""The worker's side of the output ring: registered, or not and copied into another way, and near
the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sidestream.ipc_ext import Segment, SegmentLayout
from sidestream.workers.numa import cpus_near, on_cpus
from sidestream.workers.output_ring import OutputRing
from sidestream.workers.platform import CpuPlatform, HostMemoryError
from sidestream.workers.ring_writer import RingWriter
from sidestream.workers.staging import PIECE_BYTES, StagedCopy

MEBIBYTE = 1 << 20


class Registering(CpuPlatform):
    """Keeps what is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: dict[int, int] = {}

    def register_host_memory(self, buffer: memoryview | int, nbytes: int | None = None) -> bool:
        assert isinstance(buffer, int)
        assert nbytes is not None
        self.registered[buffer] = nbytes
        return True

    def unregister_host_memory(self, buffer: memoryview | int) -> bool:
        assert isinstance(buffer, int)
        del self.registered[buffer]
        return True


class Refusing(CpuPlatform):
    """A device that is refused access to host memory. What it copies into a buffer is there at the
    earliest possible time, or at the latest: when somebody has waited for it."""

    def __init__(self, *, late: bool = False) -> None:
        super().__init__()
        self.waits = 0
        self._late = late
        self._issued: list[Callable[[], object]] = []
        self._done = 0
        self._staged = StagedCopy(self._allocate, self._record, self._wait)

    def register_host_memory(self, buffer: memoryview | int, nbytes: int | None = None) -> bool:
        raise HostMemoryError("operation not permitted (CUDA error 800)")

    def _copy(self, target: torch.Tensor, data: torch.Tensor) -> None:
        self._staged.copy(target, data)

    def _allocate(self, nbytes: int) -> torch.Tensor:
        return _Buffer.of(torch.zeros(nbytes, dtype=torch.uint8), self._issue)

    def _issue(self, copy: Callable[[], object]) -> None:
        self._issued.append(copy)
        if not self._late:
            self._wait_for(len(self._issued))

    def _record(self) -> int:
        return len(self._issued)

    def _wait(self, event: int) -> None:
        self.waits += 1
        self._wait_for(event)

    def _wait_for(self, event: int) -> None:
        for copy in self._issued[self._done : event]:
            copy()
        self._done = max(self._done, event)


class _Buffer(torch.Tensor):
    """Memory that a device copies into in its own time."""

    issue: Callable[[Callable[[], object]], None]

    @classmethod
    def of(cls, plain: torch.Tensor, issue: Callable[[Callable[[], object]], None]) -> _Buffer:
        made = plain.as_subclass(cls)
        made.issue = issue
        return made

    def __getitem__(self, index: Any) -> _Buffer:
        return _Buffer.of(self.as_subclass(torch.Tensor)[index], self.issue)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Any:
        assert non_blocking
        self.issue(partial(self.as_subclass(torch.Tensor).copy_, source))
        return self


@pytest.fixture
def pair() -> Iterator[tuple[Segment, Segment]]:
    layout = SegmentLayout(output_bytes=256 * MEBIBYTE)
    with (
        Segment.create(layout, outputs=False) as engine,
        Segment.attach(os.dup(engine.fd), os.dup(engine.doorbell)) as worker,
    ):
        yield engine, worker


def test_the_whole_ring_is_registered_again_when_it_grows(pair: tuple[Segment, Segment]) -> None:
    _, worker = pair
    platform = Registering()
    ring = OutputRing(worker, platform)
    for size in (4 * MEBIBYTE, 64 * MEBIBYTE):
        ring.open(size)
        assert platform.registered == {worker.outputs.address: size}
    told = ring.statistics()
    assert told["output_ring_registered"]
    assert told["output_ring_refusal"] is None
    assert told["output_ring_bytes"] == 64 * MEBIBYTE
    assert told["output_ring_prefault_s"] > 0
    ring.close()
    ring.close()
    assert platform.registered == {}
    assert not ring.statistics()["output_ring_registered"]


def test_a_platform_that_needs_no_registration_has_no_refusal(
    pair: tuple[Segment, Segment], caplog: pytest.LogCaptureFixture
) -> None:
    ring = OutputRing(pair[1], CpuPlatform())
    ring.open(MEBIBYTE)
    told = ring.statistics()
    assert (told["output_ring_registered"], told["output_ring_refusal"]) == (False, None)
    assert not caplog.records


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 77])
def test_without_registration_every_byte_is_right(
    pair: tuple[Segment, Segment], size: int, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine, worker = pair
    platform = Refusing(late=late)
    ring = OutputRing(worker, platform)
    ring.open(128 * MEBIBYTE)
    engine.open_outputs(128 * MEBIBYTE)
    told = ring.statistics()
    assert not told["output_ring_registered"]
    assert told["output_ring_refusal"] == "operation not permitted (CUDA error 800)"
    assert "cannot be registered with cpu: operation not permitted" in caplog.text
    data = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(size))
    data = data.to(torch.uint8)
    (piece,) = RingWriter(worker.outputs, platform).write({"images": data}, lambda _: None)
    lease = engine.outputs.lease(piece.handle)
    assert bytes(lease) == data.numpy().tobytes()
    assert platform.waits == -(-size // PIECE_BYTES)
    ring.close()


def test_memory_that_is_not_there_is_told_by_the_setting(
    pair: tuple[Segment, Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryError, match=r"output_ring_bytes: 1048576 bytes .* No space left"):
        OutputRing(pair[1], CpuPlatform()).open(MEBIBYTE)


# -- where the device is


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    node = tmp_path / "devices/system/node/node1"
    for folder in (device, node):
        folder.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (node / "cpulist").write_text("0-2,8,10-11\n")
    return tmp_path


def test_the_cpus_near_a_device(sysfs: Path) -> None:
    assert cpus_near("0000:3B:00.0", sysfs) == {0, 1, 2, 8, 10, 11}
    assert cpus_near("0000:3c:00.0", sysfs) == frozenset()


@pytest.mark.parametrize("node", ["-1", "7", "", "none"])
def test_an_unknown_node_is_no_failure(sysfs: Path, node: str) -> None:
    (sysfs / "bus/pci/devices/0000:3b:00.0/numa_node").write_text(node)
    assert cpus_near("0000:3b:00.0", sysfs) == frozenset()


def test_a_thread_runs_near_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with on_cpus(one) as near:
        assert near
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [frozenset(), {1 << 14}])
def test_a_thread_that_may_not_run_there_stays(cpus: frozenset[int]) -> None:
    before = os.sched_getaffinity(0)
    with on_cpus(cpus) as near:
        assert not near
        assert os.sched_getaffinity(0) == before


def test_pages_are_made_while_the_thread_is_near(
    pair: tuple[Segment, Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[set[int]] = []
    allocate = os.posix_fallocate

    def watched(fd: int, offset: int, nbytes: int) -> None:
        where.append(os.sched_getaffinity(0))
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", watched)
    platform = CpuPlatform()
    one = frozenset({min(os.sched_getaffinity(0))})
    monkeypatch.setattr(platform, "near_cpus", lambda: one)
    ring = OutputRing(pair[1], platform)
    ring.open(MEBIBYTE)
    assert where == [one]
    assert ring.statistics()["output_ring_near_device"]
