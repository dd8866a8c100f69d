"""Calls that make another wave late are held back for a while."""

import pytest

from sidestream.workers.restraint import FIRST_HOLD, LATE_NS, LONGEST_HOLD, Restraint

CALL, OTHER = ("unet", "__call__"), ("vae", "decode")


@pytest.fixture
def restraint():
    return Restraint()


def held_for(restraint):
    count = 0
    while restraint.holds(CALL):
        restraint.note([CALL], 0)
        count += 1
    return count


def test_nothing_is_held_back_at_first(restraint):
    restraint.note([CALL], LATE_NS)
    assert not restraint.holds(CALL)


def test_what_was_late_is_held_back_for_so_many_calls(restraint):
    restraint.note([CALL], LATE_NS + 1)
    assert not restraint.holds(OTHER)
    restraint.note([OTHER], 0)
    assert held_for(restraint) == FIRST_HOLD


def test_each_time_for_twice_as_long_up_to_a_limit(restraint):
    holds = []
    while len(holds) < 3 or holds[-1] != holds[-2]:
        restraint.note([CALL], LATE_NS + 1)
        holds.append(held_for(restraint))
    assert holds[:3] == [FIRST_HOLD, 2 * FIRST_HOLD, 4 * FIRST_HOLD]
    assert holds[-1] == LONGEST_HOLD
