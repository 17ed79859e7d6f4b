"""Making one batch of many items."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

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
