"""The programs that the README shows run as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import trio

from sidestream.engine import generate

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
AROUND = """\
import trio
from sidestream.engine import *
from PIL import Image

async def main():
{}
trio.run(main)
"""
"""What the README says of the later ones: where they stand, and after which imports."""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_what_it_shows_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = BLOCKS[number]
    program = shown if number == 0 else AROUND.format(textwrap.indent(shown, "    "))
    exec(compile(program, str(README), "exec"), {})
    saved = set(re.findall(r'save\("(.*?)"\)', shown))
    made = {path.name for path in tmp_path.iterdir()}
    assert made <= saved
    assert saved - made <= {"preview.png"}, "previews may be left out"
    if "print(event)" in shown:
        told = capsys.readouterr().out
        for event in ("Queued", "Started", "Progress", "Completed"):
            assert f"{event}(" in told


def test_a_run_in_one_line() -> None:
    one, two = trio.run(generate, {"executor": "mp"}, ["a red circle", "a blue star"])
    assert one.output.size == two.output.size == (128, 128)
