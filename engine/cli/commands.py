"""The commands of ``sidestream``, their options and exit codes.

`arguments` reads the options, `painting` does the work.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
import trio

from ..errors import ConfigError, RequestError, SidestreamError
from .arguments import Assignment, Size, engine_config, read_prompts, requests_of
from .lazy import LazyGroup
from .painting import Outcome, Painter, one_line
from .picture_files import PictureFiles

FAILURE: Final = 1
BAD_INPUT: Final = 2

EXAMPLES: Final = """\b
Examples:
  sidestream generate "a large red circle above a small blue square" -n 4
  sidestream generate -f prompts.txt -o out/ --executor mp --batch 4 --seed 1
  sidestream generate "a lighthouse" --model /models/sdxl --steps 28 --size 1024x1024
  sidestream generate "waves" --model /models/wan --arg num_frames=33 --format mp4
  sidestream generate -f prompts.txt --mode step --batch 4 --preview
  sidestream generate "a cat" --config engine.toml --set output_ring_bytes=1073741824
"""

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("sidestream"), message="sidestream %(version)s")
def cli() -> None:
    """Serve diffusion models: pictures and video from torch/diffusers pipelines."""


def _option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    return click.option(*names, show_default=settings.get("default") is not None, **settings)


def _file(**settings: Any) -> click.Path:
    return click.Path(exists=True, dir_okay=False, path_type=Path, **settings)


@cli.command(epilog=EXAMPLES, no_args_is_help=True)
@click.argument("prompts", nargs=-1)
@_option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
    help="Read prompts, one a line; '-': standard input.",
)
@_option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    help="Folder for the files.",
)
@_option(
    "--format",
    "file_format",
    type=click.Choice(["png", "jpeg", "webp", "mp4"]),
    default="png",
    help="Kind of file; mp4 is for videos, and needs sidestream[video].",
)
@_option(
    "--quality",
    type=click.IntRange(1, 100, clamp=False),
    metavar="1..100",
    default=90,
    help="Of JPEG, WebP and MP4.",
)
@_option(
    "--fps",
    type=click.IntRange(1, 120),
    metavar="N",
    default=16,
    help="Frames per second of a video.",
)
@_option(
    "-n",
    "count",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=1,
    help="Outputs for each prompt, of seeds that count up.",
)
@_option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of each prompt's first output.  [default: random]",
)
@_option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Denoising steps.  [default: the model's]",
)
@_option("--size", type=Size(), help="In pixels, or one number for a square.")
@_option("--guidance", type=float, metavar="X", help="Guidance scale.  [default: the model's]")
@_option("--negative-prompt", metavar="TEXT", help="What to keep away from.")
@_option("--image", type=_file(), help="Picture to start from, for models that take one.")
@_option(
    "--arg",
    "arguments",
    type=Assignment(),
    multiple=True,
    help="Further argument of the pipeline, such as num_frames=33.",
)
@_option(
    "--model",
    metavar="NAME",
    help="Directory or hub id of a diffusers model, 'package.module:factory', 'shapes',"
    " 'random:FAMILY' or 'synthetic'.  [default: shapes]",
)
@_option(
    "--executor",
    metavar="NAME",
    help="'uni': in this process; 'mp': in worker processes.  [default: uni]",
)
@_option("--device", metavar="NAME", help="'cpu', 'cuda' or 'cuda:1'.  [default: auto]")
@_option("--dtype", metavar="NAME", help="Of the weights: 'fp32', 'bf16' or 'fp16'.")
@_option("--num-workers", type=int, metavar="N", help="Workers, each with the whole model.")
@_option(
    "--batch",
    "max_num_seqs",
    type=int,
    metavar="N",
    help="Requests that run together.  [default: 1]",
)
@_option(
    "--mode",
    type=click.Choice(["request", "step"]),
    help="Run whole requests, or step by step: later ones join at once, and there are previews."
    "  [default: request]",
)
@_option(
    "--preview",
    is_flag=True,
    help="Show each output as it comes into being, in NAME.preview.png, which is replaced as better"
    " previews come and goes when the output is there. Needs --mode step.",
)
@_option(
    "--preview-every",
    type=click.IntRange(1),
    metavar="N",
    help="The same, after every N steps.",
)
@_option("--config", type=_file(), help="TOML file with settings of the engine.")
@_option(
    "--set",
    "settings",
    type=Assignment(),
    multiple=True,
    help="Any setting of the engine, such as merge=false or model_options.variant=fp16.",
)
@_option("-q", "--quiet", is_flag=True, help="No progress bar.")
@_option("-v", "--verbose", is_flag=True, help="Tell the worker's traceback with an error.")
def generate(prompts: tuple[str, ...], **options: Any) -> int:
    """Make pictures or videos of PROMPTS and print the names of the files.

    Ctrl-C stops the model within one step; files that are complete stay.
    """
    if not options["verbose"]:
        logging.getLogger("sidestream").setLevel(logging.ERROR)
    config = engine_config(options)
    prompts = (*prompts, *read_prompts(options["file"] or ()))
    if not prompts:
        raise click.UsageError("there is no prompt: give some, or -f FILE")
    requests = requests_of(prompts, options)
    out: Path = options["out"]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"-o: {error}") from error
    files = PictureFiles(out, options["file_format"], options["quality"], options["fps"])
    painter = Painter(config, requests, files, quiet=options["quiet"])
    return report(trio.run(painter.run), len(requests), verbose=options["verbose"])


def report(outcome: Outcome, count: int, *, verbose: bool) -> int:
    """Tell what went wrong, unless `Painter` has told it already, and return the exit status.

    Raises:
      Exception: what ended the batch.
    """
    if verbose:
        for error in (*outcome.failed, outcome.fatal):
            if error is not None:
                click.echo("\n".join((str(error), *getattr(error, "__notes__", ()))), err=True)
    if outcome.signal is not None:
        code = 128 + outcome.signal
        fail(f"interrupted; {outcome.painted} of {count} outputs are complete", code)
    if outcome.fatal is not None:
        raise outcome.fatal
    return FAILURE if outcome.failed else 0


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong in one line and exit."""
    click.echo(one_line(message), err=True)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 (failure), 2 (bad input), 130 (Ctrl-C), 143 (SIGTERM)."""
    for library in ("TRANSFORMERS", "DIFFUSERS"):  # in worker processes, too
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    try:
        code = cli.main(arguments, prog_name="sidestream", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(BAD_INPUT)
    except click.ClickException as error:
        fail(error.format_message(), error.exit_code)
    except (ConfigError, RequestError) as error:
        fail(str(error), BAD_INPUT)
    except (SidestreamError, OSError, ValueError) as error:
        fail(str(error), FAILURE)
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted", 128 + signal.SIGINT)
    sys.exit(code or 0)
