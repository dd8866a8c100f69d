"""What all tests share."""

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # to explain takes longer than all tests
)
settings.load_profile("repeatable")

# A shell that starts a job in the background has it ignore Ctrl-C, and all its children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Undo what the command line does to the level of the log, which is its process's business."""
    logger = logging.getLogger("sidestream")
    level = logger.level
    yield
    logger.setLevel(level)
