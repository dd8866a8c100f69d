"""Outputs belong to those who copy them: what the pipeline may still write to is copied first."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sidestream.workers.outputs import owned, tensors_of


def result_of(call: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what becomes of a pipeline's result."""
    tensors = tensors_of(SimpleNamespace(images=call()))
    return owned(tensors)


def test_memory_that_nobody_else_knows_is_not_copied() -> None:
    address: list[int] = []

    def call() -> torch.Tensor:
        picture = torch.rand(1, 3, 4, 4)
        address.append(picture.data_ptr())
        return picture

    assert [result_of(call)["images"].data_ptr()] == address


VIEWS: list[Any] = [
    lambda t: t,
    lambda t: t[:1],
    lambda t: t.detach(),
    lambda t: t.permute(0, 1, 3, 2),
]


@pytest.mark.parametrize("view", VIEWS)
def test_memory_that_the_pipeline_keeps_is_copied(view: Any) -> None:
    kept = torch.rand(2, 3, 4, 4)
    expected = view(kept).clone()
    images = result_of(lambda: view(kept))["images"]
    kept.fill_(-1)
    assert torch.equal(images, expected)


def test_of_several_tensors_those_that_are_kept_are_copied() -> None:
    kept = torch.rand(1, 2)

    def call() -> tuple[SimpleNamespace, int]:
        frames = torch.rand(1, 2, 3, 4, 4)
        return SimpleNamespace(frames=frames, audio=kept), frames.data_ptr()

    result, address = call()
    tensors = tensors_of(result)
    del result
    tensors = owned(tensors)
    assert tensors["frames"].data_ptr() == address
    assert tensors["audio"].data_ptr() != kept.data_ptr()
    assert torch.equal(tensors["audio"], kept)


def test_tensors_of_one_memory_are_parted() -> None:
    def call() -> SimpleNamespace:
        both = torch.rand(2, 3, 4, 4)
        return SimpleNamespace(images=both[:1], other=both[1:])

    tensors = owned(tensors_of(call()))
    assert not torch.equal(tensors["images"], tensors["other"])
    tensors["images"].fill_(0)
    assert tensors["other"].any()
