"""Programs run as processes: what they print, how they end, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import trio

_MARK = "SIDESTREAM_TEST_PROGRAM"


class Program:
    """A program under way; made by `run_program`."""

    def __init__(self, process: trio.Process, mark: str) -> None:
        self.process = process
        self.lines: list[str] = []
        self._mark = mark
        self._rest = b""
        self._stderr = b""
        self._read_all = trio.Event()

    async def next_line(self) -> str | None:
        """Read one line of its output; None at the end."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            chunk = await self.process.stdout.receive_some()
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        self.lines.append(line.decode())
        return self.lines[-1]

    async def read_until(self, word: str) -> str:
        """Read up to the line that begins with a word, and return it."""
        while (line := await self.next_line()) is not None:
            if line.split()[0] == word:
                return line
        raise AssertionError(f"it ended without {word!r}: {self.lines}\n{await self.stderr()}")

    async def stderr(self) -> str:
        """Return what it wrote on its standard error, once it has ended."""
        await self._read_all.wait()
        return self._stderr.decode()

    async def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        async with self.process.stderr:
            async for chunk in self.process.stderr:
                self._stderr += chunk
        self._read_all.set()

    def relatives(self) -> list[psutil.Process]:
        """Return what lives of it and of everything that it started."""
        return [process for process in psutil.process_iter() if self._is_relative(process)]

    def _is_relative(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(_MARK) == self._mark)
        except psutil.Error:  # somebody else's, a zombie, or gone meanwhile
            return False


@asynccontextmanager
async def run_program(path: Path, *arguments: str) -> AsyncIterator[Program]:
    """Run a Python program; whatever is left of it at the end of the block is killed."""
    mark = uuid.uuid4().hex
    process = await trio.lowlevel.open_process(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, _MARK: mark},
    )
    program = Program(process, mark)
    async with process.stdin, process.stdout, trio.open_nursery() as nursery:  # type: ignore
        nursery.start_soon(program._read_stderr)
        try:
            yield program
        finally:
            for relative in program.relatives():
                relative.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
