"""Outputs from pieces: whole ones are not copied, cut ones are gathered, nothing stays leased."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sidestream.engine.assembly import OutputAssembly
from sidestream.engine.claims import ProtocolError

from .fakes import FakePayloads, piece_of

ARRAY = np.arange(12, dtype=np.int16).reshape(3, 4)


class Source:
    """Payloads, as an assembly wants them."""

    def __init__(self):
        self.payloads = FakePayloads()
        self.assembly = OutputAssembly()

    def lease(self, piece):
        return self.payloads.lease(piece.handle)

    def release(self, piece):
        self.payloads.release(piece.handle)

    def add(self, name, array, start=0, end=None, *, last=True):
        self.assembly.add(piece_of(self.payloads, name, array, start, end), self, last=last)


@pytest.fixture
def source():
    return Source()


def test_a_whole_tensor_is_the_memory_itself(source):
    source.add("images", ARRAY)
    array = source.assembly.tensors()["images"].numpy()
    np.testing.assert_array_equal(array, ARRAY)
    source.assembly.drop()
    assert source.payloads.held == 1  # the array is the ring's memory still
    del array
    assert source.payloads.held == 0


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_pieces_are_gathered_and_given_back_one_by_one(sizes):
    source = Source()
    array = np.arange(sum(sizes), dtype=np.uint8)
    start = 0
    for size in sizes:
        source.add("frames", array, start, start + size)
        start += size
        assert (source.payloads.held, source.payloads.lying) == (0, 0)
    np.testing.assert_array_equal(source.assembly.tensors()["frames"].numpy(), array)


def test_an_output_that_is_not_complete_holds_no_room(source):
    source.add("images", ARRAY, last=False)
    assert (source.payloads.held, source.payloads.lying) == (0, 0)
    np.testing.assert_array_equal(source.assembly.tensors()["images"].numpy(), ARRAY)


def test_several_tensors_side_by_side(source):
    source.add("frames", ARRAY, 0, 8)
    source.add("empty", np.zeros((0, 3), np.float32))
    source.add("scalar", np.array(7, np.int64))
    source.add("frames", ARRAY, 8, 24)
    tensors = source.assembly.tensors()
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "empty": (0, 3),
        "scalar": (),
        "frames": (3, 4),
    }
    np.testing.assert_array_equal(tensors["frames"].numpy(), ARRAY)


def test_an_output_that_is_not_complete_is_refused(source):
    source.add("frames", ARRAY, 0, 8)
    with pytest.raises(ProtocolError, match="ended before frames was complete"):
        source.assembly.tensors()


OTHER = ARRAY.reshape(4, 3)


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ([(ARRAY, 0, 24)], (ARRAY, 0, 24)),  # twice
        ([(ARRAY, 0, 8)], (ARRAY, 0, 8)),  # again
        ([(ARRAY, 0, 8)], (ARRAY, 4, 12)),  # overlapping
        ([(ARRAY, 0, 8)], (ARRAY, 12, 24)),  # with a hole
        ([], (ARRAY, 8, 24)),  # without its start
        ([(ARRAY, 0, 8)], (OTHER, 8, 24)),  # of another shape
        ([(ARRAY, 0, 8)], (np.zeros(999, np.int16), 8, 999)),  # of another size
    ],
)
def test_a_piece_that_does_not_follow_is_refused_and_given_back(source, before, then):
    for piece in before:
        source.add("images", *piece)
    held = source.payloads.held
    with pytest.raises(ProtocolError, match=r"a piece of \d+ bytes at \d+ does not fit 'images'"):
        source.add("images", *then)
    assert (source.payloads.held, source.payloads.lying) == (held, 0)


@pytest.mark.parametrize(("at", "size"), [(-4, 8), (20, 8), (0, 32)])
def test_a_piece_that_does_not_fit_is_refused(source, at, size):
    piece = piece_of(source.payloads, "images", ARRAY)
    piece.at = at
    piece.handle = source.payloads.put(bytes(size))
    with pytest.raises(ProtocolError, match="does not fit"):
        source.assembly.add(piece, source, last=True)


def test_dropping_lets_go_of_everything(source):
    source.add("images", ARRAY)
    source.add("frames", ARRAY, 0, 8)
    source.assembly.drop()
    assert source.payloads.held == 0
    assert source.assembly.tensors() == {}


def test_copies_take_the_place_of_what_is_still_there(source):
    source.add("images", ARRAY)
    held = source.assembly.tensors()
    copies = {name: tensor.copy() for name, tensor in held.items()}
    source.assembly.move(held, copies)
    del held
    assert source.payloads.held == 0
    np.testing.assert_array_equal(source.assembly.tensors()["images"].numpy(), ARRAY)


def test_copies_of_what_was_handed_out_are_not_kept(source):
    source.add("images", ARRAY)
    held = source.assembly.tensors()
    source.assembly.drop()
    source.assembly.move(held, {name: tensor.copy() for name, tensor in held.items()})
    assert source.assembly.tensors() == {}
