"""`docs/settings.md` is what the dataclasses say."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "generate_settings.py"


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate_settings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.render()
