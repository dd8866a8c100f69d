"""The documentation leads somewhere: its links and the files that it names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = (
    *("engine", "ipc_ext", "postprocess", "server", "workers"),
    *("benchmarks", "docs", "examples", "tests"),
)
SOURCES = {".py", ".c", ".h", ".js"}
NOT_OURS = {"openapi.json", "trace.json", "engine.toml"}
"""Names of files that a program serves, writes or is given."""


@pytest.fixture(scope="module")
def names():
    """The names of all source files."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return {path.name for path in files if path.suffix in SOURCES}


def headings(page):
    """Return the anchors that a page has, as they are made of its headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page, names):
    for quoted in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        for name in re.findall(r"(?<![\w.])[\w./*-]+\.(?:py|c|h|js|json|toml)\b", quoted):
            path = name.lstrip("/")
            if path in NOT_OURS or path.startswith("."):
                continue
            known = any(ROOT.glob(path)) or ("/" not in path and path in names)
            assert known, quoted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_text_and_commands_are_there(page):
    path_in = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[\w/.*-]*[\w*]")
    for path in path_in.findall(page.read_text(encoding="utf-8")):
        assert any(ROOT.glob(path)), path
