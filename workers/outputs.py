"""From what a pipeline returns to named tensors."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

_c: Any = torch._C
_BY_RANK = {3: "audios", 4: "images", 5: "frames"}
_MEDIA = frozenset(("images", "frames"))
_MAX_DEPTH = 4


def tensors_of(result: Any, *, latent: bool = False) -> dict[str, torch.Tensor]:
    """Return the tensors in a pipeline's result, by name.

    Images become (n, 3, H, W) and frames (n, F, C, H, W), whether the pipeline returned tensors,
    arrays or PIL images; of what is not a tensor, only lists of flags are kept. What holds tensors
    that cannot be stacked becomes several, named after where they are: `extra_mask`, `images_0`.

    Args:
        result: A diffusers output, any object with public attributes, a dict, a tuple, or a tensor.
        latent: Latents were asked for: what pipelines return as images or frames is named
            `latents`.

    Raises:
        TypeError: There is no tensor in the result.
    """
    tensors: dict[str, torch.Tensor] = {}
    for place, value in _fields(result):
        for name, tensor in _spread(place, value):
            tensors[_free("latents" if latent and name in _MEDIA else name, tensors)] = tensor
    if not tensors:
        raise TypeError(f"the pipeline returned no tensor but {type(result).__name__}")
    return tensors


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name that is not taken: this one, or with a number behind it."""
    names = (name if n == 1 else f"{name}_{n}" for n in itertools.count(1))
    return next(one for one in names if one not in taken)


def owned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors that nobody else will write to: the next run may begin before they are copied.

    Those are copied, on the current stream, whose memory somebody else knows too, such as a
    pipeline that returns the same buffer again and again. Pipelines of diffusers keep nothing, and
    a tensor that only this knows is returned as it is.

    Args:
        tensors: By name; the pipeline has returned them, and its result was dropped.
    """
    return {
        name: tensor if _is_owned(tensor) else tensor.clone() for name, tensor in tensors.items()
    }


def are_owned(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether `owned` would return all tensors as they are."""
    return all(map(_is_owned, tensors.values()))


def _is_owned(tensor: torch.Tensor) -> bool:
    return _users_of(tensor) <= _OWN_USERS


def _users_of(tensor: torch.Tensor) -> int:
    """Return how many tensors there are of this one's memory, and some more that are always there.

    torch has no public word for it; its own recycling of memory for CUDA graphs asks this way.
    """
    users: int = _c._storage_Use_Count(tensor.untyped_storage()._cdata)
    return users


_OWN_USERS = _users_of(torch.empty(1))


def _fields(result: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(result, (torch.Tensor, np.ndarray)):
        yield _BY_RANK.get(result.ndim, "output"), result
    elif isinstance(result, dict):
        yield from ((str(name), value) for name, value in result.items())
    elif isinstance(result, (list, tuple)):
        for index, value in enumerate(result):
            rank = getattr(_tensor(value), "ndim", 0)
            yield (_BY_RANK.get(rank, "output") if index == 0 else f"output_{index}"), value
    elif dataclasses.is_dataclass(result):
        fields = (field.name for field in dataclasses.fields(result))
        yield from ((name, getattr(result, name)) for name in fields if not name.startswith("_"))
    else:
        named = vars(result) if hasattr(result, "__dict__") else {}
        yield from ((name, value) for name, value in named.items() if not name.startswith("_"))


def _spread(name: str, value: Any, depth: int = _MAX_DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    tensor = _tensor(value)
    if tensor is not None:
        yield name, tensor
    elif depth and isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _spread(f"{name}_{index}", part, depth - 1)
    elif depth and (isinstance(value, dict) or dataclasses.is_dataclass(value)):
        for key, part in _fields(value):
            yield from _spread(f"{name}_{key}", part, depth - 1)


def _tensor(value: Any) -> torch.Tensor | None:
    """Turn a value into a tensor, images with channels first; None: there is nothing to turn."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(_channels_first(value)))
    if isinstance(value, (list, tuple)) and value:
        return _stacked(value)
    return _picture(value) if hasattr(value, "getbands") else None


def _stacked(values: Sequence[Any]) -> torch.Tensor | None:
    if all(isinstance(value, bool) for value in values):
        return torch.tensor(values)
    parts = [_tensor(value) for value in values]
    if any(part is None for part in parts):
        return None
    tensors = [part for part in parts if part is not None]
    if len({(tensor.shape, tensor.dtype) for tensor in tensors}) != 1:
        return None
    return torch.stack(tensors)


def _picture(image: Any) -> torch.Tensor:
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _channels_first(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.ndim >= 3 and array.shape[-1] in (1, 3, 4):
        return np.moveaxis(array, -1, -3)
    return array
