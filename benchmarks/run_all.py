"""Run the benchmarks one after the other, and write what they say into the documentation.

    python benchmarks/run_all.py                     # those that need no GPU: about 10 minutes
    python benchmarks/run_all.py --device cuda       # those that do
    python benchmarks/run_all.py --quick --json FILE # only to see whether they run
    python benchmarks/run_all.py --render FILE       # tables of a record that was made elsewhere

A full run records machine, versions, commit, commands and results in `benchmarks/results/`, then
fills the tables of `docs/` from that record; so no figure is copied by hand. A table keeps what it
has unless all of its benchmarks have run. Figures in `docs/images/` are drawn anew.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from suite import JSON_FILE, PICTURES, TABLES, Benchmark, Picture, Table

ROOT = Path(__file__).parents[1]
PATIENCE = 1800
"""Seconds that one benchmark may take."""

Record = dict[str, Any]


# -- running


def about_this_machine(device: str) -> Record:
    """Return where and with what is measured."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "device": _gpu_names() if device == "cuda" else "none",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "diffusers", "trio", "sidestream")},
        "commit": _commit(),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }


def _gpu_names() -> str:
    command = "import torch; print(torch.cuda.device_count(), 'x', torch.cuda.get_device_name())"
    return subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    ).stdout.strip()


def _commit() -> str:
    """Return the commit, marked if files differ from it; that of a copy of the tree, where git
    knows nothing, is in the variable COMMIT."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def run_one(benchmark: Benchmark, *, quick: bool) -> Record:
    """Run a benchmark and return its command, and its result or what went wrong."""
    command = f"{benchmark.command} {benchmark.quick if quick else ''}".strip()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        words = shlex.split(command.replace(JSON_FILE, str(file)))
        told = command.replace(f" --json {JSON_FILE}", "")
        print(f"python {told}", file=sys.stderr, flush=True)
        done = _run(words)
        text = file.read_text() if file.exists() else done.stdout
    if done.returncode:
        return {"command": told, "error": done.stderr[-2000:]}
    return {"command": told, "result": _objects_in(text)}


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _objects_in(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that follow one another in a text."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        item, end = decoder.raw_decode(text)
        found.append(item)
        text = text[end:]
    return found


def draw(picture: Picture, folder: Path) -> Record:
    """Draw a figure into a folder."""
    print(f"sidestream {picture.arguments} --png {picture.file}", file=sys.stderr, flush=True)
    place = ["--png", str(folder / picture.file), "--overwrite", "-q"]
    done = _run(["-m", "sidestream.engine", *shlex.split(picture.arguments), *place])
    return {"command": picture.arguments} | ({"error": done.stderr} if done.returncode else {})


def run_suite(device: str, *, quick: bool, only: str, save: Callable[[Record], None]) -> Record:
    """Run what belongs to a device; return the record.

    Args:
      only: a word that is in the names of the tables that are wanted.
      save: called with the record so far, after each benchmark: the machine may be taken away.
    """
    runs: dict[str, list[Record]] = {}
    pictures: list[Record] = []
    record: Record = {"suite": device, "quick": quick, "machine": about_this_machine(device)}
    record |= {"tables": runs, "pictures": pictures}
    for table in TABLES[device]:
        for benchmark in table.benchmarks if only in table.name else ():
            runs.setdefault(table.name, []).append(run_one(benchmark, quick=quick))
            save(record)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if quick else ROOT / "docs" / "images"
        for picture in PICTURES[device]:
            if only in picture.file:
                pictures.append(draw(picture, place))
                save(record)
    return record


def failures(record: Record) -> list[Record]:
    """Return what did not run to its end."""
    runs = [run for runs in record["tables"].values() for run in runs]
    return [run for run in (*runs, *record["pictures"]) if "error" in run]


# -- writing


def provenance(machine: Record) -> str:
    """Tell in a line what figures come from."""
    gpu = "no GPU" if machine["device"] == "none" else machine["device"]
    return (
        f"{machine['cores']} cores (load {machine['load']} before), {gpu}, Python"
        f" {machine['python']}, torch {machine['torch']}, commit {machine['commit']},"
        f" {machine['date']}."
    )


def render(table: Table, record: Record) -> str | None:
    """Return a table in Markdown; None unless each of its benchmarks has a result."""
    runs = record["tables"].get(table.name, [])
    if len(runs) < len(table.benchmarks) or any("error" in run for run in runs):
        return None
    header = [cell.strip() for cell in table.header.split("|")]
    rows = [row for run in runs for row in table.rows(run["command"], run["result"])]
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n{provenance(record['machine'])}"


def fill(page: str, record: Record) -> str:
    """Return a page with its tables replaced by those of a record, as far as it has them."""
    for table in TABLES[record["suite"]]:
        text = render(table, record)
        if text is not None:
            opening = re.escape(f"<!-- table: {table.name} -->")
            pattern = rf"({opening}\n).*?(\n<!-- end -->)"
            put = functools.partial(_between, text=text)
            page = re.sub(pattern, put, page, flags=re.DOTALL)
    return page


def _between(found: re.Match[str], text: str) -> str:
    return f"{found[1]}{text}{found[2]}"


def fill_pages(record: Record, folder: Path) -> None:
    """Fill the tables of every page of a folder."""
    for path in sorted(folder.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        filled = fill(page, record)
        if filled != page:
            path.write_text(filled, encoding="utf-8")


def main() -> None:
    """Run, record, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(TABLES), default="cpu")
    parser.add_argument(
        "--quick", action="store_true", help="short runs; no table is touched; needs --json"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="tables with it in their names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    parser.add_argument("--render", type=Path, metavar="FILE", help="run nothing: take this record")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.json:
        parser.error("--quick needs --json: short runs do not replace a record")
    if arguments.render:
        fill_pages(json.loads(arguments.render.read_text()), arguments.docs)
        return
    file = arguments.json or ROOT / "benchmarks" / "results" / f"{arguments.device}.json"

    def save(record: Record) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    record = run_suite(arguments.device, quick=arguments.quick, only=arguments.only, save=save)
    if not arguments.quick:
        fill_pages(record, arguments.docs)
    for run in failures(record):
        print(f"failed: {run['command']}\n{run['error']}", file=sys.stderr)
    sys.exit(bool(failures(record)))


if __name__ == "__main__":
    main()
