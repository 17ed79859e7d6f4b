"""The rows that only derivatives and optimisers need, against NumPy."""

from __future__ import annotations

from functools import partial
from math import sqrt

import numpy as np
import pytest
from conftest import in_every_layout, layouts, peak_of, values

from asyncsched.ops import TABLE, meta, plan
from asyncsched.ops.index_keys import TENSOR, Slice
from asyncsched.ops.kernels.blocks import ADDED as BLOCK
from asyncsched.ops.kernels.elementwise import kept

ALL = Slice(None, None, None)
FLOATS = ("f2", "f4", "f8")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "key", "part"),
    [
        ((3, 4), (1,), (4,)),
        ((3, 4), (ALL, Slice(None, None, -2)), (3, 2)),
        ((3, 4), (None, ..., 2), (1, 3)),
        ((3, 4), (0, 1), ()),
        ((0, 4), (ALL, 1), (0,)),
    ],
)
def test_scatter_puts_a_part_among_zeros(check, dtype, shape, key, part):
    x = values(part, dtype)

    def expected():
        out = np.zeros(shape, dtype)
        out[tuple([slice(*p) if isinstance(p, Slice) else p for p in key])] = x
        return out

    check("scatter")(expected, x, shape=shape, key=key)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scatter_adds_values_for_one_place(check, dtype):
    x, rows, mask = values((4, 2), dtype), np.array([2, 0, 2, -1]), np.array([True, False, True, True, True])

    def added():
        out = np.zeros((3, 2), dtype)
        for row, line in zip(rows, x, strict=True):
            out[row] += line
        return out

    check("scatter")(added, x, rows, shape=(3, 2), key=(TENSOR,))

    def masked():
        out = np.zeros((5, 2), dtype)
        out[mask] = x
        return out

    check("scatter")(masked, x, mask, shape=(5, 2), key=(TENSOR, ALL))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "indices"), [((5, 6, 7), "i1"), ((5,), "u1"), ((40, 1_000), "i8"), ((3, 9_000), "i4")]
)
def test_scatter_adds_many_rows_one_after_the_other(check, dtype, shape, indices):
    """To one place several arrive, in this and in the next block: another order of sums would round otherwise.

    If many arrive at each, they are added up in double precision.
    """
    width = int(np.prod(shape[1:]))
    count = 3 * BLOCK // width + 2
    rows = np.random.default_rng(0).integers(-shape[0] if indices[0] == "i" else 0, shape[0], (2, count), indices)
    x = values((2, count, *shape[1:]), dtype)

    def added():
        out = np.zeros(shape, np.result_type(dtype, "f8") if rows.size >= 64 * shape[0] else dtype)
        for row, line in zip(rows.ravel(), x.reshape(-1, *shape[1:]), strict=True):
            out[row] += line
        return out.astype(dtype)

    options = {"shape": shape, "key": (TENSOR,)}
    for operands in ((x, rows), (x, rows.T.copy().T), (np.asarray(x, order="F"), rows)):
        planned, out = check("scatter")(added, *operands, **options), np.empty(shape, dtype)
        peak = peak_of(partial(TABLE["scatter"].kernel, np, *operands, out=out, **options))
        assert peak <= planned.workspace + 10_000  # what Python itself takes


def test_a_row_that_is_not_there_is_refused():
    x = np.ones((BLOCK, 2))
    for wrong in (3, -4):
        rows = np.zeros(BLOCK, int)
        rows[-1] = wrong
        with pytest.raises(IndexError, match="out of bounds"):
            TABLE["scatter"].kernel(np, x, rows, shape=(3, 2), key=(TENSOR,))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_along_an_axis_is_the_transpose_of_taking(check, dtype, axis):
    x = values((3, 4), dtype)
    indices = np.random.default_rng(0).integers(0, 5, (3, 4))
    shape = (5, 4) if axis == 0 else (3, 5)

    def expected():
        out = np.zeros(shape, dtype)
        for i, j in np.ndindex(3, 4):
            place = (indices[i, j], j) if axis == 0 else (i, indices[i, j])
            out[place] += x[i, j]
        return out

    check("scatter_along_axis")(expected, x, indices, shape=shape, axis=axis)


@pytest.mark.parametrize(
    ("op", "operands", "options"),
    [
        ("scatter", [(3,)], {"shape": (3, 4), "key": (1,)}),
        ("scatter", [(4,)], {"shape": (3, 4), "key": (3,)}),
        ("choice_backward", [(4,), (3, 4), (4,)], {}),
        ("axpby", [(3, 4), (4,)], {}),
        ("adam_step", [(3,), (3,), (4,)], {}),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(op, operands, options):
    metas = tuple([meta(shape, np.dtype("f8")) for shape in operands])
    with pytest.raises((ValueError, IndexError)):
        plan(TABLE[op], metas, options)


def test_updates_keep_to_one_dtype():
    with pytest.raises(ValueError, match="must be alike"):
        plan(TABLE["axpby"], (meta((3,), np.dtype("f8")), meta((3,), np.dtype("f4")), 1.0, 2.0), {})


def test_the_gradient_of_running_products_is_exact_where_there_are_zeros():
    x, g = np.array([2.0, 0.0, 3.0, 0.0, 5.0]), np.arange(1.0, 6.0)
    jacobian = np.zeros((5, 5))
    for k in range(5):
        for i in range(k + 1):
            jacobian[k, i] = np.prod(np.delete(x[: k + 1], i))
    got = TABLE["cumulative_prod_gradient"].kernel(np, x, g, axis=0)
    np.testing.assert_array_equal(got, g @ jacobian)


@pytest.mark.parametrize("shape", [(0,), (1,), (4, 0)])
def test_the_gradient_of_running_products_of_little(check, shape):
    x, g = values(shape, "f8"), values(shape, "f8", 1)
    check("cumulative_prod_gradient")(lambda: g.copy(), x, g, axis=0)


@pytest.mark.parametrize("dtype", FLOATS)
@in_every_layout
def test_a_choice_gives_halves_at_ties_and_nothing_to_the_smaller(check, layout, dtype):
    g = layouts(dtype)[layout].copy()
    g.ravel()[:1] = np.inf
    x, y = np.round(layouts(dtype, 1)[layout]), np.round(layouts("f4", 2)[layout])

    def expected(x, y):
        parts = np.where(x < y, 0, np.where(x == y, g / 2, g)).astype(dtype)
        return np.ascontiguousarray(parts).reshape(g.shape)

    for a, b in ((x, y), (y, x), (x, 0), (0.0, x), (x, np.float16(1)), (x, np.asarray(1, "i4"))):
        check("choice_backward")(lambda a=a, b=b: expected(a, b), g, a, b)
    if x.ndim:
        row = y[..., :1]
        check("choice_backward")(lambda: expected(x, row), g, x, row)


@pytest.mark.parametrize("dtype", ["f2", "f8", "g", "c16"])
def test_masked_values_are_0_in_dtypes_as_long_as_an_integer_and_longer(dtype):
    x, mask = np.array([np.inf, 2, np.nan], dtype), np.array([False, True, False])
    assert kept(np, x, mask).tolist() == [0, 2, 0]
    assert kept(np, x, mask, out=x).tolist() == [0, 2, 0]


@pytest.mark.parametrize("dtype", FLOATS)
@in_every_layout
def test_updates(check, layout, dtype):
    x, y, z = [np.asarray(np.abs(layouts(dtype, seed)[layout])) for seed in range(3)]
    check("axpby")(lambda: x * 0.9 + y * -0.25, x, y, 0.9, -0.25)
    check("axpby_squared")(lambda: x * 0.9 + np.square(y) * 0.1, x, y, 0.9, 0.1)
    check("axpby")(lambda: np.array(0.0 + y * -0.25, order="C"), 0.0, y, 0.9, -0.25)
    check("axpby_squared")(lambda: np.array(0.0 + np.square(y) * 0.1, order="C"), 0.0, y, 0.9, 0.1)
    rate, scale = 0.1 / (1 - 0.9**3), 1 / sqrt(1 - 0.99**3)
    expected = lambda: x * (1 - 0.1 * 0.01) - y / (np.sqrt(z) * scale + 1e-3) * rate  # noqa: E731  # reads as the formula
    check("adam_step")(expected, x, y, z, np.array(3), 0.1, 0.01, 0.9, 0.99, 1e-3)
