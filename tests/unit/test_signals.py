"""Signals: no wake-up is missed, none is seen twice, deadlines end waits."""

import pytest
import trio
import trio.testing

from sidestream.engine.signals import Signal


async def test_a_signal_given_before_the_wait_is_seen_once(autojump_clock):
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait()
    assert not await signal.wait(trio.current_time() + 1)


async def test_a_signal_wakes_the_waiter(nursery):
    signal = Signal()
    nursery.start_soon(signal.wait)
    await trio.testing.wait_all_tasks_blocked()
    signal.set()  # the nursery ends: the wait did


async def test_a_wait_ends_at_its_deadline(autojump_clock):
    began = trio.current_time()
    assert not await Signal().wait(began + 3)
    assert trio.current_time() == began + 3


async def test_a_deadline_that_is_over_loses_against_a_signal(autojump_clock):
    signal = Signal()
    signal.set()
    assert await signal.wait(trio.current_time() - 1)
    assert not await signal.wait(trio.current_time() - 1)


async def test_a_cancelled_wait_takes_no_signal_with_it(autojump_clock):
    signal = Signal()
    signal.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
        pytest.fail("a wait is a checkpoint")
    assert await signal.wait(trio.current_time())
