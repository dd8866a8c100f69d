"""Tensor descriptors and host tensors."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from sidestream.ipc_ext.tensors import DTYPES, MAX_BYTES, MAX_RANK, HostTensor, TensorDescriptor


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (5,)])
def test_as_torch(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    expected = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    payload = expected.flatten().view(torch.uint8).numpy().tobytes()
    tensor = HostTensor(payload, name, shape)
    assert tensor.nbytes == len(payload) == expected.numel() * dtype.itemsize
    assert torch.equal(tensor.torch(), expected)
    assert tensor.torch().dtype == dtype
    widened = expected.float() if dtype == torch.bfloat16 else expected
    np.testing.assert_array_equal(tensor.numpy(), widened.numpy())
    assert tensor.numpy().dtype == widened.numpy().dtype
    assert tensor.numpy().shape == tensor.shape == shape


def test_bfloat16_widens_exactly() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = every.view(torch.bfloat16)
    tensor = HostTensor(every.numpy(), "bfloat16", (1 << 16,))
    np.testing.assert_array_equal(tensor.numpy(), values.float().numpy())


def test_memory_is_shared_and_copies_are_not() -> None:
    memory = bytearray(8)
    tensor = HostTensor(memory, "uint8", (8,))
    array, torch_tensor, copy = tensor.numpy(), tensor.torch(), tensor.copy()
    memory[0] = 5
    assert array[0] == torch_tensor[0] == 5
    assert copy.numpy()[0] == 0
    copy.numpy()[0] = 1
    assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)


def test_read_only_buffers_stay_read_only() -> None:
    tensor = HostTensor(bytes(8), "float32", (2,))
    assert not tensor.numpy().flags.writeable
    assert tensor.torch().tolist() == [0.0, 0.0]  # and torch does not warn
    assert repr(tensor) == "HostTensor(float32, (2,))"


@pytest.mark.parametrize(
    ("buffer", "dtype", "shape"),
    [
        (bytes(7), "float32", (2,)),
        (bytes(9), "uint8", (8,)),
        (bytes(1), "uint8", (0,)),
        (b"", "uint8", (1,)),
        (bytes(4), "float31", (1,)),
        (bytes(4), "float32", (-1,)),
        (bytes(1), "uint8", (1,) * (MAX_RANK + 1)),
    ],
)
def test_what_does_not_fit(buffer: bytes, dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"bytes for|unknown dtype|impossible shape"):
        HostTensor(buffer, dtype, shape)


@pytest.mark.parametrize(
    "message",
    [
        {"dtype": "object", "shape": [1]},
        {"dtype": "uint8", "shape": [-1]},
        {"dtype": "uint8", "shape": [1] * (MAX_RANK + 1)},
        {"dtype": "uint8", "shape": [MAX_BYTES, 2]},
        {"dtype": "float64", "shape": [1 << 62, 1 << 62, 1 << 62]},
        {"dtype": "uint8", "shape": [1.5]},
        {"dtype": "uint8", "shape": [1], "strides": [1]},
        {"dtype": "uint8"},
    ],
)
def test_hostile_descriptors(message: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=TensorDescriptor)


def test_descriptor_round_trip() -> None:
    descriptor = TensorDescriptor("bfloat16", (1, 3, 64, 64))
    assert descriptor.nbytes == 3 * 64 * 64 * 2
    encoded = msgspec.msgpack.encode(descriptor)
    assert msgspec.msgpack.decode(encoded, type=TensorDescriptor) == descriptor
