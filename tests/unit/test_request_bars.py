"""Bars of single requests: on a terminal only, a few at a time, gone when the request is."""

import io

import pytest

from sidestream.engine.cli.request_bars import LIMIT, RequestBars


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal():
    return Terminal()


def test_a_bar_says_who_how_far_and_how_long(terminal):
    bars = RequestBars(["a-cat-1", "a-dog-2"], terminal)
    bars.step(1, 6, 12, 5.6)
    bars.step(1, 7, 12, 4.0)
    bars.close()
    text = terminal.getvalue()
    assert "a-dog-2" in text
    assert " 50%" in text
    assert "6/12, 6 s left" in text
    assert "a-cat-1" not in text


def test_a_bar_does_without_a_total(terminal):
    bars = RequestBars(["a-cat-1"], terminal)
    bars.step(0, 6, None)
    bars.close()
    assert "6/?" in terminal.getvalue()


def test_a_long_label_keeps_its_ends(terminal):
    bars = RequestBars(["a-large-red-circle-on-a-black-background-123456"], terminal)
    bars.step(0, 1, 2)
    bars.close()
    assert "a-large-red-circl...round-123456 " in terminal.getvalue()


def test_there_are_only_so_many_and_their_lines_are_used_again(terminal):
    labels = [f"request-{index:02}" for index in range(LIMIT + 2)]
    bars = RequestBars(labels, terminal)
    for index in range(LIMIT + 1):
        bars.step(index, 1, 4)
    assert labels[LIMIT - 1] in terminal.getvalue()
    assert labels[LIMIT] not in terminal.getvalue()
    bars.done(LIMIT)
    bars.done(3)
    bars.step(LIMIT + 1, 1, 4)
    assert labels[LIMIT + 1] in terminal.getvalue()
    bars.step(LIMIT, 2, 4)
    assert labels[LIMIT] not in terminal.getvalue()
    bars.close()


@pytest.mark.parametrize(("file", "hidden"), [(io.StringIO(), False), (Terminal(), True)])
def test_nothing_is_drawn_where_nobody_looks(file, hidden):
    bars = RequestBars(["a"], file, hidden=hidden)
    bars.step(0, 1, 2)
    bars.done(0)
    bars.close()
    assert file.getvalue() == ""
