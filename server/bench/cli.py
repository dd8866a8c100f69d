"""``sidestream bench serve``: its options, and what it prints."""

from __future__ import annotations

import json
from typing import IO, Any

import click
import trio

from ...engine.cli.arguments import read_prompts
from .arguments import FiniteRange, parse_key, parse_url, parsed
from .mix import Kind, parse_field, parse_mix
from .plan import Plan
from .report import Report
from .running import BenchSettings, run

EXAMPLES = """\b
Examples:
  sidestream bench serve --url http://127.0.0.1:8000 --concurrency 4
  sidestream bench serve --url http://127.0.0.1:8000 --rate 2 --mix "steps=4:7, steps=40:3"
  sidestream bench serve --url http://127.0.0.1:8000 --rate 2 --cancel 0.1 \\
      --param stream=true --param partial_images=2 --json results.json
"""

PROMPTS = (
    "a large red circle above a small blue square on a white background",
    "a small yellow star left of a large green triangle on a black background",
    "a large purple heart on a white background",
    "a small orange diamond below a large white circle on a blue background",
)
MOST_AT_A_TIME = 512
"""In an open loop, unless it is said: each is a connection, and processes may have 1024 files."""


@click.group()
def bench() -> None:
    """Measure what serves."""


@bench.command(epilog=EXAMPLES)
@click.option("--url", required=True, callback=parsed(parse_url), help="Of the server.")
@click.option(
    "--rate",
    type=FiniteRange(0, min_open=True),
    metavar="R",
    help="Requests per second, which come at random (Poisson) whatever the server does; latency"
    " counts from then.  [default: as answers come]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="C",
    help=f"Most requests at a time.  [default: 1, with --rate {MOST_AT_A_TIME}]",
)
@click.option(
    "--duration",
    type=FiniteRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds in which requests come.",
)
@click.option(
    "--mix",
    "kinds",
    callback=parsed(parse_mix),
    metavar="KINDS",
    help='Kinds of requests and their weights, such as "steps=4:7, steps=40 size=256x256:3".',
)
@click.option(
    "--param",
    "fields",
    multiple=True,
    callback=parsed(parse_field),
    metavar="NAME=VALUE",
    help="A field of all requests, such as stream=true; can be repeated.",
)
@click.option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
    help="Prompts, one a line, taken at random.  [default: some for the model 'shapes']",
)
@click.option(
    "--cancel",
    type=FiniteRange(0, 1),
    default=0.0,
    metavar="SHARE",
    help="Share of requests whose client leaves at a random time.",
)
@click.option(
    "--cancel-within",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds until it has left, if the answer is not there.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds for a request.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of all chance.")
@click.option(
    "--api-key",
    metavar="KEY",
    callback=parsed(parse_key),
    envvar="SIDESTREAM_API_KEY",
    help="Rather set SIDESTREAM_API_KEY: other users of the machine can read command lines.",
)
@click.option(
    "--json",
    "json_file",
    type=click.File("w", encoding="utf-8", lazy=False),
    help="Write the results here.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def serve(**options: Any) -> int:
    """Ask a server with the OpenAI Images API for pictures, and tell how long they take.

    Ctrl-C ends it early and prints what there is.
    """
    settings = settings_of(options)
    report, signal = trio.run(run, settings)
    click.echo(heading(report, settings))
    click.echo(report.table())
    if options["json_file"] is not None:
        write(report, settings, options["json_file"])
    return 0 if signal is None else 128 + signal


def settings_of(options: dict[str, Any]) -> BenchSettings:
    """Make the settings of a run from the options.

    Raises:
      click.UsageError: there are no prompts.
    """
    prompts = PROMPTS if options["file"] is None else read_prompts(options["file"])
    if not prompts:
        raise click.UsageError("-f: there is no prompt")
    rate = options["rate"]
    return BenchSettings(
        url=options["url"],
        api_key=options["api_key"],
        plan=Plan(
            kinds=options["kinds"] or [Kind()],
            prompts=prompts,
            fields=dict(options["fields"]),
            rate=rate,
            cancel=options["cancel"],
            cancel_within=options["cancel_within"],
            seed=options["seed"],
        ),
        duration=options["duration"],
        concurrency=options["concurrency"] or (1 if rate is None else MOST_AT_A_TIME),
        timeout=options["timeout"],
        quiet=options["quiet"],
    )


def heading(report: Report, settings: BenchSettings) -> str:
    """Say in two lines what was run."""
    plan = settings.plan
    kind = (
        f"{settings.concurrency} at a time"
        if plan.rate is None
        else f"{plan.rate:g} requests/s, at most {settings.concurrency} at a time"
    )
    late = ""
    if plan.rate is not None and report.late is not None:
        late = f"; sent late by {report.late['p50']:.3f} (p50), {report.late['max']:.3f} (max)"
    return (
        f"{settings.url}: {kind}, for {settings.duration:g} s, seed {plan.seed}\n"
        f"the last ended after {report.elapsed:.1f} s{late}; all times in seconds"
    )


def write(report: Report, settings: BenchSettings, file: IO[str]) -> None:
    """Write a report and what it is of.

    Raises:
      click.ClickException: the file does not take it.
    """
    plan = settings.plan
    head = {
        "url": settings.url,
        "rate": plan.rate,
        "concurrency": settings.concurrency,
        "duration": settings.duration,
        "timeout": settings.timeout,
        "seed": plan.seed,
        "fields": plan.fields,
        "mix": {kind.name: kind.weight for kind in plan.kinds},
        "cancel": plan.cancel,
        "cancel_within": plan.cancel_within,
    }
    try:
        file.write(json.dumps(head | report.as_dict(), indent=2) + "\n")
        file.flush()
    except OSError as error:
        raise click.ClickException(f"--json: {file.name}: {error.strerror}") from error
