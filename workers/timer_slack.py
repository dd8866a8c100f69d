"""How exactly a thread sleeps."""

import ctypes
import os

_PR_SET_TIMERSLACK = 29
_NANOSECONDS = 1_000


def sleep_exactly() -> None:
    """Let the calling thread's sleeps end within a microsecond of their time, where the system can
    do it: Linux lets others be late by 50, so as to wake up for several at once."""
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _NANOSECONDS, 0, 0, 0)
