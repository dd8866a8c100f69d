"""``sidestream serve`` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .http import GENERATIONS
from .surroundings import PATIENCE


class ServeProcess(subprocess.Popen[str]):
    """A server under way; made by `serving`."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        super().__init__(
            [sys.executable, "-m", "sidestream.engine", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).with_name("pipelines")),
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
        )
        self._errors = ""
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.stderr is not None
        self._errors = self.stderr.read()

    def end(self) -> tuple[int, str]:
        """Wait for its end and return its code and what it wrote on standard error."""
        code = self.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code, self._errors


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[ServeProcess]:
    """Run ``sidestream serve`` until the end of the block."""
    with ServeProcess(*arguments, **environment) as process:
        try:
            yield process
        finally:
            process.kill()
            process.end()


def url_told_by(process: ServeProcess) -> str:
    """Read the lines that say that it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("sidestream serves "), line
    url = line.split()[-1]
    assert url.startswith("http://127.0.0.1:")
    assert process.stdout.readline() == f"  {url}/ is a page to try it with\n"
    assert process.stdout.readline().startswith(f"  curl -s {url}{GENERATIONS} ")
    return url
