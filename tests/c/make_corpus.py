"""Write `corpus/`: one file for each way in which a peer could lie that we thought of.

Run it after a change of the shared structures, and commit what it writes. The format of the files
is in `fuzz_segment.c`; the numbers follow `segment.h`, `envelope_ring.h` and `payload_ring.h`.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack

CORPUS = Path(__file__).parent / "corpus"
HEADER, ENVELOPES, PAYLOADS = b"\0", b"\1", b"\2"  # what a file attacks

MAGIC, VERSION, PAGE = 0x6D72747365646973, 1, 4096
LARGEST = (1 << 64) - 1

# -- a header: magic, version, bytes, layout (5), offsets (7)

LAYOUT = (64, 128, 4 * PAGE, 4 * PAGE, 8)
OFFSETS = tuple(page * PAGE for page in (1, 2, 3, 4, 5, 9, 10))
GOOD = (MAGIC, VERSION, 14 * PAGE, *LAYOUT, *OFFSETS)


def header(*words: int, pages: int = 14) -> bytes:
    """Return a file: a memory of so many pages that begins with these words."""
    return HEADER + pack("<H", pages - 1) + pack(f"<{len(words)}Q", *words)


def with_word(index: int, value: int) -> bytes:
    """Return the good header with one word replaced."""
    return header(*GOOD[:index], value, *GOOD[index + 1 :])


HEADERS = {
    "good": header(*GOOD),
    "empty": HEADER,
    "short": header(*GOOD[:2]),
    "magic": with_word(0, MAGIC ^ 1),
    "version": with_word(1, 2),
    "bytes": with_word(2, LARGEST),
    "mapping-too-small": header(*GOOD, pages=13),
    "submissions-not-a-power": with_word(3, 96),
    "submissions-huge": with_word(3, 1 << 63),
    "inputs-zero": with_word(5, 0),
    "inputs-overflow": with_word(5, LARGEST),
    "outputs-unsettled": with_word(6, PAGE + 1),
    "outputs-overflow": with_word(6, LARGEST - PAGE),
    "slots-overflow": with_word(7, 1 << 61),
    "offset-outside": with_word(14, 1 << 40),
    "offset-overlap": with_word(9, PAGE),
    "cursors": header(*GOOD) + bytes(2 * PAGE - 8 * len(GOOD)) + pack("<Q", LARGEST),
}

# -- an envelope ring: word 0 is the head, word 8 the tail, data begins at word 32

DRAIN, WAIT, USED = b"\1", b"\3", b"\4"


def poke(word: int, value: int) -> bytes:
    """Return the step in which the peer overwrites a word of shared memory."""
    return b"\0" + pack("<HQ", word, value)


def push(length: int) -> bytes:
    """Return the step in which we push a frame."""
    return b"\2" + pack("<B", length)


ENVELOPE_RINGS = {
    "honest": (push(10) + push(0) + DRAIN + WAIT + USED) * 20,
    "full": push(100) * 3 + USED + DRAIN + push(200) + push(255) + DRAIN,
    "length-beyond-frame": push(8) + poke(32, 9) + DRAIN,
    "length-of-the-ring": push(8) + poke(32, 256) + DRAIN,
    "length-wraps-32-bits": push(8) + poke(32, (1 << 32) + 8) + DRAIN,
    "length-wraps-64-bits": push(8) + poke(32, LARGEST) + DRAIN,
    "length-rounds-to-zero": push(8) + poke(32, LARGEST - 6) + DRAIN,
    "second-length": push(8) + push(8) + poke(34, 1 << 20) + DRAIN + DRAIN,
    "head-too-far": poke(0, 264) + DRAIN + WAIT + USED,
    "head-behind": push(8) + DRAIN + poke(0, 0) + DRAIN + USED,
    "head-unaligned": poke(0, 3) + DRAIN + USED,
    "head-without-frames": poke(0, 256) + DRAIN + DRAIN + USED,
    "tail-beyond-head": push(100) * 2 + poke(8, 1 << 50) + push(100) + USED,
    "tail-unaligned": push(100) * 2 + poke(8, 5) + push(100) + DRAIN,
    "bells": poke(16, LARGEST) + push(1) + poke(24, LARGEST) + DRAIN,
}

# -- a payload table: word 0 is `used`, word 8 the bell, slot n is words 16 + 2n (tag) and 17 + 2n

OURS = b"\1"  # the handle of generation 1


def reserve(nbytes: int) -> bytes:
    """Return the step in which we reserve."""
    return b"\1" + pack("<H", nbytes)


def forged(offset: int, generation: int, nbytes: int) -> bytes:
    """Return a handle that the peer made up."""
    return b"\xff" + pack("<3Q", offset, generation, nbytes)


def use(handle: bytes) -> bytes:
    """Return the steps that do everything with a handle."""
    return b"".join(step + handle for step in (b"\2", b"\3", b"\5", b"\4")) + b"\6"


PAYLOAD_RINGS = {
    "honest": (reserve(5000) + use(OURS)) * 8,
    "full": reserve(16384) * 5 + use(OURS) + reserve(1),
    "too-large": reserve(16385) + b"\6",
    "forged-offset": reserve(100) + use(forged(1 << 63, 1, 100)),
    "forged-unaligned": reserve(100) + use(forged(1, 1, 100)),
    "forged-end": reserve(100) + use(forged(16 * PAGE, 1, 0)),
    "forged-nbytes": reserve(100) + use(forged(0, 1, LARGEST)),
    "forged-sum-overflows": reserve(100) + use(forged(LARGEST - PAGE + 1, 1, PAGE)),
    "forged-generation-0": use(forged(0, 0, 0)),
    "forged-generation-wraps": reserve(100) + use(forged(0, 1 + (1 << 62), 100)),
    "slot-made-large": reserve(100) + poke(17, LARGEST) + use(forged(0, 1, LARGEST)),
    "slot-reaches-out": poke(47, 5000) + poke(46, 6) + use(forged(15 * PAGE, 1, 5000)),
    "released-too-early": reserve(9000) * 2 + poke(16, 4) + reserve(9000) + reserve(9000),
    "tags-of-nobody": b"".join(poke(16 + 2 * n, LARGEST) for n in range(16)) + reserve(1) * 9,
    "used-lies": poke(0, LARGEST) + b"\6" + reserve(100) + use(OURS) + poke(0, 0) + b"\6",
    "bell": poke(8, LARGEST) + reserve(100) + use(OURS),
}


def main() -> None:
    """Write all files."""
    CORPUS.mkdir(exist_ok=True)
    for kind, prefix, files in (
        ("header", b"", HEADERS),
        ("envelope", ENVELOPES, ENVELOPE_RINGS),
        ("payload", PAYLOADS, PAYLOAD_RINGS),
    ):
        for name, body in files.items():
            (CORPUS / f"{kind}-{name}").write_bytes(prefix + body)


if __name__ == "__main__":
    main()
