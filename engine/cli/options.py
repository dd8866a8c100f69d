"""Options that several commands have, and that mean the same in each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..places import FAMILIES
from .arguments import Adapter, Assignment, Size

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


def option(*names: str, **settings: Any) -> Decorator[Function]:
    """Declare an option that shows its default, if it has one."""
    return click.option(*names, show_default=settings.get("default") is not None, **settings)


def existing_file() -> click.Path:
    """Return the type of an option that names a file to read."""
    return click.Path(exists=True, dir_okay=False, path_type=Path)


def together(*options: Decorator[Any]) -> Decorator[Function]:
    """Make one decorator of several, whose options stand in the help in this order."""

    def declare(function: Function) -> Function:
        for decorator in reversed(options):
            function = decorator(function)
        return function

    return declare


prompt_options: Decorator[Any] = together(
    click.argument("prompts", nargs=-1),
    option(
        "-f",
        "--file",
        type=click.File(encoding="utf-8"),
        help="Read prompts, one a line; '-': standard input.",
    ),
)

sampling_options: Decorator[Any] = together(
    option(
        "--steps",
        type=click.IntRange(1),
        metavar="N",
        help="Denoising steps.  [default: the model's]",
    ),
    option("--size", type=Size(), help="In pixels, or one number for a square."),
    option("--guidance", type=float, metavar="X", help="Guidance scale.  [default: the model's]"),
    option("--negative-prompt", metavar="TEXT", help="What to keep away from."),
    option(
        "--image", type=existing_file(), help="Picture to start from, for models that take one."
    ),
    option(
        "--arg",
        "arguments",
        type=Assignment(),
        multiple=True,
        help="Further argument of the pipeline, such as num_frames=33.",
    ),
    option(
        "--lora-scale",
        "scales",
        type=Assignment(),
        multiple=True,
        metavar="NAME=X",
        help="How strong an adapter is to be.  [default: 1 for those of --lora, 0 for others]",
    ),
)

engine_options: Decorator[Any] = together(
    option(
        "--lora",
        type=Adapter(),
        multiple=True,
        help="Load an adapter beside the model, from a file, a directory or the hub; can be"
        " repeated.",
    ),
    option(
        "--executor",
        metavar="NAME",
        help="'uni': in this process; 'mp': in worker processes.  [default: uni]",
    ),
    option("--device", metavar="NAME", help="'cpu', 'cuda' or 'cuda:1'.  [default: auto]"),
    option("--dtype", metavar="NAME", help="Of the weights: 'fp32', 'bf16' or 'fp16'."),
    option(
        "--num-workers",
        "--num-gpus",
        "num_workers",
        type=int,
        metavar="N",
        help="Workers, each with the whole model and a device of its own.",
    ),
    option(
        "--batch",
        "max_num_seqs",
        type=int,
        metavar="N",
        help="Requests that run together.  [default: 1]",
    ),
    option(
        "--mode",
        type=click.Choice(["request", "step"]),
        help="Run whole requests, or step by step: later ones join at once, and there are previews."
        "  [default: request]",
    ),
)

model_options: Decorator[Any] = together(
    option(
        "--model",
        metavar="NAME",
        help="Directory or hub id of a diffusers model, 'package.module:factory', 'shapes',"
        " 'synthetic', or 'random:FAMILY': random weights in the architecture of"
        f" {', '.join(FAMILIES)}.  [default: shapes]",
    ),
    engine_options,
)

setting_options: Decorator[Any] = together(
    option("--config", type=existing_file(), help="TOML file with settings of the engine."),
    option(
        "--set",
        "settings",
        type=Assignment(),
        multiple=True,
        help="Any setting of the engine, such as merge=false or model_options.variant=fp16.",
    ),
    option("-q", "--quiet", is_flag=True, help="Print names of files and errors only."),
    option("-v", "--verbose", is_flag=True, help="Tell the worker's traceback with an error."),
)
