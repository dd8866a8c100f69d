"""The device layer: events, side streams, host memory and errors, the same on every device.

The base class does nothing and is right wherever work is synchronous. `CudaPlatform` uses streams
and events. All methods may be called from any thread.
"""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from .device_clock import DeviceClock
from .graphs import CudaGraphs, Graphs
from .lookout import Lookout
from .numa import cpus_near
from .staging import StagedCopy

_cuda: Any = torch.cuda  # much of it is untyped

# CUDA errors that leave the context usable (driver_types.h): invalid value, memory allocation,
# invalid configuration, invalid device function, no kernel image, not supported, stream capture
# (900 to 908).
_HARMLESS_CUDA_ERRORS = frozenset((1, 2, 9, 98, 209, 801, *range(900, 909)))
_HOST_REGISTER_PORTABLE = 1


class HostMemoryError(RuntimeError):
    """The device cannot be given access to host memory."""


@dataclass(slots=True)
class Mark:
    """A point in the device's work.

    Attributes:
        host_ns: When the host issued it, ns of CLOCK_MONOTONIC.
        event: What the device does there; None where work is synchronous.
    """

    host_ns: int
    event: Any


class Platform:
    """A device on which work is synchronous.

    Attributes:
        device: The device that components run on.
        device_types: The device types whose autocast state a request may change.
    """

    device_types: tuple[str, ...] = ("cpu",)

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    # ------------------------------------------------------------------ events and streams

    def record_device_event(self) -> Any:
        """Mark the work issued so far on the current stream.

        Returns:
            An event, or None where work is finished when its call returns.
        """
        return None

    def mark(self) -> Mark:
        """Mark the work issued so far, so that `time_of` can tell when it was done."""
        return Mark(time.monotonic_ns(), self.record_device_event())

    def time_of(self, mark: Mark) -> int:
        """Return when the device passed a mark, which is past, in ns of CLOCK_MONOTONIC."""
        return mark.host_ns

    def wait_event(self, event: Any) -> None:
        """Let later work on the current stream wait for an event; the host does not wait."""

    def has_happened(self, event: Any) -> bool:
        """Whether the device has come to an event."""
        return True

    def synchronize_event(self, event: Any) -> None:
        """Wait on the host until an event has happened."""

    def wait_for_any(self, events: Sequence[Any], enough: Callable[[], bool]) -> None:
        """Wait on the host until one of several events has happened, or there is a reason to stop.

        Args:
            events: At least one.
            enough: Asked now and then; True ends the wait.
        """

    def forward_stream(self, number: int) -> AbstractContextManager[None]:
        """Issue the body's work on one of two streams that components may run on.

        Args:
            number: 0: the one that is current; 1: another one.
        """
        return nullcontext()

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Issue the body's work on a stream beside the one that components run on."""
        yield

    def synchronize(self) -> None:
        """Wait on the host for all work on the device."""

    # ------------------------------------------------------------------ memory

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a tensor's bytes into host memory, on the current stream.

        The copy is finished once an event recorded after it has happened. Until then the caller
        keeps `target`'s memory; `source` may be dropped.

        Args:
            target: uint8, one-dimensional, on the host, as long as the source has bytes.
            source: Any shape and dtype, on any device; copied in C order.

        Raises:
            ValueError: The sizes differ.
        """
        data = bytes_of(source)
        if data.numel() != target.numel():
            raise ValueError(f"a target of {target.numel()} bytes for {data.numel()} bytes of data")
        self._copy(target, data)

    def _copy(self, target: torch.Tensor, data: torch.Tensor) -> None:
        target.copy_(data)

    def writes_to(self, address: int) -> bool:
        """Whether the device copies to an address of the host by itself, while the host goes on."""
        return False

    def keep_for_stream(self, *tensors: torch.Tensor) -> None:
        """Let the current stream use tensors made on another one, even if they are dropped soon."""

    def register_host_memory(self, buffer: memoryview | int, nbytes: int | None = None) -> bool:
        """Let the device copy straight into host memory.

        Args:
            buffer: A writable buffer, or the address of the memory.
            nbytes: The size; by default that of the buffer.

        Returns:
            Whether the memory is registered now; False where a device needs no such thing.

        Raises:
            HostMemoryError: It is refused. Copies work nevertheless, only slower.
        """
        return False

    def unregister_host_memory(self, buffer: memoryview | int) -> bool:
        """Undo `register_host_memory`; say whether there was something to undo."""
        return False

    def near_cpus(self) -> frozenset[int]:
        """Return the CPUs whose memory is nearest to the device, none where that is not known."""
        return frozenset()

    def memory_info(self) -> dict[str, int]:
        """Return bytes in use and available on the device; empty where that means nothing."""
        return {}

    def empty_cache(self) -> None:
        """Give memory that the allocator caches back to the device."""

    # ------------------------------------------------------------------ recorded work

    def graphs(self) -> Graphs | None:
        """Return what records work on the device, None if nothing can."""
        return None

    def graph_budget(self) -> int:
        """Return how many bytes of the device recorded work may hold if nobody says otherwise."""
        return 0

    # ------------------------------------------------------------------ randomness and errors

    def default_generators(self) -> tuple[torch.Generator, ...]:
        """Return torch's global generators that work on this device may draw from."""
        return (torch.default_generator,)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error says that memory ran out, on the device or on the host."""
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return True
        return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)

    def is_fatal(self, error: BaseException) -> bool:
        """Whether an error says that the device is lost, so that all later work fails too."""
        if self.is_out_of_memory(error):
            return False
        if isinstance(error, torch.AcceleratorError):
            return getattr(error, "error_code", None) not in _HARMLESS_CUDA_ERRORS
        return isinstance(error, RuntimeError) and "CUDA error:" in str(error)


class CpuPlatform(Platform):
    """The host's own processor."""


class CudaPlatform(Platform):
    """One CUDA (or ROCm) device, with one side stream."""

    device_types = ("cpu", "cuda")

    def __init__(self, device: torch.device | str = "cuda") -> None:
        super().__init__(device)
        _cuda.init()
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self._side = _cuda.Stream(self.device)
        self._other = _cuda.Stream(self.device)
        self._clock = DeviceClock(self.device)
        self._waits, self._choices = Lookout(), Lookout()
        self._registered: dict[int, int] = {}
        self._staged = StagedCopy(_pinned, self.record_device_event, self.synchronize_event)

    def record_device_event(self) -> torch.cuda.Event:
        """Mark the work issued so far on the current stream."""
        event: torch.cuda.Event = _cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def time_of(self, mark: Mark) -> int:
        """Return when the device passed a mark."""
        return self._clock.time_of(mark.event)

    def wait_event(self, event: torch.cuda.Event) -> None:
        """Let later work on the current stream wait for an event; the host does not wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def has_happened(self, event: Any) -> bool:
        """Whether the device has come to an event."""
        happened: bool = event.query()
        return happened

    def synchronize_event(self, event: Any) -> None:
        """Wait on the host until an event has happened."""
        self._waits.wait(event.query)

    def wait_for_any(self, events: Sequence[Any], enough: Callable[[], bool]) -> None:
        """Wait on the host until one of several events has happened, or there is enough."""
        self._choices.wait(lambda: enough() or any(event.query() for event in events))

    def forward_stream(self, number: int) -> AbstractContextManager[None]:
        """Issue the body's work on one of two streams that components may run on."""
        other: AbstractContextManager[None] = torch.cuda.stream(self._other)
        return other if number else nullcontext()

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Issue the body's work on a stream beside the one that components run on."""
        with torch.cuda.stream(self._side):
            yield

    def synchronize(self) -> None:
        """Wait on the host for all work on the device."""
        torch.cuda.synchronize(self.device)

    def _copy(self, target: torch.Tensor, data: torch.Tensor) -> None:
        self.keep_for_stream(data)
        if self.writes_to(target.data_ptr()) or target.is_pinned():
            target.copy_(data, non_blocking=True)
        else:
            self._staged.copy(target, data)

    def writes_to(self, address: int) -> bool:
        """Whether an address lies in memory that `register_host_memory` was called for."""
        return any(start <= address < start + n for start, n in self._registered.items())

    def keep_for_stream(self, *tensors: torch.Tensor) -> None:
        """Let the current stream use tensors made on another one, even if they are dropped soon."""
        stream = torch.cuda.current_stream(self.device)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def register_host_memory(self, buffer: memoryview | int, nbytes: int | None = None) -> bool:
        """Pin host memory (about 0.4 s per GiB), so that copies into it are DMA transfers."""
        address, size = _address_of(buffer), nbytes
        if size is None:
            if isinstance(buffer, int):
                raise ValueError("an address needs a size")
            size = buffer.nbytes
        with torch.cuda.device(self.device):
            code = _cuda.cudart().cudaHostRegister(address, size, _HOST_REGISTER_PORTABLE)
        self._check_host_call(code)
        self._registered[address] = size
        return True

    def unregister_host_memory(self, buffer: memoryview | int) -> bool:
        """Unpin host memory; no copy into it may be under way."""
        address = _address_of(buffer)
        if self._registered.pop(address, None) is None:
            return False
        self._check_host_call(_cuda.cudart().cudaHostUnregister(address))
        return True

    def _check_host_call(self, code: Any) -> None:
        """Raise for an error code, which CUDA also keeps for whoever looks next: a kernel's launch,
        that would seem to have failed."""
        if int(code) == 0:
            return
        with suppress(RuntimeError):
            torch.ones(1, device=self.device)
        raise HostMemoryError(f"{_cuda.cudart().cudaGetErrorString(code)} (CUDA error {int(code)})")

    def near_cpus(self) -> frozenset[int]:
        """Return the CPUs of the device's NUMA node."""
        known = torch.cuda.get_device_properties(self.device)
        domain, bus, slot = (
            getattr(known, f"pci_{name}_id", None) for name in ("domain", "bus", "device")
        )
        if bus is None or slot is None:
            return frozenset()
        return cpus_near(f"{domain or 0:04x}:{bus:02x}:{slot:02x}.0")

    def memory_info(self) -> dict[str, int]:
        """Return bytes free and total on the device, allocated and reserved by this process."""
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "free": free,
            "total": total,
            "allocated": torch.cuda.memory_allocated(self.device),
            "reserved": torch.cuda.memory_reserved(self.device),
        }

    def empty_cache(self) -> None:
        """Give memory that the allocator caches back to the device."""
        torch.cuda.empty_cache()

    def graphs(self) -> Graphs:
        """Return what records work as CUDA graphs."""
        return CudaGraphs(self.device)

    def graph_budget(self) -> int:
        """Return a fifth of the device's memory."""
        return torch.cuda.mem_get_info(self.device)[1] // 5

    def default_generators(self) -> tuple[torch.Generator, ...]:
        """Return the global generators of the host and of this device."""
        return (torch.default_generator, torch.cuda.default_generators[self.device.index])


def platform_for(device: str) -> Platform:
    """Return the platform for a device.

    Args:
        device: As torch names devices, such as `cpu`, `cuda` or `cuda:1`.

    Raises:
        ValueError: The device is unknown, or this machine does not have it.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}") from error
    if kind == "cpu":
        return CpuPlatform(device)
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {device!r} is not available: no CUDA device was found")
        return CudaPlatform(device)
    raise ValueError(f"device {device!r} is not supported; supported are cpu and cuda")


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's elements, in C order, as bytes."""
    if tensor.dtype is torch.uint8 and tensor.ndim == 1 and tensor.is_contiguous():
        return tensor
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def _pinned(nbytes: int) -> torch.Tensor:
    """Make a buffer that the device can reach; if even that is refused, copies into it are slow."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return torch.empty(nbytes, dtype=torch.uint8)


def _address_of(buffer: memoryview | int) -> int:
    if isinstance(buffer, int):
        return buffer
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
