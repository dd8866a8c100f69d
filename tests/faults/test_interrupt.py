"""Ctrl-C at any moment of a program: it ends with KeyboardInterrupt, and takes everything along."""

from __future__ import annotations

import random
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from ..harness.programs import run_program
from ..harness.surroundings import PATIENCE

PROGRAM = Path(__file__).with_name("programs") / "telling.py"
LINES = 13
"""That the program prints at least, from its first words to "done"."""
READY = 4
"""The line that tells that the engine has started."""
NOISE = ("Exception ignored", "Error", "Warning", "Cancelled", "Group", "During handling", "Fatal")


def moments(executor: str) -> list[int]:
    """Draw ten moments: after which line of the program."""
    return sorted(random.Random(executor).sample(range(1, LINES + 1), 10))


@pytest.mark.parametrize(("mp", "uni"), [*zip(moments("mp"), moments("uni"), strict=True)])
async def test_ctrl_c(mp: int, uni: int) -> None:
    """Two programs at a time, since there are two cores."""
    # Python forgets what it was ended by when a thread that imports torch calls back into it.
    statuses = (1,) if uni < READY else ()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(interrupt, "mp", mp))
        nursery.start_soon(partial(interrupt, "uni", uni, statuses=statuses))


async def test_ctrl_c_again_while_it_is_closing() -> None:
    await interrupt("mp", LINES - 2, times=3)


async def interrupt(
    executor: str, line: int, *, times: int = 1, statuses: tuple[int, ...] = ()
) -> None:
    with trio.fail_after(6 * PATIENCE):
        async with run_program(PROGRAM, executor) as program:
            for _ in range(line):
                assert await program.next_line() is not None
            for _ in range(times):
                program.process.send_signal(signal.SIGINT)
            status, stderr = await program.process.wait(), await program.stderr()
            assert status in (-signal.SIGINT, *statuses), stderr
            assert program.relatives() == []
            assert stderr.startswith("Traceback"), stderr
            assert stderr.endswith("KeyboardInterrupt\n"), stderr
            # The second Ctrl-C may well come while the first one is on its way out.
            noise = NOISE if times == 1 else [word for word in NOISE if word != "During handling"]
            assert not any(word in stderr for word in noise), stderr
