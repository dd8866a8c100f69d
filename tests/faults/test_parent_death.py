"""The engine's process dies: its worker goes with it, at whatever moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from ..harness.programs import run_program
from ..harness.surroundings import PATIENCE

PROGRAM = Path(__file__).with_name("programs") / "telling.py"


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("launched", signal.SIGKILL),
        ("ready", signal.SIGKILL),
        ("progress", signal.SIGKILL),
        ("closing", signal.SIGKILL),
        ("kept", signal.SIGTERM),
    ],
)
async def test_the_worker_goes_too(moment: str, number: signal.Signals) -> None:
    with trio.fail_after(6 * PATIENCE):
        async with run_program(PROGRAM, "mp") as program:
            launched = await program.read_until("launched")
            pid = int(launched.split()[1])
            worker = os.pidfd_open(pid)
            assert {program.process.pid, pid} == {one.pid for one in program.relatives()}
            if moment != "launched":
                await program.read_until(moment)
            killed = trio.current_time()
            program.process.send_signal(number)
            assert await program.process.wait() == -number
            await trio.lowlevel.wait_readable(worker)
            print(f"{number.name} at {moment!r}: {1000 * (trio.current_time() - killed):.0f} ms")
            os.close(worker)
            assert program.relatives() == []
