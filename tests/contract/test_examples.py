"""The examples of schedulers do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_shortest_request_ends_first() -> None:
    command = [sys.executable, str(EXAMPLES / "shortest_first.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [f"{steps} steps have ended" for steps in (2, 8, 30)]
