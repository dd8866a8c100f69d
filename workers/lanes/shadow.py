"""What the host knows of tensors on the device, so that a pipeline need not wait to be told.

Pipelines and schedulers bring small tensors to the device (token ids, noise, time steps) and read
some of them back (`(timesteps == t).nonzero()`, `sigmas.to("cpu")`). Each time torch has the host
wait until the device has done all that it was given, and the device then waits for the host. Here
they are brought from pinned memory, which needs no waiting, and the host keeps what it brought: as
long as nobody has written on the device's copy, questions about it are answered from the host's.

Only what gives the same bits on any device is followed: parts of tensors, comparisons, single sums,
differences and products.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_C: Any = torch._C
BROUGHT_LIMIT = 1 << 20
"""Bytes: larger tensors are brought as ever, so that pinned memory does not grow with them."""
KNOWN_LIMIT = 1 << 14
"""Bytes: of larger tensors nothing is kept on the host."""

_NAME = "_sidestream_shadow"


class _Shadow:
    """The values of a tensor on the device, on the host.

    Attributes:
      values: a tensor on the host that nobody writes on.
    """

    __slots__ = ("_owner", "_version", "values")

    def __init__(self, owner: Tensor, values: Tensor) -> None:
        self._owner = ref(owner)  # attributes are copied along with tensors
        self._version = owner._version
        self.values = values

    def holds_for(self, tensor: Tensor) -> bool:
        return self._owner() is tensor and self._version == tensor._version


class HostShadow(TorchFunctionMode):
    """While it is entered, small tensors are brought to the device without waiting for it.

    Args:
      device_type: of the device, such as "cuda".
      pinned: whether the host's copies are in pinned memory, without which nothing is won.
    """

    def __init__(self, device_type: str, *, pinned: bool = True) -> None:
        super().__init__()
        self._device_type = device_type
        self._pinned = pinned

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        handle = _HANDLERS.get(func)
        return func(*args, **kwargs) if handle is None else handle(self, func, args, kwargs)

    # ------------------------------------------------------------------ to the device and back

    def _convert(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`to`, `cuda` and `cpu`."""
        tensor = args[0]
        device, dtype = _target(func, args[1:], kwargs)
        if device is None or not _is_plain(tensor):
            return func(*args, **kwargs)
        if tensor.device.type == "cpu" and device.type == self._device_type:
            if tensor.nbytes <= BROUGHT_LIMIT:
                return self._bring(tensor, device, dtype or tensor.dtype)
        elif tensor.device.type == self._device_type and device.type == "cpu":
            values = self._values_of(tensor)
            if values is not None:
                return torch.empty_like(values, dtype=dtype, pin_memory=False).copy_(values)
        return func(*args, **kwargs)

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`tensor` and `as_tensor`."""
        others = dict(kwargs)
        device = others.pop("device", None)
        if device is None or others.keys() - {"dtype"} or len(args) != 1:
            return func(*args, **kwargs)
        device = torch.device(device)
        if device.type != self._device_type or isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        made = func(*args, device="cpu", **others)
        if made.nbytes > BROUGHT_LIMIT:
            return made.to(device)
        return self._bring(made, device, made.dtype)

    def _fill(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`zeros` and `ones`."""
        result = func(*args, **kwargs)
        there = result.device.type == self._device_type and result.nbytes <= KNOWN_LIMIT
        if there and _is_plain(result) and not kwargs.keys() - {"device", "dtype", "size"}:
            return _known(result, func(*args, **{**kwargs, "device": "cpu"}))
        return result

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`copy_`."""
        target, source, *rest = args
        if (
            not rest
            and not kwargs
            and isinstance(source, Tensor)
            and _is_plain(source)
            and source.device.type == "cpu"
            and target.device.type == self._device_type
            and source.nbytes <= BROUGHT_LIMIT
        ):
            return func(target, self._staged(source, source.dtype), non_blocking=True)
        return func(*args, **kwargs)

    def _bring(self, tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        staged = self._staged(tensor, dtype)
        return _known(staged.to(device, non_blocking=True), staged)

    def _staged(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.empty_like(tensor, dtype=dtype, pin_memory=self._pinned).copy_(tensor)

    # ------------------------------------------------------------------ questions

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`item` and its kin: what is wanted is on the host."""
        values = self._values_of(args[0])
        return func(*args, **kwargs) if values is None else func(values, *args[1:], **kwargs)

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A function of which is known what it gives."""
        result = func(*args, **kwargs)
        values = [self._host_side(arg) for arg in args]
        if kwargs or any(value is None for value in values) or not _is_followed(result):
            return result
        return _known(result, func(*values))

    def _select(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`[]`."""
        tensor, index = args
        values = self._values_of(index)
        if values is not None and values.dim() == 0 and _is_integral(values):
            index = values.item()
        elif values is not None and tensor.device.type == "cpu":
            index = values
        args = (tensor, index)
        if isinstance(index, (int, slice)) or (
            isinstance(index, tuple) and all(isinstance(one, (int, slice)) for one in index)
        ):
            return self._follow_parts(func, args, kwargs)
        return func(*args, **kwargs)

    def _follow_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What gives one view of a tensor, or several."""
        tensor, *rest = args
        result = func(*args, **kwargs)
        values = self._values_of(tensor)
        if values is None:
            return result
        return _known_all(result, func(values, *rest, **kwargs))

    def _iterate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`iter`."""
        if self._values_of(args[0]) is None:
            return func(*args, **kwargs)
        return iter(self._follow_parts(Tensor.unbind, (args[0],), {}))

    def _find(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`nonzero`: its shape is only known when its values are."""
        tensor = args[0]
        values = self._values_of(tensor)
        if values is None:
            return func(*args, **kwargs)
        found = func(values, *args[1:], **kwargs)
        if isinstance(found, tuple):
            return tuple(self._bring(one, tensor.device, one.dtype) for one in found)
        return self._bring(found, tensor.device, found.dtype)

    def _values_of(self, tensor: Any) -> Tensor | None:
        """Return what the host knows of a tensor on the device."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self._device_type:
            return None
        shadow = getattr(tensor, _NAME, None)
        return shadow.values if shadow is not None and shadow.holds_for(tensor) else None

    def _host_side(self, value: Any) -> Any:
        """Return a value as the host knows it; None if it does not."""
        if isinstance(value, Tensor):
            return self._values_of(value)
        if type(value) in (list, tuple):
            values = [self._host_side(part) for part in value]
            return None if any(part is None for part in values) else values
        return value if isinstance(value, (bool, int, float)) else None


def _known(tensor: Tensor, values: Tensor) -> Tensor:
    """Note what the values of a tensor on the device are."""
    if values.nbytes <= KNOWN_LIMIT and not tensor.is_inference():
        setattr(tensor, _NAME, _Shadow(tensor, values))
    return tensor


def _known_all(result: Any, values: Any) -> Any:
    if isinstance(result, Tensor):
        return _known(result, values)
    return type(result)(map(_known, result, values))


def _target(func: Any, args: Any, kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
    """Return where `to` and its kin bring a tensor, and its type there; None: as before.

    The device is also None if it is to be left to torch.
    """
    try:
        if func is Tensor.to:
            device, dtype, _, layout = _C._nn._parse_to(*args, **kwargs)
            return (None if layout is not None else device), dtype
        device = "cpu" if func is Tensor.cpu else "cuda"
        return (None if args or kwargs else torch.device(device)), None
    except (RuntimeError, TypeError):
        return None, None  # torch says what is wrong, or there are arguments that are seldom given


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.requires_grad


def _is_followed(result: Any) -> bool:
    return type(result) is Tensor and not result.requires_grad


def _is_integral(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = ("add", "sub", "mul", "neg", "repeat_interleave")
_ANSWERS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")


def _handlers() -> dict[Any, Callable[..., Any]]:
    shadow = HostShadow
    handlers: dict[Any, Callable[..., Any]] = {
        torch.tensor: shadow._make,
        torch.as_tensor: shadow._make,
        torch.cat: shadow._follow,
        torch.ones: shadow._fill,
        torch.zeros: shadow._fill,
        torch.nonzero: shadow._find,
        torch.unbind: shadow._follow_parts,
        Tensor.copy_: shadow._copy,
        Tensor.__getitem__: shadow._select,
        Tensor.__iter__: shadow._iterate,
        Tensor.unbind: shadow._follow_parts,
        Tensor.nonzero: shadow._find,
    }
    for name in ("to", "cpu", "cuda"):
        handlers[getattr(Tensor, name)] = shadow._convert
    for name in _ANSWERS:
        handlers[getattr(Tensor, name)] = shadow._answer
    for name in _COMPARISONS:
        handlers[getattr(torch, name)] = shadow._follow
        handlers[getattr(Tensor, name)] = shadow._follow
        handlers[getattr(Tensor, f"__{name}__")] = shadow._follow
    for name in _ARITHMETIC:
        handlers[getattr(Tensor, name)] = shadow._follow
    for name in ("add", "radd", "sub", "rsub", "mul", "rmul"):
        handlers[getattr(Tensor, f"__{name}__")] = shadow._follow
    return handlers


_HANDLERS = _handlers()
