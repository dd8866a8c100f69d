"""``sidestream trace`` as a process that is interrupted: what it says, and what it leaves."""

import json
import re
import signal
import subprocess
import sys

import psutil
import pytest

from ..harness.trace_events import tracks_of

COMMAND = [sys.executable, "-m", "sidestream.engine", "trace", "--model", "synthetic", "-n", "900"]
SLOW = ["--set", "model_options.forward_ms=100", "--device", "cpu"]


def read_until(stream, pattern):
    """Read characters until they match a pattern."""
    seen = ""
    while not re.search(pattern, seen):
        character = stream.read(1)
        assert character, f"{pattern!r} did not come, but {seen!r}"
        seen += character


@pytest.mark.parametrize(
    ("executor", "number", "code", "moment"),
    [
        ("uni", signal.SIGINT, 130, "[2-9]/900 done"),
        ("mp", signal.SIGINT, 130, "[2-9]/900 done"),
        ("mp", signal.SIGTERM, 143, "[2-9]/900 done"),
        ("mp", signal.SIGINT, 130, "loading"),
    ],
)
def test_a_signal_ends_the_run_and_what_was_traced_is_written(
    tmp_path, executor, number, code, moment
):
    with subprocess.Popen(
        [*COMMAND, *SLOW, "--executor", executor],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            read_until(process.stderr, moment)
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            out, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    last = error.splitlines()[-1]
    assert re.fullmatch(r"sidestream: interrupted; \d+ of 900 outputs are complete", last)
    assert "Traceback" not in error
    assert not any(child.is_running() for child in family)
    if moment == "loading":
        assert out == ""
        assert list(tmp_path.iterdir()) == []
    else:
        assert out == "trace.json\n"
        tracks = tracks_of(json.loads((tmp_path / "trace.json").read_text()))
        assert sum(map(len, tracks["worker 0/forwards"])) >= 1
