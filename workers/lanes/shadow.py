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
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .structure import parts_of
from .waits import current_lane

_C: Any = torch._C
_FIELDS: Any = Tensor  # as it is typed, it has values where it has descriptors
BROUGHT_LIMIT = 1 << 20
"""Bytes: larger tensors are brought as ever, so that pinned memory does not grow with them."""
KNOWN_LIMIT = 1 << 14
"""Bytes: of larger tensors nothing is kept on the host."""


class _Shadow(ref[Tensor]):
    """What is known of a tensor on the device.

    Attributes:
      key: where it is kept.
      values: a tensor on the host that nobody writes on.
    """

    __slots__ = ("_pointer", "_version", "key", "values")

    def __init__(self, owner: Tensor, forget: Callable[["_Shadow"], None], values: Tensor) -> None:
        super().__init__(owner, forget)  # type: ignore[call-arg]
        self.key = id(owner)
        self.values = values
        self._version = owner._version
        self._pointer = owner.data_ptr()

    def __new__(cls, owner: Tensor, forget: Any, values: Tensor) -> "_Shadow":
        return super().__new__(cls, owner, forget)

    def holds_for(self, tensor: Tensor) -> bool:
        """Whether this is the tensor, and nobody has written on it."""
        return (
            self() is tensor
            and self._version == tensor._version
            and self._pointer == tensor.data_ptr()
        )


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
        self._shadows: dict[int, _Shadow] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        if not args or torch.compiler.is_compiling():
            return func(*args, **kwargs)
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
            if self._may_bring(tensor):
                return self._bring(tensor, device, dtype or tensor.dtype)
        elif tensor.device.type == self._device_type and device.type == "cpu":
            values = self._values_of(tensor)
            # Floats that are no integers become other ones on other devices.
            if values is not None and (dtype is None or dtype.is_floating_point):
                return torch.empty_like(values, dtype=dtype, pin_memory=False).copy_(values)
            return self._ask(func, args, kwargs)
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

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`copy_`."""
        if len(args) != 2 or kwargs or not self._may_bring(args[1]):
            return func(*args, **kwargs)
        target, source = args
        if target.device.type == self._device_type:
            source, kwargs = self._staged(source, source.dtype), {"non_blocking": True}
        return func(target, source, **kwargs)

    def _may_bring(self, tensor: Any) -> bool:
        """Whether this is a small tensor on the host that may be read at once; into pinned memory
        something may be on its way from the device."""
        here = isinstance(tensor, Tensor) and tensor.device.type == "cpu" and _is_plain(tensor)
        return here and tensor.nbytes <= BROUGHT_LIMIT and not tensor.is_pinned()

    def _bring(self, tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        staged = self._staged(tensor, dtype)
        return self._know(staged.to(device, non_blocking=True), staged)

    def _staged(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.empty_like(tensor, dtype=dtype, pin_memory=self._pinned).copy_(tensor)

    # ------------------------------------------------------------------ questions

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`item` and its kin: what is wanted is on the host."""
        values = self._values_of(args[0])
        if values is not None:
            return func(values, *args[1:], **kwargs)
        on_device = isinstance(args[0], Tensor) and args[0].device.type == self._device_type
        return self._ask(func, args, kwargs) if on_device else func(*args, **kwargs)

    def _ask(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let the device answer; while it is busy, the thread may do something else."""
        lane = current_lane()
        if lane is not None and not kwargs.get("non_blocking", False):
            lane.give_way_to_device()
        return func(*args, **kwargs)

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A function of which is known what it gives."""
        result = func(*args, **kwargs)
        if kwargs or not _is_followed(result):
            return result
        values = [self._host_side(arg) for arg in args]
        kinds = {part.dtype for part in parts_of(values) if isinstance(part, Tensor)}
        if len(kinds) != 1 or any(value is None for value in values):
            return result
        return self._know(result, func(*values))

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
        parts = func(values, *rest, **kwargs)
        if isinstance(result, Tensor):
            return self._know(result, parts)
        return type(result)(map(self._know, result, parts))

    def _find(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`nonzero`: its shape is only known when its values are."""
        tensor = args[0]
        values = self._values_of(tensor)
        if values is None or kwargs.keys() - {"as_tuple"}:
            return func(*args, **kwargs)
        found = func(values, *args[1:], **kwargs)
        if isinstance(found, tuple):
            return tuple(self._bring(one, tensor.device, one.dtype) for one in found)
        return self._bring(found, tensor.device, found.dtype)

    def _values_of(self, tensor: Any) -> Tensor | None:
        """Return what the host knows of a tensor on the device."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self._device_type:
            return None
        shadow = self._shadows.get(id(tensor))
        return shadow.values if shadow is not None and shadow.holds_for(tensor) else None

    def _know(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Note what the values of a tensor on the device are."""
        if values.nbytes <= KNOWN_LIMIT and not tensor.is_inference():
            shadow = _Shadow(tensor, self._forget, values)
            self._shadows[shadow.key] = shadow
        return tensor

    def _forget(self, shadow: _Shadow) -> None:
        """Drop what was known of a tensor that is no more."""
        if self._shadows.get(shadow.key) is shadow:
            del self._shadows[shadow.key]

    def _expose(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What gives its memory to somebody, who may write there unseen."""
        for part in parts_of(list(args)):
            if isinstance(part, Tensor):
                self._shadows.pop(id(part), None)
        return func(*args, **kwargs)

    def _host_side(self, value: Any) -> Any:
        """Return a value as the host knows it; None if it does not."""
        if isinstance(value, Tensor):
            return self._values_of(value)
        if type(value) in (list, tuple):
            values = [self._host_side(part) for part in value]
            return None if any(part is None for part in values) else values
        return value if isinstance(value, (bool, int, float)) else None


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
    """Whether a result is small, and of a type in which sums are rounded in one way only."""
    if type(result) is not Tensor or result.requires_grad or result.nbytes > KNOWN_LIMIT:
        return False
    return result.dtype in _EXACT


def _is_integral(value: Tensor) -> bool:
    return value.dtype in _INTEGERS


_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}  # an index of uint8 is a mask
_EXACT = {*_INTEGERS, torch.uint8, torch.bool, torch.float32, torch.float64}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = ("add", "sub", "mul", "neg", "repeat_interleave")
_EXPOSING = (
    *(Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage, Tensor.__dlpack__),
    *(_FIELDS.data.__get__, _FIELDS.data.__set__, _FIELDS.__cuda_array_interface__.__get__),
    *(torch.batch_norm, torch.instance_norm, functional.batch_norm, functional.instance_norm),
)
_ANSWERS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")


def _handlers() -> dict[Any, Callable[..., Any]]:
    shadow = HostShadow
    handlers: dict[Any, Callable[..., Any]] = {
        torch.tensor: shadow._make,
        torch.as_tensor: shadow._make,
        torch.cat: shadow._follow,
        torch.nonzero: shadow._find,
        torch.unbind: shadow._follow_parts,
        Tensor.copy_: shadow._copy,
        Tensor.__getitem__: shadow._select,
        Tensor.unbind: shadow._follow_parts,
        Tensor.nonzero: shadow._find,
    }
    for name in ("to", "cpu", "cuda"):
        handlers[getattr(Tensor, name)] = shadow._convert
    for exposing in _EXPOSING:
        handlers[exposing] = shadow._expose
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
