"""`run`: a load with its progress bar, until it is done or interrupted."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import trio
from tqdm import tqdm

from .client import open_client
from .load import Load
from .plan import Plan
from .report import Report

BAR = "{desc} {percentage:3.0f}%|{bar}|{postfix}, {remaining} left"
REFRESH_S = 0.2


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Everything that a run is made of.

    Args:
      url: of the server.
      api_key: None if it wants none.
      plan: what is asked for.
      duration: seconds in which requests come.
      concurrency: most requests at a time.
      timeout: seconds for a request.
      quiet: show no progress bar.
    """

    url: str
    api_key: str | None
    plan: Plan
    duration: float
    concurrency: int
    timeout: float
    quiet: bool = False


async def run(settings: BenchSettings) -> tuple[Report, signal.Signals | None]:
    """Run a load and report, also if SIGINT or SIGTERM ends it early.

    Returns:
      The report, and the signal if there was one.

    Raises:
      ConnectionError: there is no server, or none that would take requests.
    """
    received: list[signal.Signals] = []
    async with open_client(settings.url, settings.api_key) as client:
        await client.check()
        load = Load(
            client,
            settings.plan,
            duration=settings.duration,
            concurrency=settings.concurrency,
            timeout=settings.timeout,
        )
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_at, signals, nursery.cancel_scope, received)
                nursery.start_soon(_show, load, settings)
                await load.run()
                nursery.cancel_scope.cancel("all requests have ended")
        kinds = [kind.name for kind in settings.plan.kinds]
        report = Report.of(load.records, kinds, load.elapsed)
    return report, received[0] if received else None


async def _stop_at(
    signals: AsyncIterator[int], scope: trio.CancelScope, received: list[signal.Signals]
) -> None:
    async for number in signals:
        received.append(signal.Signals(number))
        scope.cancel("interrupted")


async def _show(load: Load, settings: BenchSettings) -> None:
    """Show how far it is, until cancelled."""
    tqdm.monitor_interval = 0  # no thread of its own
    bar: Any = tqdm(
        desc="asking",
        total=settings.duration,
        bar_format=BAR,
        disable=settings.quiet,
        file=sys.stderr,
        leave=False,
    )
    with bar:
        while True:
            counts = Counter(record.outcome for record in load.records)
            if load.elapsed >= settings.duration:
                bar.set_description("waiting for the last", refresh=False)
            told = f"{counts['completed']} completed, {counts['failed']} failed"
            bar.set_postfix_str(f"{told}, {counts['unfinished']} under way", refresh=False)
            bar.update(min(load.elapsed, settings.duration) - bar.n)
            await trio.sleep(REFRESH_S)
