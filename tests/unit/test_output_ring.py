"""The size of the output ring: by configuration, by what a model makes, by what memory there is."""

from __future__ import annotations

import logging

import pytest

from sidestream.engine import EngineConfig, StartupError
from sidestream.engine.output_ring import (
    CEILING,
    FEW,
    GENEROUS,
    START,
    UNKNOWN,
    fitting,
    limit_of,
    start_of,
)

MEBIBYTE = 1 << 20
PLENTY = 1 << 40
AUTO = EngineConfig()
FIXED = EngineConfig(output_ring_bytes=128 * MEBIBYTE)


def test_the_default_is_auto():
    assert AUTO.output_ring_bytes == "auto"
    assert start_of(AUTO) == START
    assert start_of(FIXED) == 128 * MEBIBYTE


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (0, UNKNOWN),
        (1, START),
        (4 * MEBIBYTE, START),
        (6 * MEBIBYTE, 2 * 8 * 6 * MEBIBYTE),
        (50 * MEBIBYTE, GENEROUS),
        (100 * MEBIBYTE, 2 * FEW * 100 * MEBIBYTE),
        (1 << 34, CEILING),
    ],
)
def test_auto_follows_the_largest_output(largest, expected):
    assert fitting(AUTO, largest, limit_of(AUTO, PLENTY)) == expected


def test_more_outputs_on_their_way_need_more_room():
    waves = EngineConfig(executor="mp", max_num_seqs=8, dispatch_depth=3)
    assert fitting(waves, 6 * MEBIBYTE, CEILING) == 2 * 24 * 6 * MEBIBYTE
    one = EngineConfig(max_pending_outputs=1, dispatch_depth=1)
    assert fitting(one, 20 * MEBIBYTE, CEILING) == 2 * FEW * 20 * MEBIBYTE


def test_auto_takes_a_share_of_what_memory_there_is():
    assert limit_of(AUTO, PLENTY) == CEILING
    assert limit_of(AUTO, 1 << 30) == 1 << 28
    assert limit_of(EngineConfig(executor="mp", num_workers=2), 1 << 30) == 1 << 27
    assert limit_of(AUTO, 0) == START


def test_what_is_configured_stands(caplog):
    limit = limit_of(FIXED, PLENTY)
    assert limit == 128 * MEBIBYTE
    for largest in (0, 1, 32 * MEBIBYTE):
        assert fitting(FIXED, largest, limit) == limit
    assert not caplog.records


@pytest.mark.parametrize("workers", [1, 2])
def test_a_ring_for_which_there_is_no_memory_is_refused_by_name(workers):
    config = EngineConfig(executor="mp", num_workers=workers, output_ring_bytes=1 << 33)
    assert limit_of(config, workers << 33) == 1 << 33
    with pytest.raises(StartupError, match=r"output_ring_bytes: .*8\.0 GiB.*8\.0 GiB|16\.0 GiB"):
        limit_of(config, (workers << 33) - 1)


def test_outputs_that_do_not_fit_whole_are_told(caplog):
    with caplog.at_level(logging.WARNING, "sidestream"):
        fitting(FIXED, 33 * MEBIBYTE, 128 * MEBIBYTE)
    (record,) = caplog.records
    assert f"output_ring_bytes={4 * 33 * MEBIBYTE} would" in record.getMessage()
    assert "33.0 MiB" in record.getMessage()
