"""Arrays that requests bring: gathered from the input ring, handed out as what the pipeline is to
receive."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from ..ipc_ext import PayloadRing
from ..ipc_ext.messages import InputPart
from ..ipc_ext.tensors import DTYPES, HostTensor


class InputStore:
    """The arrays of requests that have been sent and not been run."""

    def __init__(self, ring: PayloadRing, device: str) -> None:
        self._ring = ring
        self._device = device
        self._memory: dict[int, dict[str, tuple[InputPart, bytearray]]] = {}

    def take(self, part: InputPart) -> None:
        """Copy a piece out of the ring and give its room back at once."""
        piece = part.piece
        arrays = self._memory.setdefault(part.async_output_id, {})
        if piece.name not in arrays:
            arrays[piece.name] = (part, bytearray(piece.descriptor.nbytes))
        end = piece.at + piece.handle.nbytes
        arrays[piece.name][1][piece.at : end] = self._ring.view(piece.handle)
        self._ring.release(piece.handle)

    def claim(self, async_output_id: int) -> dict[str, Any]:
        """Hand a request's arrays out, by argument; items of a list are put back into one."""
        arguments: dict[str, Any] = {}
        for name, (part, memory) in self._memory.pop(async_output_id, {}).items():
            argument, _, index = name.partition(".")
            value = self._build(part, memory)
            if index:
                arguments.setdefault(argument, []).append(value)
            else:
                arguments[argument] = value
        return arguments

    def _build(self, part: InputPart, memory: bytearray) -> Any:
        descriptor = part.piece.descriptor
        if part.form == "torch":
            tensor = HostTensor(memory, descriptor.dtype, descriptor.shape).torch()
            return tensor.to(torch.device(self._device))
        numpy_dtype = DTYPES[descriptor.dtype].numpy
        array = np.frombuffer(memory, dtype=numpy_dtype).reshape(descriptor.shape)
        return Image.fromarray(array) if part.form == "pil" else array
