"""Products that sum over axes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import DTYPES, in_one_item, values

SHAPES = ((4,), (3, 4), (4, 3), (4, 4), (2, 4, 4), (5, 1, 3, 4), (0, 4), (4, 0), (), (1, 4))


def arrangements(shape: tuple[int, ...], dtype: str, seed: int) -> list[np.ndarray]:
    """One array of a shape in C order, in Fortran's and with strides."""
    x = values(shape, dtype, seed)
    wider = values((*shape[:-1], 2 * shape[-1]), dtype, seed)[..., ::2] if shape else x
    return [x, np.asfortranarray(x), wider]


@in_one_item(first=SHAPES, second=SHAPES)
def test_matmul(check, first, second):
    for x in arrangements(first, "f4", 0):
        for y in arrangements(second, "f4", 1):
            check("matmul")(lambda x=x, y=y: np.matmul(x, y), x, y)


@pytest.mark.parametrize("first", DTYPES)
def test_matmul_of_dtypes(check, first):
    for second in DTYPES:
        x, y = values((3, 4), first), values((4, 2), second, 1)
        found = check("matmul")(lambda x=x, y=y: np.matmul(x, y), x, y)
        if first == "f4" and second == "f8":
            assert found.workspace == x.nbytes * 2


def test_matmul_with_a_number_is_refused(check):
    x = values((3, 4), "f4")
    check("matmul")(lambda: np.matmul(x, 2), x, 2)


@pytest.mark.parametrize("axis", [-1, 0])
@in_one_item(first=SHAPES, second=SHAPES)
def test_vecdot(check, first, second, axis):
    for dtype in ("f4", "c8", "i1"):
        for x in arrangements(first, dtype, 0):
            for y in arrangements(second, dtype, 1):
                if x.ndim != y.ndim and axis == 0:
                    continue
                check("vecdot")(lambda x=x, y=y: np.vecdot(x, y, axis=axis), x, y, axis=axis)


AXES = (0, 1, 2, 3, -1, ((0,), (1,)), ((0, 1), (1, 0)), (0, 0), ((0, 0), (0, 0)), ((0,), (0, 1)))


@pytest.mark.parametrize("axes", AXES)
def test_tensordot(check, axes):
    for first, second in itertools.product(((4,), (3, 4), (4, 3), (2, 3, 4), (0, 4)), repeat=2):
        for dtype, other in (("f4", "f4"), ("i1", "f8"), ("c8", "f4")):
            for x in arrangements(first, dtype, 0)[:2]:
                y = values(second, other, 1)
                if axes == -1 or (isinstance(axes, int) and axes > min(x.ndim, y.ndim)):
                    with pytest.raises(ValueError, match="cannot sum over"):
                        check("tensordot").agrees(np.zeros(0), (x, y), {"axes": axes})
                else:
                    check("tensordot")(lambda x=x, y=y: np.tensordot(x, y, axes), x, y, axes=axes)
