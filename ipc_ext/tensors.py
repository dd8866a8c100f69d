"""Tensors on the host: what describes one in a message, and one whose bytes are at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ._ring import ffi

if TYPE_CHECKING:
    import torch

MAX_RANK = 16
MAX_BYTES = 1 << 44


class DType(NamedTuple):
    """An element type.

    Attributes:
        itemsize: Bytes.
        numpy: None where numpy has no such type.
    """

    itemsize: int
    numpy: np.dtype[Any] | None


DTYPES: dict[str, DType] = {
    name: DType(np.dtype(name).itemsize, np.dtype(name))
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {"bfloat16": DType(2, None)}
"""Every element type that travels, by its name in torch."""


class TensorDescriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a message says about a contiguous tensor whose bytes travel beside it.

    Attributes:
        dtype: A key of `DTYPES`.
        shape: At most 16 dimensions.

    Raises:
        ValueError: The element type is unknown, or the shape impossible.
    """

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(sorted(DTYPES))}")
        if len(self.shape) > MAX_RANK or min(self.shape, default=0) < 0:
            raise ValueError(f"impossible shape {self.shape}")
        if (nbytes := self.nbytes) > MAX_BYTES:
            raise ValueError(f"a tensor of {nbytes} bytes")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class HostTensor:
    """A contiguous tensor in host memory, such as a payload under a lease.

    It keeps its buffer, and what it gives out keeps it too.

    Attributes:
        dtype: A key of `DTYPES`.
        shape: The dimensions.
    """

    __slots__ = ("_buffer", "_descriptor")

    def __init__(self, buffer: Any, dtype: str, shape: Sequence[int]) -> None:
        """Describe a buffer.

        Args:
            buffer: Anything with the buffer protocol, contiguous.
            dtype: A key of `DTYPES`.
            shape: The dimensions.

        Raises:
            ValueError: The buffer's size is not what dtype and shape need, or these are impossible.
        """
        self._descriptor = TensorDescriptor(dtype, tuple(shape))
        view, nbytes = memoryview(buffer), self._descriptor.nbytes
        if view.nbytes != nbytes:
            raise ValueError(f"{view.nbytes} bytes for {self}, which needs {nbytes}")
        self._buffer = view.cast("B") if nbytes else memoryview(b"")  # empty ones cannot be cast

    @property
    def dtype(self) -> str:
        return self._descriptor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._descriptor.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self._descriptor.nbytes

    @property
    def buffer(self) -> memoryview:
        """The bytes, flat."""
        return self._buffer

    def __repr__(self) -> str:
        return f"HostTensor({self.dtype}, {self.shape})"

    def numpy(self) -> npt.NDArray[Any]:
        """Return an array of the same memory, read-only where the buffer is.

        numpy has no bfloat16: such a tensor is widened to float32, exactly, in new memory.
        """
        dtype = DTYPES[self.dtype].numpy
        if dtype is not None:
            return np.frombuffer(self._buffer, dtype).reshape(self.shape)
        upper = np.frombuffer(self._buffer, np.uint16).astype(np.uint32)
        return (upper << 16).view(np.float32).reshape(self.shape)

    def torch(self) -> torch.Tensor:
        """Return a torch tensor of the same memory and element type; imports torch.

        torch has no read-only tensors: do not write to this one if the buffer is shared or constant
        (`copy` first).
        """
        import torch

        dtype = getattr(torch, self.dtype)
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=dtype)
        # By way of cffi, because torch warns at each buffer that says it is read-only.
        memory = ffi.buffer(ffi.from_buffer("char[]", self._buffer), self.nbytes)
        return torch.frombuffer(memory, dtype=dtype).reshape(self.shape)

    def copy(self) -> HostTensor:
        """Return the same tensor in memory of its own, writable, which holds no lease."""
        # By way of numpy, which lets other threads have the interpreter while it copies.
        memory = np.frombuffer(self._buffer, np.uint8).copy()
        return HostTensor(memory.data, self.dtype, self.shape)
