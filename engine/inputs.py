"""Arrays that a request carries: numpy arrays, torch tensors and PIL images become `InputTensor`.

torch is not imported for this: a tensor can only come from a caller who has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from ..ipc_ext.messages import Form
from ..ipc_ext.tensors import DTYPES, MAX_RANK, TensorDescriptor
from .errors import RequestError
from .executor.base import InputTensor

DEPTH_LIMIT = 32
"""Of lists and tables in each other: a worker's decoder stops at a few hundred."""
_PIL_MODES = ("L", "RGB", "RGBA")


def is_array(value: Any) -> bool:
    """Whether a value travels as bytes."""
    return isinstance(value, (np.ndarray, Image.Image)) or _is_torch(value)


def nbytes_of(arguments: Mapping[str, Any]) -> int:
    """Return how many bytes the arrays among a call's arguments have, about."""
    values = (v for value in arguments.values() for v in _items(value) if is_array(v))
    return sum(
        3 * v.width * v.height if isinstance(v, Image.Image) else int(v.nbytes) for v in values
    )


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def split_arguments(arguments: dict[str, Any]) -> tuple[dict[str, Any], list[InputTensor]]:
    """Part a call's arguments into plain data and arrays.

    Args:
      arguments: by name; a value is plain data, an array, or a list of arrays.

    Raises:
      RequestError: a value is neither, naming the argument.
    """
    plain: dict[str, Any] = {}
    arrays: list[InputTensor] = []
    for name, value in arguments.items():
        if is_array(value):
            arrays.append(_input(name, value))
        elif isinstance(value, (list, tuple)) and value and all(map(is_array, value)):
            arrays += [_input(f"{name}.{i}", item) for i, item in enumerate(value)]
        else:
            _check_plain(name, value)
            plain[name] = value
    return plain, arrays


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _input(name: str, value: Any) -> InputTensor:
    if isinstance(value, Image.Image):
        picture = value if value.mode in _PIL_MODES else value.convert("RGB")
        return _describe(name, "pil", np.asarray(picture), "uint8")
    if isinstance(value, np.ndarray):
        _check_dtype(name, value.dtype.name)
        native = value.astype(value.dtype.newbyteorder("="), copy=False)
        return _describe(name, "numpy", native, value.dtype.name)
    dtype = str(value.dtype).removeprefix("torch.")
    _check_dtype(name, dtype)
    if value.layout is not sys.modules["torch"].strided or value.is_meta or value.is_nested:
        raise RequestError(
            f"{name} is no tensor of plain memory: sparse, nested and meta ones are not accepted"
        )
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if dtype == "bfloat16":  # numpy has no such dtype; the bytes travel as they are
        tensor = tensor.view(sys.modules["torch"].int16)
    return _describe(name, "torch", tensor.numpy(), dtype)


def _describe(name: str, form: Form, array: np.ndarray[Any, Any], dtype: str) -> InputTensor:
    if array.ndim > MAX_RANK:
        raise RequestError(f"{name} has {array.ndim} dimensions; at most {MAX_RANK} are accepted")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return InputTensor(name, form, TensorDescriptor(dtype, array.shape), data.data)


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise RequestError(f"{name} has dtype {dtype}; valid dtypes: {', '.join(DTYPES)}")


def _check_plain(name: str, value: Any, depth: int = 0) -> None:
    if type(value) in (type(None), bool, int, float, str):
        return
    if depth == DEPTH_LIMIT:
        raise RequestError(f"{name} is nested more than {DEPTH_LIMIT} deep")
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(name, item, depth + 1)
    elif isinstance(value, dict) and all(type(key) is str for key in value):
        for item in value.values():
            _check_plain(name, item, depth + 1)
    else:
        raise RequestError(
            f"{name} holds a {type(value).__name__}; valid are numbers, strings, lists and tables"
            " of these, numpy arrays, torch tensors, PIL images, and lists of arrays"
        )
