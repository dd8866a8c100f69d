"""Models and places on this machine that settings name, looked for before a worker is started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .config import EngineConfig
from .errors import ConfigError
from .strict import nearest

MODELS = ("shapes", "synthetic")
FAMILIES = (
    *("sd15", "sd15-img2img", "sd15-inpaint", "sdxl", "sd3", "flux", "wan", "wan-chunks"),
    *("sd15-full", "sdxl-full", "sd3-full", "flux-full", "wan-full"),
)
"""Of ``random:FAMILY``; those that are not full-size are tiny."""
RANDOM = "random:"
SUFFIX = ".safetensors"
_HUB_FILE = re.compile(rf"(\w[\w.-]*)/[\w.-]+(/[\w.-]+)+{re.escape(SUFFIX)}")


def check_places(config: EngineConfig) -> None:
    """Return if the model, the files and the directories may be there that a config names.

    What may be a hub id, or says by its form that it is something else, is left to the workers.

    Raises:
      ConfigError: one is not; names the setting.
    """
    for setting, place in _places(config):
        if not os.path.exists(os.path.expanduser(place)):
            raise ConfigError(f"{setting}: no such file or directory: {place!r}")
    if _is_path(config.model) and not os.path.isdir(os.path.expanduser(config.model)):
        raise ConfigError(f"model: {config.model!r} is a file, no directory in diffusers' layout")
    _check_name(config.model)


def _check_name(model: str) -> None:
    """Refuse what is neither a model of this package nor has the form of any other."""
    family = model.removeprefix(RANDOM)
    if family != model and family not in FAMILIES:
        raise ConfigError(f"model: there is no {model!r}: {nearest(family, FAMILIES)}")
    if model in MODELS or "/" in model or ":" in model or os.path.isdir(os.path.expanduser(model)):
        return
    raise ConfigError(
        f"model: unknown model {model!r}: {nearest(model, MODELS)} (or 'random:FAMILY', a"
        " directory, a hub id 'owner/name', 'package.module:factory')"
    )


def _places(config: EngineConfig) -> Iterator[tuple[str, str]]:
    if _is_path(config.model):
        yield "model", config.model
    preview_vae = config.model_options.get("preview_vae")
    if isinstance(preview_vae, str) and _is_path(preview_vae):
        yield "model_options.preview_vae", preview_vae
    for name, place in config.lora.items():
        if _is_path(place) and not _is_file_of_the_hub(place):
            yield f"lora.{name}", place


def _is_path(place: str) -> bool:
    """Whether it can only be a path: a hub id is ``owner/name``."""
    return place.startswith((".", "/", "~")) or place.endswith(SUFFIX) or place.count("/") > 1


def _is_file_of_the_hub(place: str) -> bool:
    """Whether it is ``owner/name/file.safetensors``, and looks like no path of this machine."""
    found = _HUB_FILE.fullmatch(place)
    return found is not None and not os.path.isdir(found[1])
