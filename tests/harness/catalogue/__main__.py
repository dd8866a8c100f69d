"""Run the catalogue and write what came of it: `python -m tests.harness.catalogue`."""

from __future__ import annotations

import argparse
import multiprocessing as mp
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .entry import Entry
from .examine import Report, examine
from .families import ENTRIES
from .surroundings import quiet

TIMEOUT = 240.0  # seconds for one entry


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen entries, each in a process of its own.

    Returns:
        The exit status: 1 if something went wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.harness.catalogue")
    parser.add_argument("--only", metavar="TEXT", nargs="*", help="classes whose name contains it")
    parser.add_argument("--group", nargs="*", help="modules of the catalogue")
    parser.add_argument("--page", type=Path, help="write the page to this file")
    options = parser.parse_args(arguments)
    quiet()
    chosen = [entry for entry in ENTRIES if _wanted(entry, options.only)]
    reports = []
    for entry in chosen:
        reports.append(_apart(entry))
        print(line(reports[-1]), flush=True)
    return int(any(report.broken or report.faults for report in reports))


def _wanted(entry: Entry, texts: Sequence[str] | None) -> bool:
    return not texts or any(text in entry.name for text in texts)


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


def _send(connection: mp.connection.Connection, entry: Entry) -> None:
    connection.send(asdict(examine(entry)))


def line(report: Report) -> str:
    """Return a report in one line of text, with what went wrong in further ones."""
    state = "cannot run" if report.broken else "WRONG" if report.faults else "right"
    text = (
        f"{report.name:48} {state:10} {report.seconds:5.1f} s  "
        f"{report.merged:3}/{report.calls:<3} merged, {report.distance:.0e}"
    )
    details = [report.broken] if report.broken else report.faults + report.refused
    return "\n".join([text, *(f"    {detail[:400]}" for detail in details)])


if __name__ == "__main__":
    sys.exit(main())
