"""The C core's own drivers under sanitizers, and its fuzz corpus: built and run by gcc."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "c"
DRIVERS = (
    "test_envelope",
    "test_payload",
    "test_segment",
    "test_wakeups",
    "test_interleavings",
)
UNFIT_ADDRESSES = "unexpected memory mapping"  # ThreadSanitizer, where addresses are too random


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build all drivers; nothing is done for those that are up to date."""
    make = ["make", "--silent", "-j2", "-C", str(FOLDER)]
    with (FOLDER / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        done = subprocess.run(make, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a driver and return what it printed."""
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("kind", ["asan", "tsan", "plain"])
def test_driver(kind: str, driver: str) -> None:
    path = FOLDER / "bin" / kind / driver
    done = run(path)
    if UNFIT_ADDRESSES in done.stderr and shutil.which("setarch"):
        done = run("setarch", "-R", path)
    assert done.returncode == 0, done.stderr


def test_corpus_and_its_mutants() -> None:
    corpus = sorted((FOLDER / "corpus").iterdir())
    assert len(corpus) > 40
    done = run(FOLDER / "bin/asan/fuzz_segment", *corpus)
    assert done.returncode == 0, done.stderr
