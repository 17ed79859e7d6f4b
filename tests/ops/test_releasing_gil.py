"""What would keep the GIL lets others have it, and gives NumPy's bits."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import another_thread_runs_during, assert_same, in_every_dtype, values

from asyncsched.ops import TABLE, resolve
from asyncsched.ops.kernels import releasing_gil

LONG, LINE = values((40, 50_000), "f4"), values((50_000,), "f4")
OFTEN = values((50_000,), "i8")
ROWS: dict[str, Any] = {
    "matmul": ((LONG, LINE), {}),
    "vecdot": ((LONG, LONG), {}),
    "linear": ((LONG, LONG[:3]), {}),
    "linear_weight_grad": ((LONG.T, LONG[:3].T), {}),
    "cumulative_sum": ((LONG,), {"axis": 1}),
    "cumulative_prod": ((LONG,), {"axis": -1}),
    "repeat": ((LONG,), {"repeats": 2}),
    "repeat_each": ((LONG, OFTEN), {"axis": 1, "maxlength": 10**9}),
    "tile": ((LONG,), {"repetitions": (2, 1)}),
}


@pytest.mark.parametrize("name", ROWS)
def test_others_run_meanwhile(name):
    operands, options = ROWS[name]
    assert another_thread_runs_during(partial(resolve(TABLE[name], np), *operands, **options))


@pytest.fixture
def little(monkeypatch):
    """Small arrays go where large ones do, in many pieces."""
    monkeypatch.setattr(releasing_gil, "LARGE", 1)
    monkeypatch.setattr(releasing_gil, "PIECE", 97)


SHAPES = ((301,), (3, 400), (3, 50, 7), (2, 1, 300), (600, 5), (0, 4), (4, 0), (1,), (5, 3, 2, 4))


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("shape", SHAPES)
@in_every_dtype
def test_running_sums_go_on_from_piece_to_piece(check, name, shape, dtype):
    x, function = values(shape, dtype), getattr(np, name)
    if x.dtype.kind in "fc" and x.size > 9:
        x.flat[x.size // 2] = np.nan
    wider = "c16" if x.dtype.kind == "c" else "f8"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for axis in range(-x.ndim, x.ndim):
            for more in ({}, {"dtype": np.dtype(wider)}, {"include_initial": True}):
                options = {"axis": axis, **more}
                check(name)(partial(function, x, **options), x, **options)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("shape", [*SHAPES, ()])
@in_every_dtype
def test_repeats_are_those_of_numpy(shape, dtype):
    x = values(shape, dtype)
    repeat, tile = [resolve(TABLE[name], np) for name in ("repeat", "tile")]
    for array in (x, x.T, np.flip(x)):
        for axis in (None, *range(-array.ndim, array.ndim)):
            for count in (0, 1, 3, 70):
                assert_same(repeat(array, repeats=count, axis=axis), np.repeat(array, count, axis=axis))
        for counts in ((2,), (2, 1, 3), (1,), (0, 2), (1, 4), ()):
            assert_same(tile(array, repetitions=counts), np.tile(array, counts))


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("shape", SHAPES)
@in_every_dtype
def test_each_is_repeated_as_often_as_its_number_says(shape, dtype):
    x, kernel = values(shape, dtype), resolve(TABLE["repeat_each"], np)
    for array in (x, x.T):
        for axis in (None, *range(-array.ndim, array.ndim)):
            length = array.size if axis is None else array.shape[axis]
            for often in (values((length,), "i4"), np.zeros(length, int), np.full(length, 33), np.array([2])):
                assert_same(kernel(array, often, axis=axis, maxlength=10**9), np.repeat(array, often, axis=axis))


LARGE = ((20, 3301, 20), (1, 70_001, 1), (1, 9001, 7), (70, 1001, 1), (400, 170, 1), (500, 150, 1))


@pytest.mark.parametrize(("rows", "inner", "columns"), LARGE)
@pytest.mark.parametrize("dtype", ["?", "i8", "f4", "f8", "c8"])  # BLAS has the last three; halves would take seconds
def test_products_are_those_of_matmul(rows, inner, columns, dtype):
    first, second = values((rows, inner), dtype), values((inner, columns), dtype, 1)
    vector, kernel = second[:, 0].copy(), resolve(TABLE["matmul"], np)
    with np.errstate(all="ignore"):
        for a in (first, np.asfortranarray(first)):
            for b in (second, np.asfortranarray(second), a.T, vector):
                expected = np.matmul(a, b)
                assert_same(kernel(a, b), expected)
                out = np.empty_like(expected)
                assert kernel(a, b, out=out) is out
                assert_same(out, expected)
        assert_same(kernel(vector, second), np.matmul(vector, second))
        assert_same(kernel(vector, vector), np.asarray(np.matmul(vector, vector)))


@pytest.mark.usefixtures("little")
def test_products_of_vectors_are_those_of_vecdot(check, dtype):
    for one, other in (
        ((20, 301), (20, 301)),
        ((301,), (20, 301)),
        ((3, 1, 301), (4, 301)),
        ((301,), (301,)),
        ((0, 5),) * 2,
    ):
        x, y = values(one, dtype), values(other, dtype, 1)
        for axis in (-1, 0) if one == other else (-1,):
            check("vecdot")(partial(np.vecdot, x, y, axis=axis), x, y, axis=axis)
