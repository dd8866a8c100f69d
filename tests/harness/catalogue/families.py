"""All entries."""

from __future__ import annotations

from . import (
    animate,
    cascades,
    dits,
    further,
    hunyuan,
    kandinsky,
    language,
    mmdit,
    newer,
    older,
    seeing,
    sound,
    stable,
    stable_xl,
    unconditional,
    various,
    video,
    wan,
    world,
)
from .entry import Entry

ENTRIES: list[Entry] = [
    *stable.ENTRIES,
    *stable_xl.ENTRIES,
    *mmdit.ENTRIES,
    *unconditional.ENTRIES,
    *dits.ENTRIES,
    *animate.ENTRIES,
    *wan.ENTRIES,
    *video.ENTRIES,
    *kandinsky.ENTRIES,
    *cascades.ENTRIES,
    *language.ENTRIES,
    *various.ENTRIES,
    *world.ENTRIES,
    *older.ENTRIES,
    *further.ENTRIES,
    *newer.ENTRIES,
    *hunyuan.ENTRIES,
    *sound.ENTRIES,
    *seeing.ENTRIES,
]
