"""From words on the command line to a configuration and requests."""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from PIL import Image

from ..config import EngineConfig
from ..errors import RequestError
from ..request import DiffusionRequest

if TYPE_CHECKING:  # generic for type checkers only, in some releases of click
    SizeType = click.ParamType[tuple[int, int]]
    AssignmentType = click.ParamType[tuple[str, Any]]
    AdapterType = click.ParamType[tuple[str, str]]
else:
    SizeType = AssignmentType = AdapterType = click.ParamType

CONFIG_OPTIONS = ("model", "executor", "device", "dtype", "num_workers", "max_num_seqs", "mode")
"""Options that are named like the field of `EngineConfig` that they set."""
TABLES = ("model_options", "lora")
"""Fields of `EngineConfig` whose entries can be set one by one, as ``TABLE.NAME``."""


class Size(SizeType):
    """A size in pixels: ``WIDTHxHEIGHT``, or one number for a square."""

    name = "WxH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return (width, height)."""
        found = re.fullmatch(r"(\d{1,5})(?:[xX](\d{1,5}))?", str(value))
        if found is None:
            self.fail(f"{value!r} is no size; write 768x512, or 512 for a square", param, ctx)
        width, height = found.groups()
        return int(width), int(height or width)


class Assignment(AssignmentType):
    """``KEY=VALUE``, the value in TOML's syntax, or plain text."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Return (key, value)."""
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        try:
            return key, tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return key, text


class Adapter(AdapterType):
    """``NAME=PLACE``: what an adapter is called, and where it is."""

    name = "NAME=PATH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return (name, place)."""
        name, _, place = str(value).partition("=")
        if not name or not place:
            self.fail(f"{value!r} is not NAME=PATH", param, ctx)
        return name, place


SHAPES_SIDE = 128
"""What `shapes` was trained at, pixels; from half to twice of that it does well."""
PREVIEWS = 8
"""How many previews of an output there are, unless it is said after how many steps they come."""


def read_prompts(lines: Iterable[str]) -> list[str]:
    """Return the lines that are not blank, without the space around them.

    Raises:
      click.UsageError: the file is not UTF-8 text.
    """
    try:
        return [line.strip() for line in lines if line.strip()]
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the file of prompts is not UTF-8 text: {error}") from error


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """Make the configuration: the file's settings, over them ``--set``, over these the options.

    Raises:
      ConfigError: a setting is unknown or not valid.
      click.UsageError: previews or adapters are wanted where there are none.
    """
    settings, tables = read_assignments(options["settings"], TABLES)
    tables["lora"] |= dict(options["lora"])
    settings |= {name: options[name] for name in CONFIG_OPTIONS if options[name] is not None}
    config = EngineConfig.load(options["config"] or {}, **settings)
    if config.mode != "step" and (options["preview"] or options["preview_every"]):
        raise click.UsageError("--preview needs --mode step")
    merged = {name: getattr(config, name) | table for name, table in tables.items()}
    config = EngineConfig.load(config, **merged)
    _check_scales(options["scales"], config)
    return config


def _check_scales(scales: Iterable[tuple[str, Any]], config: EngineConfig) -> None:
    """Refuse adapters that are not loaded, before a model is. One of an import path may bring its
    own."""
    if ":" in config.model.removeprefix("random:"):
        return
    for name, _ in scales:
        if name not in config.lora:
            raise click.UsageError(
                f"--lora-scale: there is no adapter {name!r}; load it with --lora {name}=PATH"
            )


def read_assignments(
    assignments: Iterable[tuple[str, Any]], tables: Iterable[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Sort what ``--set`` says into settings and entries of tables.

    Args:
      assignments: keys and values.
      tables: names that may be followed by a dot and the name of an entry.
    """
    settings: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for key, value in assignments:
        table, _, name = key.partition(".")
        if name and table in entries:
            entries[table][name] = value
        else:
            settings[key] = value
    return settings, entries


def requests_of(prompts: Sequence[str], options: Mapping[str, Any]) -> list[DiffusionRequest]:
    """Make one request for each output, so that each is a file as soon as it is there.

    A blank prompt is none, for models that take none; others refuse it.

    Raises:
      RequestError: a parameter is not valid.
    """
    width, height = options["size"] or (None, None)
    every = options["preview_every"]
    extra = dict(options["arguments"])
    lora = {name: 1.0 for name, _ in options["lora"]} | dict(options["scales"])
    output: dict[str, Any] = {"output_type": "uint8"}
    if options["file_format"] == "mp4":
        encoding = {name: options[name] for name in ("quality", "fps")}
        output = {"output_type": "mp4", "output_options": encoding}
    if options["image"] is not None:
        extra["image"] = _open_image(options["image"])
    requests = []
    for prompt in prompts:
        first = secrets.randbelow(2**32) if options["seed"] is None else options["seed"]
        requests += [
            DiffusionRequest.make(
                prompt if prompt.strip() else None,
                negative_prompt=options["negative_prompt"],
                width=width,
                height=height,
                num_inference_steps=options["steps"],
                guidance_scale=options["guidance"],
                seed=seed,
                **output,
                preview_steps=PREVIEWS if options["preview"] and not every else 0,
                preview_every=every or 0,
                lora=lora,
                extra_args=extra,
            )
            for seed in range(first, first + options["count"])
        ]
    return requests


def advice(config: EngineConfig, size: tuple[int, int] | None) -> str | None:
    """Return what to say of a size that the model can make, but neither soon nor well."""
    sides = size or (SHAPES_SIDE, SHAPES_SIDE)
    near = all(SHAPES_SIDE // 2 <= side <= 2 * SHAPES_SIDE for side in sides)
    if near or config.model != "shapes":
        return None
    return (
        f"shapes was trained at {SHAPES_SIDE}x{SHAPES_SIDE}: other sizes look worse, and large ones"
        " take minutes on a CPU"
    )


def _open_image(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError) as error:
        raise RequestError(f"--image: {error}") from error
