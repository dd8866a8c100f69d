"""`benchmarks/run_all.py`: tables of the documentation, from a record of a run."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("benchmark_record.json")
"""Of a quick run of the suite for a CPU; its figures mean nothing."""


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("run_all")


@pytest.fixture
def record():
    return json.loads(RECORD.read_text())


def regions(page):
    """Return what stands between the comments of each table."""
    found = re.findall(r"<!-- table: ([^>]*) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    return dict(found)


def cells(table):
    """Return the cells of a table in Markdown, without its header."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_tables_are_filled_from_a_record(run_all, record, tmp_path):
    names = [table.name for table in run_all.TABLES["cpu"]]
    page = "before\n" + "".join(
        f"<!-- table: {name} -->\nold {name}\n<!-- end -->\nbetween\n" for name in names
    )
    (tmp_path / "page.md").write_text(page)
    (tmp_path / "other.md").write_text("no table\n")
    run_all.fill_pages(record, tmp_path)
    filled = (tmp_path / "page.md").read_text()
    assert (tmp_path / "other.md").read_text() == "no table\n"
    assert re.sub(r"-->\n.*?\n<!-- end", "", filled, flags=re.DOTALL) == re.sub(
        r"-->\n.*?\n<!-- end", "", page, flags=re.DOTALL
    )
    for table in run_all.TABLES["cpu"]:
        text = regions(filled)[table.name]
        assert "old" not in text
        assert record["machine"]["commit"] in text
        rows = cells(text)
        assert len(rows) >= len(table.benchmarks)
        assert {len(row) for row in rows} == {len(table.header.split("|"))}
    run_all.fill_pages(record, tmp_path)
    assert (tmp_path / "page.md").read_text() == filled


def test_a_row_tells_what_was_measured(run_all, record):
    [table] = (table for table in run_all.TABLES["cpu"] if table.name == "cpu device path")
    first = record["tables"]["cpu device path"][0]
    [figures] = first["result"]
    row = cells(run_all.render(table, record))[0]
    assert row[0] == f"`{first['command'].removeprefix('benchmarks/bubble.py ')}`"
    assert row[1].startswith(f"{figures['requests_per_s']:,.1f} (")
    assert row[2] == f"{100 * figures['busy_frac']:.1f} %"
    assert row[3] == f"{figures['bubble_ms']['mean']:.3f}"
    figures["bad_outputs"] = 3
    assert "**3 outputs wrong**" in cells(run_all.render(table, record))[0][0]


@pytest.mark.parametrize("what", ["failed", "missing", "all"])
def test_a_table_stays_unless_all_of_its_benchmarks_have_run(run_all, record, what):
    runs = record["tables"]["cpu mix"]
    if what == "failed":
        runs[1] = {"command": runs[1]["command"], "error": "it broke"}
        assert run_all.failures(record) == [runs[1]]
    elif what == "missing":
        del runs[1]
    else:
        del record["tables"]["cpu mix"]
    page = "<!-- table: cpu mix -->\nold\n<!-- end -->\n"
    assert run_all.fill(page, record) == page


def test_the_pages_have_the_tables_that_there_are(run_all):
    known = {table.name for tables in run_all.TABLES.values() for table in tables}
    pages = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    assert set(regions(pages)) <= known
    assert pages.count("<!-- table: ") == pages.count("<!-- end -->") == len(regions(pages))


def test_a_benchmark_runs_and_is_recorded(run_all):
    benchmark = run_all.Benchmark("benchmarks/lanes.py", quick="--waves 2")
    run = run_all.run_one(benchmark, quick=True)
    assert run["command"] == "benchmarks/lanes.py --waves 2"
    [figures] = run["result"]
    assert figures["alone"]["us_per_tick"] > 0
    broken = run_all.run_one(run_all.Benchmark("benchmarks/lanes.py --waves many"), quick=False)
    assert "invalid int value" in broken["error"]


def test_objects_that_follow_one_another_are_told_apart(run_all):
    assert run_all._objects_in('{"a": 1}\n{\n "b": [2]}\n') == [{"a": 1}, {"b": [2]}]
    assert run_all._objects_in("") == []
