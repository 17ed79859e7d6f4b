"""Making one batch of many items."""

from __future__ import annotations

from collections import namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline.functions import collate

Pair = namedtuple("Pair", "x y")


def test_arrays_and_numbers_are_stacked() -> None:
    assert collate([np.zeros((2, 3), np.float32)] * 4).shape == (4, 2, 3)
    assert collate([np.zeros((2, 3), np.float32)] * 4).dtype == np.float32
    assert collate([1, 2]).tolist() == [1, 2]
    assert collate([np.float32(1), np.float32(2)]).dtype == np.float32
    assert collate([True, False]).dtype == np.bool_
    assert collate([1.5, 2]).dtype == np.float64
    assert collate([1j]).dtype == np.complex128


def test_masks_are_stacked_too() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for items in ([masked, masked], [np.ones(2), masked]):
        assert collate(items).mask[-1].tolist() == [False, True]


def test_fields_are_collated_by_themselves() -> None:
    x, y = collate([(np.ones(2), 1), (np.ones(2), 2)])
    assert (x.shape, y.tolist()) == ((2, 2), [1, 2])
    found = collate([{"a": [1, "one"], "b": Pair(1, None)}, {"b": Pair(2, None), "a": [2, "two"]}])
    assert found["a"][0].tolist() == [1, 2]
    assert found["a"][1] == ["one", "two"]
    assert isinstance(found["b"], Pair)
    assert found["b"].y == [None, None]


class Image:
    """What NumPy can make an array of."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.full((2, 2), self.value, np.uint8)


def test_what_numpy_takes_for_an_array_is_stacked() -> None:
    found = collate([(Image(1), 0), (Image(2), 1)])
    assert (found[0].shape, found[0].dtype) == ((2, 2, 2), np.uint8)
    assert found[0][1].tolist() == [[2, 2], [2, 2]]
    mapped = collate([MappingProxyType({"x": 1.0}), MappingProxyType({"x": 2.0})])
    assert mapped["x"].tolist() == [1.0, 2.0]


def test_as_pytorch_does(torch: Any) -> None:
    items = [(torch.full((2,), i, dtype=torch.int16), i / 2, {"name": f"{i}", "at": [i, i]}) for i in range(3)]
    ours, theirs = collate(items), torch.utils.data.default_collate(items)
    assert np.array_equal(ours[0], theirs[0].numpy())
    assert ours[0].dtype == np.int16
    assert np.array_equal(ours[1], theirs[1].numpy())
    assert ours[2]["name"] == theirs[2]["name"] == ["0", "1", "2"]
    assert [x.tolist() for x in ours[2]["at"]] == [x.tolist() for x in theirs[2]["at"]]


async def test_handles_stay_a_list(s: asc.Scheduler) -> None:
    tensors = [await s.put(np.ones(2)), await s.put(np.ones(2))]
    assert all(one is other for one, other in zip(collate(tensors), tensors, strict=True))


@pytest.mark.parametrize(
    ("items", "what"),
    [
        ([np.ones(2), np.ones(3)], "shape"),
        ([np.ones(2), 3], "shape"),
        ([(1, 2), (1,)], "length"),
        ([{"a": 1}, {"b": 1}], "keys"),
    ],
)
def test_items_that_differ_are_refused_with_a_cure(items: list[Any], what: str) -> None:
    with pytest.raises(ValueError, match=rf"differ in {what}: .* and, at 1, .*; make them alike in a `.map` before"):
        collate(items)
