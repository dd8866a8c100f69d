"""Moves and casts of shared modules during a request: `vae.to(dtype)` and its kin."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_DTYPES = {
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "bfloat16": torch.bfloat16,
}


def changes_nothing(
    module: nn.Module, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Say whether a call such as `module.to(...)` would leave the module as it is.

    Args:
        module: The shared module.
        method: `to`, `half`, `float`, `double`, `bfloat16`, `cuda`, `cpu`, `eval`, `train`,
            `requires_grad_` or `apply`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    if method in ("eval", "train"):
        training = method == "train" and (args[0] if args else kwargs.get("mode", True))
        return all(part.training == training for part in module.modules())
    if method == "requires_grad_":
        wanted = args[0] if args else kwargs.get("requires_grad", True)
        return all(parameter.requires_grad == wanted for parameter in module.parameters())
    if method == "apply":
        return False
    device, dtype, layout = _target(method, args, kwargs)
    if layout is not None:
        return False
    return all(_fits(tensor, device, dtype) for tensor in _tensors(module))


def _target(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, torch.dtype | None, Any]:
    if method in _DTYPES:
        return None, _DTYPES[method], None
    if method == "cpu":
        return torch.device("cpu"), None, None
    if method == "cuda":
        index = args[0] if args else kwargs.get("device")
        return torch.device("cuda" if index is None else index), None, None
    known = {name: value for name, value in kwargs.items() if name != "silence_dtype_warnings"}
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **known)
    return device, dtype, layout


def _fits(tensor: torch.Tensor, device: torch.device | None, dtype: torch.dtype | None) -> bool:
    if device is not None and tensor.device != device:
        same_type = tensor.device.type == device.type
        if not (same_type and device.index is None):
            return False
    floating = tensor.is_floating_point() or tensor.is_complex()
    return dtype is None or not floating or tensor.dtype == dtype


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


class ModuleState:
    """What moving, casting or training a module changes, kept so that it can be put back exactly.

    The original tensors are kept, not copies: putting them back costs nothing and loses no bit.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = [(p, p.data, p.requires_grad) for p in module.parameters()]
        self._buffers = [
            (part, name, buffer)
            for part in module.modules()
            for name, buffer in part._buffers.items()
        ]
        self._training = [(part, part.training) for part in module.modules()]

    def is_back(self) -> bool:
        """Whether device, dtype and training state are again what they were."""
        return (
            all(
                p.dtype == data.dtype and p.device == data.device and p.requires_grad == grad
                for p, data, grad in self._parameters
            )
            and all(_same_kind(part._buffers.get(n), b) for part, n, b in self._buffers)
            and all(part.training == training for part, training in self._training)
        )

    def put_back(self) -> None:
        """Give the module its original tensors and flags."""
        for parameter, data, grad in self._parameters:
            parameter.data = data
            parameter.requires_grad_(grad)
        for part, name, buffer in self._buffers:
            part._buffers[name] = buffer
        for part, training in self._training:
            part.training = training


def _same_kind(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.device == b.device
