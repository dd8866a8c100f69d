"""Cancelling a scenario at each of its steps in turn, by counting instead of by time.

A step of a task ends at a checkpoint. The steps of the scenario's own task are its checkpoints, and
there are few of them. But every other task's step, one of the engine's, is a moment too at which
its caller may be cancelled; so the same can be done with the steps of all tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import trio
import trio.testing
from trio.lowlevel import Task

from .surroundings import PATIENCE

Scenario = Callable[[], Awaitable[object]]
Counts = Callable[[Task, Task], bool]
"""(a task, the scenario's task) -> whether its steps count."""


def own(task: Task, root: Task) -> bool:
    """Count the scenario's own steps."""
    return task is root


def family(task: Task, root: Task) -> bool:
    """Count its children's too."""
    while task is not root and task.parent_nursery is not None:
        task = task.parent_nursery.parent_task
    return task is root


def whole_run(task: Task, root: Task) -> bool:
    """Count all."""
    return True


class StepClock(trio.abc.Instrument):
    """Counts steps and cancels a scope after the n-th.

    Args:
      scope: what to cancel.
      at: after which step.
      counts: whether a task's steps count.
      on_cancel: called just before.
    """

    def __init__(
        self,
        scope: trio.CancelScope,
        at: int,
        counts: Callable[[Task], bool],
        on_cancel: Callable[[], None],
    ) -> None:
        self._scope = scope
        self._left = at
        self._counts = counts
        self._on_cancel = on_cancel
        self.fired = False

    def after_task_step(self, task: Task) -> None:
        if not self.fired and self._counts(task):
            self._left -= 1
            if self._left == 0:
                self.fired = True
                self._on_cancel()
                self._scope.cancel()


async def cancel_at_step(
    step: int,
    scenario: Scenario,
    *,
    counts: Counts,
    on_cancel: Callable[[], None] = lambda: None,
) -> bool:
    """Run a scenario in a task of its own and cancel it after a step; say whether it had so many.

    Args:
      step: the number of the step, from 1.
      scenario: what to run.
      counts: whose steps count.
      on_cancel: called just before the cancellation.
    """
    fired = False

    async def run() -> None:
        nonlocal fired
        root = trio.lowlevel.current_task()
        with trio.CancelScope() as scope:
            clock = StepClock(scope, step, lambda task: counts(task, root), on_cancel)
            trio.lowlevel.add_instrument(clock)
            try:
                with trio.fail_after(PATIENCE):
                    await scenario()
            finally:
                trio.lowlevel.remove_instrument(clock)
        fired = clock.fired

    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
    return fired


async def cancel_at_every_step(
    scenario: Scenario,
    check: Scenario,
    *,
    counts: Counts,
    on_cancel: Callable[[], None] = lambda: None,
    most: int | None = None,
) -> int:
    """Cancel a scenario after its first step, after its second, and so on, until it ends before.

    Args:
      scenario: what is run anew for each step.
      check: what must hold after each run, the cancelled ones and the whole one.
      counts, on_cancel: see `cancel_at_step`.
      most: stop after so many steps, where each one more takes long.

    Returns:
      How many runs were cancelled.
    """
    for step in itertools.count(1):
        if step - 1 == most:
            return most
        fired = await cancel_at_step(step, scenario, counts=counts, on_cancel=on_cancel)
        try:
            await check()
        except BaseException as error:
            error.add_note(f"after a cancellation at step {step} (it came: {fired})")
            raise
        if not fired:
            return step - 1
    raise AssertionError("unreachable")
