"""`Mailbox`: who waits for the outcome alone is woken once; who waits for news by each."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from sidestream.engine.delivery import Mailbox


def tell_everything(mailbox: Mailbox) -> None:
    mailbox.start(0)
    mailbox.tell(1, 2)
    mailbox.pass_on(0, {})


async def test_news_does_not_wake_who_waits_for_the_outcome() -> None:
    mailbox = Mailbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.wait_settled, math.inf)
        await trio.testing.wait_all_tasks_blocked()
        for end in (False, True):
            if end:
                mailbox.deliver()
            else:
                tell_everything(mailbox)
            woken = trio.lowlevel.current_statistics().tasks_runnable
            assert woken == end
    assert (mailbox.started_on, mailbox.progress) == (0, (1, 2))
    assert await mailbox.wait_settled(math.inf)


@pytest.mark.parametrize("error", [None, RuntimeError("no")])
async def test_an_outcome_that_is_there_is_not_waited_for(error: Exception | None) -> None:
    mailbox = Mailbox()
    if error is None:
        mailbox.deliver()
    else:
        mailbox.fail(error)
    with trio.testing.assert_no_checkpoints():
        assert await mailbox.wait_settled(-math.inf)


async def test_a_deadline_ends_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    mailbox = Mailbox()
    assert not await mailbox.wait_settled(trio.current_time() + 5)
    assert trio.current_time() >= 5


async def test_after_a_cancelled_wait_news_is_waited_for_again() -> None:
    mailbox = Mailbox()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.wait_settled(math.inf)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.wait, math.inf)
        await trio.testing.wait_all_tasks_blocked()
        mailbox.tell(1, 2)
