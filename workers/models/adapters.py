"""Adapters (LoRA) beside a pipeline's own weights: loaded at start-up, chosen by requests."""

import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from .hub import ask_hub, hub_reason
from .quiet import quiet

USUAL_FILE = "pytorch_lora_weights.safetensors"
SUFFIX = ".safetensors"
REASON_LIMIT = 400
"""Characters."""
NAMED = 3
"""Of keys that do not fit."""
DENOISERS = ("unet", "transformer")
PARTS = (*DENOISERS, "transformer_2", "text_encoder", "text_encoder_2", "text_encoder_3")
"""What weights of adapters are for, in the layout of diffusers."""
_MATRIX = re.compile(r"\.lora_[AB]\.")
_OTHER_SHAPE = re.compile(r"^\s*size mismatch for ([^\s:]+):", re.MULTILINE)


def load_adapters(pipeline: Any, wanted: Mapping[str, str], options: Mapping[str, Any]) -> None:
    """Load adapters into a pipeline, and note their names as its `sidestream_lora`.

    Args:
        pipeline: Changed in place.
        wanted: Names, and for each a file, a directory, or a hub id ``owner/name`` which may be
            followed by ``/`` and a file's name. Only safetensors are read, never pickles.
        options: Of the model; those that say how to use the hub count here too.

    Raises:
        ValueError: One of them cannot be loaded; names it.
    """
    if not wanted:
        return
    if not hasattr(pipeline, "load_lora_weights"):
        raise ValueError(f"lora: a {type(pipeline).__name__} takes no adapters")
    if importlib.util.find_spec("peft") is None:
        raise ValueError("lora: needs peft, which the extra brings: pip install 'sidestream[lora]'")
    hub = {name: options[name] for name in ("cache_dir", "local_files_only") if name in options}
    for name, source in wanted.items():
        _load(pipeline, name, source, hub)
    pipeline.sidestream_lora = tuple(wanted)


class _Misfit(ValueError):
    """Says all that there is to say."""


def _load(pipeline: Any, name: str, source: str, hub: Mapping[str, Any]) -> None:
    keys: list[str] = []
    try:
        place, file = _located(source)
        if file is not None and Path(place).is_dir():
            keys = _keys_of(Path(place, file))
        elif file is not None:
            ask_hub(place, file, hub)
        _check_denoiser(keys, pipeline)
        with _silence():
            pipeline.load_lora_weights(
                place, adapter_name=name, weight_name=file, use_safetensors=True, **hub
            )
        if any(_is_unfinished(part) for part in pipeline.components.values()):
            raise _Misfit("it lacks some of its weights")
        if name not in _loaded_into(pipeline):
            raise _Misfit(f"it is not for this model, which has nothing for {_few(keys, keys)}")
        _check_rest(pipeline, name, keys or _cached_keys(place, file, hub))
    except Exception as error:  # a broken file may raise anything
        reason = _reason(error, keys)
        raise ValueError(f"lora {name!r} cannot be loaded from {source!r}: {reason}") from error


def _keys_of(file: Path) -> list[str]:
    with safe_open(file, "pt") as weights:
        return list(weights.keys())


def _cached_keys(repository: str, file: str | None, hub: Mapping[str, Any]) -> list[str]:
    """Return the keys of a file of the hub that has been loaded, if it was named."""
    from huggingface_hub import try_to_load_from_cache

    if file is None:
        return []
    path = try_to_load_from_cache(repository, file, cache_dir=hub.get("cache_dir"))
    return _keys_of(Path(path)) if isinstance(path, str) else []


def _check_rest(pipeline: Any, name: str, keys: list[str]) -> None:
    """Refuse an adapter of which a part was loaded only: diffusers passes over the rest.

    Keys in the layout of diffusers tell their places. Those in other layouts are converted, some
    into several, and are not looked at.
    """
    loaded = _weights_of(pipeline, name)
    misfits: list[str] = []
    for part in PARTS:
        given = {key for key in keys if key.startswith(f"{part}.") and _MATRIX.search(key)}
        there = {key for key in loaded if key.startswith(f"{part}.")}
        if len(given - there) > len(there - given):  # a library may have renamed some
            misfits += sorted(given - there)
    if misfits:
        few = _few(misfits, keys)
        raise _Misfit(f"it fits this model only in part, which has nothing for {few}")


def _weights_of(pipeline: Any, name: str) -> set[str]:
    """Return the names of an adapter's weights in a pipeline, as a file has them."""
    own = re.compile(rf"(\.lora_[AB])\.{name}\.")
    return {
        own.sub(r"\1.", f"{part}.{weight}")
        for part, module in pipeline.components.items()
        if isinstance(module, nn.Module)
        for weight, _ in module.named_parameters()
        if own.search(weight)
    }


def _check_denoiser(keys: list[str], pipeline: Any) -> None:
    """Refuse keys of a denoiser that the pipeline does not have: diffusers passes over them, and
    loads what it finds for a text encoder."""
    lacking = tuple(f"{part}." for part in DENOISERS if part not in pipeline.components)
    misfits = [key for key in keys if key.startswith(lacking)]
    if misfits:
        raise _Misfit(f"it is not for this model, which has nothing for {_few(misfits, keys)}")


def _reason(error: Exception, keys: list[str]) -> str:
    """Say why an adapter cannot be loaded: libraries tell of every weight that does not fit."""
    if isinstance(error, _Misfit):
        return str(error)
    misfits = _OTHER_SHAPE.findall(str(error))
    if misfits:
        return f"it is not for this model, where {_few(misfits, keys)} have other shapes"
    if type(error).__name__ == "NoMatchingPeftModuleError":
        return f"it is not for this model, which has nothing for {_few(keys, keys)}"
    return hub_reason(error) or f"{type(error).__name__}: {error}"[:REASON_LIMIT]


def _few(misfits: list[str], keys: list[str]) -> str:
    """Tell how many keys do not fit, and the first three."""
    if not misfits:
        return "its weights"
    of = f" of {len(keys)}" if keys else ""
    more = ", ..." if len(misfits) > NAMED else ""
    return f"{len(misfits)}{of} weights ({', '.join(misfits[:NAMED])}{more})"


def _located(source: str) -> tuple[str, str | None]:
    """Return a directory or hub id, and the name of the file there, None if the hub is to tell."""
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path), _file_in(path)
    if path.is_file():
        if path.suffix != SUFFIX:
            raise _Misfit(f"only {SUFFIX} files are loaded")
        return str(path.parent), path.name
    parts = source.split("/")
    if len(parts) < 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise _Misfit("there is no such file or directory, and a hub id is owner/name")
    return "/".join(parts[:2]), "/".join(parts[2:]) or None


def _file_in(directory: Path) -> str:
    files = sorted(file.name for file in directory.glob(f"*{SUFFIX}"))
    if USUAL_FILE in files:
        return USUAL_FILE
    if len(files) != 1:
        raise _Misfit(f"the directory has {len(files)} {SUFFIX} files; name one of them")
    return files[0]


def _loaded_into(pipeline: Any) -> set[str]:
    components = getattr(pipeline, "components", {}).values()
    return {name for part in components for name in getattr(part, "peft_config", None) or ()}


@contextmanager
def _silence() -> Iterator[None]:
    """Keep libraries from telling of each component that a file has nothing for, and that there is
    more than one adapter."""
    with quiet(diffusers=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`", UserWarning)
        warnings.filterwarnings("ignore", "While injecting the PEFT adapters", RuntimeWarning)
        yield


def _is_unfinished(component: Any) -> bool:
    """Whether some weights of a component were never read."""
    return isinstance(component, nn.Module) and any(part.is_meta for part in component.parameters())
