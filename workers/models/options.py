"""What the model loaders share: strict options and names of data types."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import torch

Options = TypeVar("Options", bound=msgspec.Struct)

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "uint8": torch.uint8,
}
DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def unknown_name(what: str, name: str, valid: Iterable[str]) -> ValueError:
    """Make the error for a name that does not exist; it names the nearest one and all others.

    Args:
        what: What the name should have been, such as ``"option of model 'synthetic'"``.
        name: The name as given.
        valid: The names that exist.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ValueError(f"unknown {what}: {name!r}; {hint}valid: {', '.join(names) or 'none'}")


def parse_options(cls: type[Options], options: Mapping[str, Any], model: str) -> Options:
    """Check loader options against a struct and return them as one.

    Args:
        cls: Frozen struct with one field for each option.
        options: Options as the user gave them.
        model: Name of the model, for error messages.

    Raises:
        ValueError: An option does not exist or has the wrong type or range.
    """
    for name in options:
        if name not in cls.__struct_fields__:
            raise unknown_name(f"option of model {model!r}", name, cls.__struct_fields__)
    try:
        return msgspec.convert(dict(options), cls)
    except msgspec.ValidationError as error:
        raise ValueError(f"bad option of model {model!r}: {error}") from error


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype with a short ("bf16") or long ("bfloat16") name.

    Raises:
        ValueError: No such dtype.
    """
    try:
        return DTYPES[DTYPE_ALIASES.get(name, name)]
    except KeyError:
        raise unknown_name("dtype", name, [*DTYPES, *DTYPE_ALIASES]) from None


def model_dtype(name: str | None, device: str) -> torch.dtype:
    """Return the dtype that a model's weights get.

    Args:
        name: Wanted dtype, or None for the device's usual one: float32 on a CPU, which has no
            fast half-precision kernels, and bfloat16 elsewhere.
        device: Device such as ``"cpu"`` or ``"cuda:0"``.
    """
    if name is None:
        return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    dtype = torch_dtype(name)
    if not dtype.is_floating_point:
        raise ValueError(f"model weights cannot be {name!r}: choose bf16, fp16 or fp32")
    return dtype
