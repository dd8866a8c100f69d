"""The host looks closely when a wait is likely to be over, and sleeps before."""

import time

import pytest

from sidestream.workers.lookout import Lookout


class Clock:
    """Time that passes when somebody sleeps, and a little at each look."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        self.looks = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds + 5e-6

    def wait(self, lookout, seconds):
        """Wait for so long; return by how much the end was noticed late, and how many looks it
        took."""
        end, self.looks = self.now + seconds, 0

        def over():
            self.looks += 1
            return self.now >= end

        lookout.wait(over)
        return self.now - end, self.looks


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize("seconds", [1e-4, 5e-3, 20e-3, 0.1, 2.0])
def test_a_wait_like_the_last_one_is_noticed_at_once(clock, seconds):
    lookout = Lookout()
    clock.wait(lookout, seconds)
    for factor in (1, 1.003, 0.998, 1.001):
        late, looks = clock.wait(lookout, seconds * factor)
        assert 0 <= late < 10e-6
        assert looks < 20_000


@pytest.mark.parametrize("last", [1e-4, 20e-3, 5.0])
@pytest.mark.parametrize("seconds", [1e-3, 50e-3, 1.0])
def test_another_wait_is_noticed_soon(clock, last, seconds):
    lookout = Lookout()
    clock.wait(lookout, last)
    late, _ = clock.wait(lookout, seconds)
    assert 0 <= late <= max(30e-6, 0.006 * seconds)


def test_a_long_wait_mostly_sleeps(clock):
    _, looks = clock.wait(Lookout(), 60.0)
    assert looks < 5000


def test_what_is_over_takes_no_sleep_and_is_not_remembered(clock):
    lookout = Lookout()
    clock.wait(lookout, 20e-3)
    before = clock.now
    clock.wait(lookout, 0)
    assert clock.now == before
    late, _ = clock.wait(lookout, 20e-3)
    assert late < 10e-6
