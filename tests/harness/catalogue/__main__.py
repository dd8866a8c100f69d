"""Run the catalogue and write what came of it: `python -m tests.harness.catalogue`."""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import multiprocessing.connection
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .entry import Entry
from .examine import Report, examine
from .families import ENTRIES
from .page import render
from .surroundings import quiet

PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"
TIMEOUT = 300.0  # seconds for one entry


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen entries, each in a process of its own.

    Returns:
        The exit status: 1 if a pipeline that runs plainly went wrong in lanes.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.harness.catalogue")
    parser.add_argument("--only", metavar="TEXT", nargs="+", help="classes whose name contains it")
    parser.add_argument(
        "--results",
        metavar="FILE",
        type=Path,
        help="keep results in this file, and write the page from all that it holds",
    )
    options = parser.parse_args(arguments)
    quiet()
    chosen = [entry for entry in ENTRIES if _wanted(entry, options.only)]
    reports = _load(options.results)
    for entry in chosen:
        reports[entry.name] = _apart(entry)
        print(line(reports[entry.name]), flush=True)
        _save(options.results, reports)
    if options.results or not options.only:
        PAGE.write_text(render(reports.values()), encoding="utf-8")
    return int(any(reports[entry.name].faults for entry in chosen))


def _wanted(entry: Entry, texts: Sequence[str] | None) -> bool:
    return not texts or any(text in entry.name for text in texts)


def _load(path: Path | None) -> dict[str, Report]:
    if path is None or not path.exists():
        return {}
    known = {entry.name for entry in ENTRIES}
    kept = (Report(**fields) for fields in json.loads(path.read_text(encoding="utf-8")))
    return {report.name: report for report in kept if report.name in known}


def _save(path: Path | None, reports: dict[str, Report]) -> None:
    if path is not None:
        path.write_text(json.dumps([asdict(r) for r in reports.values()]), encoding="utf-8")


def _apart(entry: Entry) -> Report:
    """Examine an entry in a forked process, which may crash or hang."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, entry))
    process.start()
    theirs.close()
    report = Report(entry.name, broken=f"no result within {TIMEOUT:.0f} s")
    try:
        if ours.poll(TIMEOUT):
            report = Report(**ours.recv())
    except EOFError:
        report.broken = "the process died"
    process.kill()
    process.join()
    return report


def _send(connection: multiprocessing.connection.Connection, entry: Entry) -> None:
    connection.send(asdict(examine(entry)))


def line(report: Report) -> str:
    """Return a report in one line of text, with what went wrong in further ones."""
    state = "not run" if report.broken else "WRONG" if report.faults else "right"
    text = (
        f"{report.name:48} {state:8} {report.seconds:5.1f} s  "
        f"{report.merged:3} of {report.calls:3} calls merged, moved by {report.distance:.0e}"
    )
    reasons = [f"{path}: {why}" for path, why in report.unmerged.items()]
    details = [report.broken] if report.broken else report.faults + reasons
    return "\n".join([text, *(f"    {detail[:400]}" for detail in details)])


if __name__ == "__main__":
    sys.exit(main())
