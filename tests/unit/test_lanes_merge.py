"""Readings, merging and splitting, distances: the pieces that probes are made of."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from sidestream.workers.lanes.call import ComponentCall, NotMergeable
from sidestream.workers.lanes.distance import distance, rounding_of, vary
from sidestream.workers.lanes.merge import Merger, leaves_of, output_roles, rows_of, signature_of
from sidestream.workers.lanes.plans import PlanBook
from sidestream.workers.lanes.readings import (
    EACH,
    ENTRIES,
    JOIN,
    MAX_READINGS,
    SHARE,
    SPREAD,
    Leaf,
    Reading,
    readings,
    roles_for,
)
from sidestream.workers.lanes.sameness import Sameness

from .lane_helpers import rows as random_rows


def leaf(*shapes, name="x", alike=False, **kinds):
    return Leaf((name,), shapes, alike, **kinds)


@pytest.mark.parametrize(
    ("argument", "rows", "roles"),
    [
        (leaf((2, 8), (2, 8)), (2, 2), [JOIN]),
        (leaf((2, 8), (2, 8), alike=True), (2, 2), [JOIN, SHARE]),
        (leaf((2, 8), (4, 8)), (2, 4), [JOIN]),
        (leaf((2, 8), (2, 8)), (2, 4), []),
        (leaf((16, 8), (16, 8)), (2, 2), [JOIN]),
        (leaf((16, 8), (16, 8), alike=True), (2, 2), [SHARE, JOIN]),
        (leaf((5, 3), (5, 3), alike=True), (2, 2), [SHARE]),
        (leaf((1, 3), (1, 3)), (2, 4), [SPREAD]),
        (leaf((1, 3), (1, 3), alike=True), (2, 2), [SHARE, SPREAD]),
        (leaf((1, 3), (1, 3)), (1, 2), []),
        (leaf((5, 3), (5, 3)), (2, 2), []),
        (leaf((3, 2, 8), (3, 2, 8)), (2, 2), [JOIN._replace(axis=1)]),
        (leaf((), ()), (2, 2), [SPREAD]),
        (leaf((), (), alike=True), (2, 2), [SHARE, SPREAD]),
        (leaf((), (), name="timestep", alike=True), (2, 2), [SPREAD, SHARE]),
        (leaf((1,), (1,), name="timestep"), (1, 1), [JOIN]),
        (leaf((1,), (1,), name="timestep"), (2, 2), [SPREAD]),
        (leaf((), (), name="timestep", is_number=True), (2, 2), [SPREAD]),
        (leaf((3,), (3,), is_list=True), (2, 2), [EACH]),
        (leaf((2,), (2,), is_list=True), (2, 2), [EACH, ENTRIES]),
        (leaf((2,), (4,), is_list=True), (2, 4), [ENTRIES]),
    ],
)
def test_what_may_be_done_with_an_argument(argument, rows, roles):
    assert roles_for(argument, rows) == roles


def test_readings_are_bounded_distinct_and_start_with_the_likeliest():
    leaves = [leaf((6, 6), (6, 6), name=f"argument{n}", alike=True) for n in range(12)]
    found = list(readings(leaves, (6, 6)))
    assert len(found) == MAX_READINGS
    assert len({(r.chunks, tuple(r.roles.values())) for r in found}) == MAX_READINGS
    assert set(found[0].roles.values()) == {JOIN}
    assert [r.chunks for r in found[:3]] == [1, 2, 3]


def test_chunks_divide_every_batch():
    assert {r.chunks for r in readings([leaf((2, 8), (4, 8))], (2, 4))} == {1, 2}


@given(
    rows=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    chunks=st.integers(1, 3),
    axis=st.integers(0, 1),
)
def test_splitting_undoes_merging(rows, chunks, axis):
    rows = [count * chunks for count in rows]
    shape = (lambda n: (n, 3)) if axis == 0 else (lambda n: (3, n))
    calls = [{"x": torch.randn(shape(count))} for count in rows]
    reading = Reading({("x",): JOIN._replace(axis=axis)}, chunks, {(): JOIN._replace(axis=axis)})
    merger = Merger(reading, rows, Sameness())
    merged = merger.merge(calls)["x"]
    assert merged.shape == shape(sum(rows))
    parts = merger.split(merged)
    assert all(torch.equal(part, call["x"]) for part, call in zip(parts, calls, strict=True))


def test_chunks_are_joined_first_to_first():
    calls = [{"x": torch.tensor([0, 1, 2])}, {"x": torch.tensor([10, 11, 12])}]
    merged = Merger(Reading({("x",): JOIN}, 3), [3, 3], Sameness()).merge(calls)["x"]
    assert merged.tolist() == [0, 10, 1, 11, 2, 12]


def test_shared_arguments_must_be_equal_each_time():
    merger = Merger(Reading({("x",): SHARE}), [1, 1], Sameness())
    with pytest.raises(NotMergeable, match="x differs"):
        merger.merge([{"x": torch.zeros(2)}, {"x": torch.ones(2)}])


def test_results_that_the_reading_does_not_know_are_refused():
    merger = Merger(Reading({}, 1, {(): JOIN}), [1, 1], Sameness())
    for result in (torch.zeros(3, 2), (torch.zeros(2, 2),), object()):
        with pytest.raises(NotMergeable):
            merger.split(result)


def test_structured_results_are_split_in_every_part():
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    result = AutoencoderKLOutput(DiagonalGaussianDistribution(torch.randn(4, 8, 2, 2)))
    roles = output_roles(result, 4, entries=False)
    first, second = Merger(Reading({}, 1, roles), [1, 3], Sameness()).split(result)
    assert type(first) is AutoencoderKLOutput
    assert torch.equal(first.latent_dist.mean, result.latent_dist.mean[:1])
    assert torch.equal(second.latent_dist.std, result.latent_dist.std[1:])


def test_caches_of_keys_and_values_are_split_too():
    from transformers import DynamicCache

    cache = DynamicCache()
    keys, values = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4)
    cache.update(keys, values, 0)
    roles = output_roles(cache, 3, entries=False)
    first, second = Merger(Reading({}, 1, roles), [1, 2], Sameness()).split(cache)
    assert torch.equal(first.layers[0].keys, keys[:1])
    assert torch.equal(second.layers[0].values, values[1:])
    assert first.get_seq_length() == 5
    assert torch.equal(cache.layers[0].keys, keys)


def test_settings_that_an_object_keeps_as_tensors_are_everybodys():
    record = SimpleNamespace(rows=torch.randn(2, 3), window=torch.tensor(7))
    roles = output_roles(record, 2, entries=False)
    first, second = Merger(Reading({}, 1, roles), [1, 1], Sameness()).split(record)
    assert torch.equal(second.rows, record.rows[1:])
    assert first.window == second.window == 7


def test_a_components_own_parameter_is_everybodys():
    default = torch.nn.Parameter(torch.randn(1, 3))
    result = (torch.randn(2, 3), default)
    roles = output_roles(result, 2, entries=False)
    parts = Merger(Reading({}, 1, roles), [1, 1], Sameness()).split(result)
    assert all(part[1] is default for part in parts)


def test_lists_of_samples_of_different_sizes_are_of_one_signature():
    def signature(*lengths):
        arguments = {"x": [torch.zeros(length, 4) for length in lengths]}
        return signature_of(arguments, rows_of(arguments))

    assert signature(3, 5) == signature(7, 2)
    assert signature(3, 5) != signature(3, 5, 5)


def test_signatures_hold_everything_but_values_and_batch_size():
    def signature(**arguments):
        return signature_of(arguments, rows_of(arguments))

    base = signature(sample=torch.zeros(2, 4), timestep=5.0, flag=True)
    assert base == signature(sample=torch.ones(2, 4), timestep=7.0, flag=True)
    assert base == signature(sample=torch.ones(6, 4), timestep=7.0, flag=True)
    assert base != signature(sample=torch.ones(2, 5), timestep=7.0, flag=True)
    assert base != signature(sample=torch.ones(2, 4).double(), timestep=7.0, flag=True)
    assert base != signature(sample=torch.ones(2, 4), timestep=7.0, flag=1)
    assert base != signature(sample=torch.ones(2, 4), timestep=torch.tensor(7.0), flag=True)
    cache = object()
    assert signature(sample=torch.zeros(1, 4), cache=cache) == signature(
        sample=torch.zeros(1, 4), cache=cache
    )
    assert signature(sample=torch.zeros(1, 4), cache=cache) != signature(
        sample=torch.zeros(1, 4), cache=object()
    )


def test_calls_without_a_batch_are_not_mergeable():
    with pytest.raises(NotMergeable):
        rows_of({"x": 3, "y": torch.tensor(1.0)})
    with pytest.raises(NotMergeable):
        rows_of({"x": torch.zeros(0, 3)})


@pytest.mark.parametrize(
    ("forward", "names"),
    [
        (lambda self, x, t: None, ["x", "t"]),
        (lambda self, x, *rest: None, [0, 1]),
        (lambda self, x, /, t: None, [0, 1]),
        (lambda self, *args, **kwargs: None, [0, 1]),
        (lambda self, x, t, flag=True, **more: None, ["x", "t"]),
    ],
)
def test_arguments_get_their_names_where_they_have_one(forward, names):
    module = type("Module", (torch.nn.Module,), {"forward": forward})()
    call = ComponentCall(module, "unet", "__call__", (1, 2), {"other": 3})
    arguments = call.named_arguments()
    assert list(arguments) == [*names, "other"]
    again = call.with_arguments(arguments)
    assert [*again.args, *again.kwargs.values()] == [1, 2, 3]


def test_leaves_are_found_in_nested_arguments():
    call = {"a": {"b": torch.zeros(2, 3)}, "c": [torch.zeros(2), torch.zeros(2)], "t": 1.0}
    leaves = leaves_of([call, call], Sameness())
    assert [found.path for found in leaves] == [("a", "b"), ("c",), ("c", 0), ("c", 1), ("t",)]


# ---------------------------------------------------------------------- values


class CountingTensor(torch.Tensor):
    """Counts comparisons."""

    compared = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.equal:
            CountingTensor.compared += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_values_of_the_same_tensors_are_compared_once():
    same = Sameness()
    a, b = (torch.ones(3).as_subclass(CountingTensor) for _ in range(2))
    CountingTensor.compared = 0
    assert same.all([a, b])
    assert same.all([a, b])
    assert CountingTensor.compared == 1
    b[0] = 5
    assert not same.all([a, b])
    assert CountingTensor.compared == 2


def test_sameness_forgets_dead_tensors():
    same = Sameness(capacity=4)
    for n in range(50):
        assert not same.all([torch.zeros(2), torch.ones(2)]), n
        assert same.all([torch.ones(2), torch.ones(2)]), n


def test_distance():
    a = torch.tensor([3.0, 4.0])
    assert distance(a, a) == 0
    assert distance(a * 1.1, a) == pytest.approx(0.1)
    assert distance({"x": [a]}, {"x": [a * 2]}) == pytest.approx(0.5)
    assert distance(a, a.double()) == math.inf
    assert distance(a, a[:1]) == math.inf
    assert distance(a, a * math.nan) == math.inf
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == math.inf
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 2])) == 0
    assert distance([a], [a, a]) == math.inf
    assert distance("x", "y") == math.inf
    assert distance(4.0, 2.0) == 1.0


def test_coarse_dtypes_may_be_rounded_more():
    value = torch.ones(2)
    assert rounding_of(value) == (1e-5, 1e-3)
    assert rounding_of([value, value.bfloat16()]) == (torch.finfo(torch.bfloat16).eps, 3e-2)
    assert rounding_of(torch.ones(2, dtype=torch.int64)) == (1e-5, 1e-3)


@pytest.mark.parametrize(
    "value",
    [
        random_rows(0),
        torch.zeros(2, 8),
        torch.ones(2, 8),
        torch.ones(2, 2000),
        100 + random_rows(1).abs(),
        torch.ones(2, 8, dtype=torch.bool),
        torch.ones(2, 8, dtype=torch.int64),
        torch.tensor([[0, 1, 0], [1, 1, 1], [0, 0, 0]]),
        torch.arange(16).reshape(2, 8),
        torch.tensor(961.0),
        torch.tensor([961, 961]),
        torch.tensor([0.0, 0.0]),
        torch.tensor(True),
        500.0,
        0.0,
    ],
)
def test_varied_values_are_of_the_same_kind_and_different(value):
    varied = vary(value)
    assert type(varied) is type(value)
    if isinstance(value, torch.Tensor):
        assert (varied.shape, varied.dtype) == (value.shape, value.dtype)
        assert distance(varied, value) > 0.05
        if not value.is_floating_point():
            assert varied.min() >= 0
            assert varied.max() <= value.max()
    else:
        assert varied != value


@pytest.mark.parametrize("shape", [(), (2,), (2, 8)])
def test_indices_are_not_varied_beyond_those_that_are_there(shape):
    """There may be one row in the table, and a GPU's process does not survive a wrong index."""
    value = torch.zeros(shape, dtype=torch.int64)
    assert torch.equal(vary(value), value)


def test_plans_are_kept_in_bounded_memory():
    book = PlanBook(capacity=2)
    first = book.plan(1, "unet", "__call__")
    book.plan(2, "unet", "__call__")
    assert book.plan(1, "unet", "__call__") is first
    book.plan(3, "unet", "__call__")
    assert len(book) == 2
    assert book.plan(1, "unet", "__call__") is first
