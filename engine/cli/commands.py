"""The commands of ``sidestream``, their options and exit codes.

`arguments` reads the options, `painting` does the work.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import trio

from ..errors import ConfigError, RequestError, SidestreamError
from .arguments import advice, engine_config, read_prompts, requests_of
from .lazy import LazyGroup
from .options import model_options, option, prompt_options, sampling_options, setting_options
from .outcome import FAILURE, fail, one_line, report
from .painting import Painter
from .picture_files import PictureFiles

BAD_INPUT: Final = 2

EXAMPLES: Final = """\b
Examples:
  sidestream generate "a large red circle above a small blue square" -n 4
  sidestream generate -f prompts.txt -o out/ --executor mp --batch 4 --seed 1
  sidestream generate "a lighthouse" --model /models/sdxl --steps 28 --size 1024x1024
  sidestream generate "a lighthouse" --model /models/sdxl --lora ink=ink.safetensors
  sidestream generate "waves" --model /models/wan --arg num_frames=33 --format mp4
  sidestream generate -f prompts.txt --mode step --batch 4 --preview
  sidestream generate "a cat" --config engine.toml --set output_ring_bytes=1073741824
"""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("sidestream"), message="sidestream %(version)s")
def cli() -> None:
    """Serve diffusion models: pictures and video from torch/diffusers pipelines."""


@cli.command(epilog=EXAMPLES, no_args_is_help=True)
@prompt_options
@option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    help="Folder for the files.",
)
@option(
    "--format",
    "file_format",
    type=click.Choice(["png", "jpeg", "webp", "mp4"]),
    default="png",
    help="Kind of file; mp4 is for videos, and needs sidestream[video].",
)
@option(
    "--quality",
    type=click.IntRange(1, 100, clamp=False),
    metavar="1..100",
    default=90,
    help="Of JPEG, WebP and MP4.",
)
@option(
    "--fps",
    type=click.IntRange(1, 120),
    metavar="N",
    default=16,
    help="Frames per second of a video.",
)
@option(
    "-n",
    "count",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=1,
    help="Outputs for each prompt, of seeds that count up.",
)
@option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of each prompt's first output.  [default: random]",
)
@sampling_options
@model_options
@option(
    "--preview",
    is_flag=True,
    help="Show each output as it comes into being, in NAME.preview.png, which is replaced as better"
    " previews come and goes when the output is there. Needs --mode step.",
)
@option(
    "--preview-every",
    type=click.IntRange(1),
    metavar="N",
    help="The same, after every N steps.",
)
@setting_options
def generate(prompts: tuple[str, ...], **options: Any) -> int:
    """Make pictures or videos of PROMPTS and print the names of the files.

    Ctrl-C stops the model within one step, and once more at once; files that are complete stay.
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
    warning = advice(config, options["size"])
    if warning is not None and not options["quiet"]:
        click.echo(one_line(warning), err=True)
    files = PictureFiles(out, options["file_format"], options["quality"], options["fps"])
    painter = Painter(config, requests, files, quiet=options["quiet"])
    return report(trio.run(painter.run), verbose=options["verbose"])


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
