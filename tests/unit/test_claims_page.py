"""`docs/claims.md` is what the table says."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "generate_claims.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("generate_claims", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    assert script.PAGE.read_text(encoding="utf-8") == script.render()
    assert script.main(["--check"]) == 0


def test_a_stale_page_is_told_and_written_anew(script, tmp_path, capsys):
    script.PAGE = tmp_path / "claims.md"
    assert script.main(["--check"]) == 1
    assert "claims.md is stale" in capsys.readouterr().err
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    script.PAGE.write_text(script.render() + "\nadded by hand\n", encoding="utf-8")
    assert script.main(["--check"]) == 1
