"""TOML files of settings: one file serves engines and the server."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .strict import resembling

SERVER_TABLE = "server"
"""Of a file, with settings that are not the engine's."""
SERVER_NAMES = ("host", "port", "api_keys")
"""What people write at the top level though it belongs there."""


def read_settings_file(
    path: str | os.PathLike[str], settings_of_the_engine: frozenset[str]
) -> dict[str, Any]:
    """Read a TOML file of settings of an engine, and perhaps a table of the server's.

    Args:
      path: of the file.
      settings_of_the_engine: their names. Others that do not say where they belong are left to
        `EngineConfig`, which knows the nearest.

    Raises:
      ConfigError: it cannot be read, or has at its top level what belongs to the server.
    """
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = ""
        if isinstance(error, (FileNotFoundError, IsADirectoryError)) and _may_be_a_model(path):
            hint = f"; a model is given by name: open_engine(model={path!r})"
        raise ConfigError(f"{os.fspath(path)}: {error}{hint}") from error
    for name, value in settings.items():
        if name in settings_of_the_engine or name == SERVER_TABLE:
            continue
        if isinstance(value, dict) and resembling(name, [SERVER_TABLE], 0.7):
            raise ConfigError(f"{path}: unknown table [{name}]: did you mean [{SERVER_TABLE}]?")
        if name in SERVER_NAMES:
            raise ConfigError(
                f"{path}: {name!r} belongs to the server: write it below [{SERVER_TABLE}]"
            )
    if not isinstance(settings.get(SERVER_TABLE, {}), dict):
        raise ConfigError(f"{path}: {SERVER_TABLE} must be a table")
    return settings


def _may_be_a_model(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and not path.endswith(".toml")
