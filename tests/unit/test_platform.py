"""The device layer on the CPU, and how errors are told apart."""

import pytest
import torch

from sidestream.workers.platform import CpuPlatform, Platform, bytes_of, platform_for


def test_the_cpu_platform_does_everything_at_once():
    platform = platform_for("cpu")
    assert isinstance(platform, CpuPlatform)
    assert platform.record_device_event() is None
    with platform.side_stream():
        platform.wait_event(None)
        platform.synchronize_event(None)
    platform.synchronize()
    platform.keep_for_stream(torch.zeros(1))
    platform.empty_cache()
    assert platform.memory_info() == {}
    assert platform.default_generators() == (torch.default_generator,)
    buffer = memoryview(bytearray(16))
    assert not platform.register_host_memory(buffer)
    assert not platform.unregister_host_memory(buffer)
    mark = platform.mark()
    assert platform.time_of(mark) == mark.host_ns


@pytest.mark.parametrize(
    "source",
    [
        torch.randn(2, 3, 4),
        torch.randn(4, 6).t(),
        torch.arange(10, dtype=torch.int64)[::2],
        torch.randn(3).bfloat16(),
        torch.tensor([True, False]),
        torch.tensor(1.5),
        torch.zeros(0, 3),
    ],
    ids=lambda source: f"{source.dtype} {tuple(source.shape)}",
)
def test_copies_hold_the_bytes_in_c_order(source):
    memory = bytearray(source.numel() * source.element_size() + 1)
    target = torch.frombuffer(memory, dtype=torch.uint8)[:-1]
    CpuPlatform().copy_to_host(target, source)
    expected = source.contiguous().reshape(-1).view(torch.uint8)
    assert torch.equal(target, expected)
    assert torch.equal(bytes_of(source), expected)


def test_a_target_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match="8 bytes"):
        CpuPlatform().copy_to_host(torch.zeros(4, dtype=torch.uint8), torch.zeros(2))


@pytest.mark.parametrize(
    ("error", "fatal", "memory"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True, False),
        (RuntimeError("shape mismatch"), False, False),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory."), False, True),
        (MemoryError(), False, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False, True),
        (ValueError("CUDA error: not from torch"), False, False),
    ],
)
def test_errors_are_told_apart(error, fatal, memory):
    platform = Platform()
    assert platform.is_fatal(error) is fatal
    assert platform.is_out_of_memory(error) is memory


def test_cuda_errors_that_leave_the_context_usable_are_not_fatal():
    error = torch.AcceleratorError("CUDA error: invalid configuration argument")
    error.error_code = 9
    assert not Platform().is_fatal(error)
    error.error_code = 700
    assert Platform().is_fatal(error)


@pytest.mark.parametrize("device", ["nonsense", "meta", "cpu:x"])
def test_unknown_devices_are_refused(device):
    with pytest.raises(ValueError, match="device"):
        platform_for(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_refused():
    with pytest.raises(ValueError, match="not available"):
        platform_for("cuda")
