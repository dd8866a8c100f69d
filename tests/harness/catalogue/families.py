"""All entries."""

from __future__ import annotations

from . import animate, dits, mmdit, stable, stable_xl, unconditional, wan
from .entry import Entry

ENTRIES: list[Entry] = [
    *stable.ENTRIES,
    *stable_xl.ENTRIES,
    *mmdit.ENTRIES,
    *unconditional.ENTRIES,
    *dits.ENTRIES,
    *animate.ENTRIES,
    *wan.ENTRIES,
]
