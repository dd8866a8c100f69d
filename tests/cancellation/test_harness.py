"""The tests of this folder would see a leak: each kind is made on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial

import pytest
import trio

from sidestream.engine import diffusion_engine, open_engine
from sidestream.engine.delivery import Claim
from sidestream.engine.executor import UniProcDiffusionExecutor
from sidestream.engine.ledger import ClaimLedger

from ..harness.checkpoints import Counts, cancel_at_every_step, family, own, whole_run
from ..harness.engines import synthetic
from ..harness.surroundings import assert_idle, assert_nothing_beyond, nothing_left, survey

SOON = 0.2


async def nothing() -> None:
    pass


@pytest.mark.parametrize("counts", [own, family, whole_run])
async def test_each_checkpoint_is_a_place_to_be_cancelled_at(counts: Counts) -> None:
    passed: list[int] = []

    async def scenario() -> None:
        passed.append(0)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
            passed[-1] += 1

    assert await cancel_at_every_step(scenario, nothing, counts=counts) == 5
    assert passed == [0, 1, 2, 3, 4, 5]


async def test_steps_of_children_count_where_they_should() -> None:
    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.lowlevel.checkpoint)

    assert await cancel_at_every_step(scenario, nothing, counts=own) == 1
    checkpoints_and_ends_of_children = 2 * 3
    steps = await cancel_at_every_step(scenario, nothing, counts=family)
    assert steps == 1 + checkpoints_and_ends_of_children


async def test_a_failing_check_tells_the_step() -> None:
    async def check() -> None:
        raise AssertionError("something is left")

    with pytest.raises(AssertionError) as caught:
        await cancel_at_every_step(trio.lowlevel.checkpoint, check, counts=own)
    assert caught.value.__notes__ == ["after a cancellation at step 1 (it came: True)"]


async def test_a_request_whose_exit_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(ClaimLedger):
        def leave(self, claim: Claim) -> None:
            pass

    monkeypatch.setattr(diffusion_engine, "ClaimLedger", Forgetful)
    async with open_engine(synthetic("uni"), warmup=False) as engine:
        with pytest.raises(trio.TooSlowError):
            await cancel_at_every_step(
                partial(engine.generate, "a"), partial(assert_idle, engine, SOON), counts=own
            )


async def test_a_slot_that_is_not_given_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wasteful(ClaimLedger):
        def leave(self, claim: Claim) -> None:
            super().leave(claim)
            self.loads[0].free_slots[:1] = []

    monkeypatch.setattr(diffusion_engine, "ClaimLedger", Wasteful)
    async with open_engine(synthetic("uni"), warmup=False) as engine:
        with pytest.raises(AssertionError, match=r"holds \{'cancel_slots_used': 1\}"):
            await cancel_at_every_step(
                partial(engine.generate, "a"), partial(assert_idle, engine, SOON), counts=own
            )


async def test_a_result_that_is_kept_is_seen() -> None:
    async with open_engine(synthetic("uni")) as engine:
        kept = await engine.generate("a", output_type="raw")
        with pytest.raises(AssertionError, match=r"'ring_bytes_held': \d+"):
            await assert_idle(engine, SOON)
        del kept
        await assert_idle(engine)


async def test_a_descriptor_that_is_left_is_seen() -> None:
    kept: list[int] = []

    class Careless(UniProcDiffusionExecutor):
        async def close(self, grace: float) -> None:
            if not self._closed:
                kept.append(os.dup(self._doorbell))
            await super().close(grace)

    with pytest.raises(AssertionError, match="eventfd"):
        async with nothing_left(), open_engine(synthetic(Careless)):
            pass
    os.close(kept.pop())


async def test_a_segment_that_is_left_is_seen() -> None:
    kept = []
    with pytest.raises(AssertionError, match="segments"):
        async with nothing_left(), open_engine(synthetic("uni")) as engine:
            kept.append(await engine.generate("a", output_type="raw"))
    kept.clear()


def test_threads_and_processes_that_are_left_are_seen() -> None:
    before = survey()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left behind")
    thread.start()
    with pytest.raises(AssertionError, match="left behind"):
        assert_nothing_beyond(before)
    go.set()
    thread.join()
    assert_nothing_beyond(before)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(AssertionError, match=f"{process.pid}"):
            assert_nothing_beyond(before)
        process.communicate(b"\n")
    assert_nothing_beyond(before)
