"""Adapters (LoRA) beside a pipeline's own weights: loaded at start-up, chosen by requests."""

import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from .quiet import quiet

USUAL_FILE = "pytorch_lora_weights.safetensors"
SUFFIX = ".safetensors"
REASON_LIMIT = 400
"""Characters: that shapes do not fit is said of every weight."""


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
        try:
            place, file = _located(source)
            with _silence():
                pipeline.load_lora_weights(
                    place, adapter_name=name, weight_name=file, use_safetensors=True, **hub
                )
        except Exception as error:  # a broken file may raise anything
            reason = f"{type(error).__name__}: {error}"[:REASON_LIMIT]
            raise ValueError(f"lora {name!r} cannot be loaded from {source!r}: {reason}") from error
        if any(_is_unfinished(part) for part in pipeline.components.values()):
            raise ValueError(f"lora {name!r}: {source!r} lacks some of its weights")
        if name not in _loaded_into(pipeline):
            raise ValueError(f"lora {name!r}: nothing in {source!r} is for this model")
    pipeline.sidestream_lora = tuple(wanted)


def _located(source: str) -> tuple[str, str | None]:
    """Return a directory or hub id, and the name of the file there, None if the hub is to tell."""
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path), _file_in(path)
    if path.is_file():
        if path.suffix != SUFFIX:
            raise ValueError(f"only {SUFFIX} files are loaded")
        return str(path.parent), path.name
    parts = source.split("/")
    if len(parts) < 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise ValueError("there is no such file or directory, and a hub id is owner/name")
    return "/".join(parts[:2]), "/".join(parts[2:]) or None


def _file_in(directory: Path) -> str:
    files = sorted(file.name for file in directory.glob(f"*{SUFFIX}"))
    if USUAL_FILE in files:
        return USUAL_FILE
    if len(files) != 1:
        raise ValueError(f"the directory has {len(files)} {SUFFIX} files; name one of them")
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
        yield


def _is_unfinished(component: Any) -> bool:
    """Whether some weights of a component were never read."""
    return isinstance(component, nn.Module) and any(part.is_meta for part in component.parameters())
