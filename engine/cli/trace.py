"""``sidestream trace``: its options, and the files that it writes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import trio

from ...postprocess import OUTPUT_TYPES
from ..chrome_trace import chrome_trace
from ..config import EngineConfig
from ..request import DiffusionRequest
from ..trace import RequestTrace
from .arguments import engine_config, read_prompts, requests_of
from .options import model_options, option, prompt_options, sampling_options, setting_options
from .outcome import report
from .run_summary import summarize
from .tracing import Run, Tracer, ways_to_compare

EXAMPLES = """\b
Examples:
  sidestream trace --executor mp
  sidestream trace "a lighthouse" -n 40 --model /models/sdxl --mode step --batch 4
  sidestream trace --compare --png timeline.png --model synthetic --executor mp
\b
The JSON file opens in https://ui.perfetto.dev, where it stays on your machine.
"""

PROMPT = "a large red circle"
NO_PICTURES = {"file_format": "png", "preview": False, "preview_every": None}
"""What `generate` is told of the files that it writes."""

Traces = Mapping[str, Sequence[RequestTrace]]


def _new_file() -> click.Path:
    return click.Path(dir_okay=False, path_type=Path)


@click.command(epilog=EXAMPLES)
@prompt_options
@option(
    "-o",
    "--out",
    type=_new_file(),
    metavar="FILE",
    help="Trace events as JSON, for Perfetto and chrome://tracing.  [default: trace.json, unless"
    " there is --png]",
)
@option(
    "--png",
    type=_new_file(),
    metavar="FILE",
    help="A picture of forwards, copies and the bubbles between; needs sidestream[trace].",
)
@option("--overwrite", is_flag=True, help="Replace files that exist.")
@option(
    "--compare",
    is_flag=True,
    help="Run the requests three times: one after the other; several at a time; the same with"
    " dispatch_depth 2 instead of 1.",
)
@option(
    "-n",
    "count",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=12,
    help="Requests for each prompt, of seeds that count up.",
)
@option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=4,
    help="Requests that are submitted and not answered yet, at any time.",
)
@option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Seed of each prompt's first request.",
)
@option(
    "--output-type",
    type=click.Choice(OUTPUT_TYPES),
    default="uint8",
    help="What outputs are made into.",
)
@sampling_options
@model_options
@setting_options
def trace(prompts: tuple[str, ...], **options: Any) -> int:
    """Run requests and record when each one's phases took place.

    Figures of each run are printed on stderr, unless -q, and names of files on stdout. Ctrl-C ends
    the run; what has been recorded until then is written.
    """
    if not options["verbose"]:
        logging.getLogger("sidestream").setLevel(logging.ERROR)
    files = _files(options)
    options |= NO_PICTURES
    requests = _requests(prompts, options)
    runs = _runs(engine_config(options), options)
    tracer = Tracer(runs, requests, quiet=options["quiet"])
    trio.run(tracer.run)
    traces = {name: run for name, run in tracer.traces.items() if run}
    if traces and tracer.outcome.fatal is None:
        for name, run in traces.items():
            if not options["quiet"]:
                click.echo(f"{name or 'traced'}: {summarize(run)}", err=True)
        for path, write in files.items():
            write(traces, path)
            click.echo(path)
    return report(tracer.outcome, verbose=options["verbose"])


def _requests(prompts: Sequence[str], options: Mapping[str, Any]) -> list[DiffusionRequest]:
    """Make the requests; their ids count up and tell their prompts."""
    prompts = (*prompts, *read_prompts(options["file"] or ()))
    if options["file"] is not None and not prompts:
        raise click.UsageError("there is no prompt in the file")
    return [
        dataclasses.replace(
            request,
            request_id=f"{number}: {request.prompt}"[:80],
            sampling=dataclasses.replace(request.sampling, output_type=options["output_type"]),
        )
        for number, request in enumerate(requests_of(prompts or [PROMPT], options), 1)
    ]


def _runs(config: EngineConfig, options: Mapping[str, Any]) -> dict[str, Run]:
    concurrency = options["concurrency"]
    room = max(concurrency, config.max_queued_requests)
    config = EngineConfig.load(config, max_queued_requests=room)
    if options["compare"]:
        return ways_to_compare(config, concurrency)
    return {"": Run(config, concurrency)}


# -- files


def _files(options: Mapping[str, Any]) -> dict[Path, Callable[[Traces, Path], None]]:
    """Return what is to be written where, once it is sure that nothing speaks against it.

    Raises:
      click.ClickException: there is such a file, there is no such folder, or matplotlib is missing.
    """
    out, png = options["out"], options["png"]
    if out and png and os.path.realpath(out) == os.path.realpath(png):
        raise click.UsageError("-o and --png name the same file")
    files: dict[Path, Callable[[Traces, Path], None]] = {}
    if png is not None:
        files[png] = _figure_writer()
    if out is not None or not files:
        files[out or Path("trace.json")] = _write_json
    for path in files:
        if path.exists() and not options["overwrite"]:
            raise click.UsageError(f"{path} exists; choose another name, or --overwrite")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise click.UsageError(f"{path} cannot be written: no folder that can be written to")
    return files


def _figure_writer() -> Callable[[Traces, Path], None]:
    try:
        from .timeline_figure import draw_timeline
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sidestream"):
            raise
        raise click.ClickException(
            f"--png needs the extra: pip install 'sidestream[trace]' ({error})"
        ) from error
    return draw_timeline


def _write_json(traces: Traces, path: Path) -> None:
    path.write_text(json.dumps(chrome_trace(traces)) + "\n", encoding="utf-8")
