"""Gradients of operands that meet many rows: float32 added up row by row would be percents off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.ops import resolve
from asyncsched.ops.table import TABLE

from .test_tape import leaf

pytestmark = pytest.mark.one_loop
F = nn.functional
ROWS = 3_000_000
GRADIENT = np.float32(0.1)  # of each element of the result
accurate_sum = resolve(TABLE["accurate_sum"], np)

MEETINGS: dict[str, tuple[tuple[int, ...], Callable[[asc.Tensor, asc.Tensor], asc.Tensor]]] = {
    "added": ((2,), lambda x, b: x + b),
    "added as a row": ((1, 2), lambda x, b: b + x),
    "added as a number": ((), lambda x, b: x + b),
    "multiplied": ((2,), lambda x, b: asc.ones_like(x) * b),
    "chosen": ((2,), lambda x, b: asc.where(x > 5, x, b)),
    "broadcast": ((2,), lambda x, b: asc.broadcast_to(b, x.shape)),
    "taken": ((1, 2), lambda x, b: b[asc.zeros((ROWS,), dtype=int)]),
    "taken on another axis": ((2, 1), lambda x, b: asc.take(b, asc.zeros((ROWS,), dtype=int), axis=1)),
    "picked": ((1, 2), lambda x, b: b[asc.zeros((ROWS, 1), dtype=int), asc.arange(2)]),
    "taken along an axis": ((1, 2), lambda x, b: asc.take_along_axis(b, asc.zeros((ROWS, 2), dtype=int), axis=0)),
    "outer": ((2,), lambda x, b: asc.linalg.outer(x[:, 0], b)),
    "outer, as columns": ((2,), lambda x, b: asc.linalg.outer(b, x[:, 0])),
    "embedded": ((2, 2), lambda x, b: F.embedding(asc.arange(2 * ROWS) % 2, b)),
    "a vector": ((2,), lambda x, b: x @ b),
    "a matrix": ((2, 3), lambda x, b: x @ b),
    "a weight": ((1, 2), F.linear),
    "a matrix on the left": ((3, 2), lambda x, b: b @ x.mT),
    "tensordot": ((2, 3), lambda x, b: asc.tensordot(x, b, axes=1)),
    "dot": ((2,), lambda x, b: asc.dot(x, b)),
    "einsum": ((2,), lambda x, b: asc.einsum("ij,j->i", x, b)),
    "einsum of a number": ((), lambda x, b: asc.einsum("ij,->ij", x, b)),
    "einsum in pieces and a rest": ((3, 2), lambda x, b: asc.einsum("ij,kj->ik", x[:-1], b)),
    "repeated": ((1, 2), lambda x, b: asc.repeat(b, ROWS, axis=0)),
    "tiled": ((2,), lambda x, b: asc.tile(b, (ROWS, 1))),
    "linear": ((2,), lambda x, b: F.linear(x, asc.eye(2, dtype=x.dtype), b)),
    "layer_norm": ((2,), lambda x, b: F.layer_norm(x, 2, None, b)),
    "batch_norm": ((2,), lambda x, b: F.batch_norm(x, None, None, None, b, training=True)),
    "group_norm": ((2,), lambda x, b: F.group_norm(x, 1, None, b)),
    "conv1d": ((2,), lambda x, b: F.conv1d(x.reshape(ROWS, 2, 1), asc.ones((2, 2, 1), dtype=x.dtype), b)),
}
PRODUCTS = (
    "a matrix",
    "a weight",
    "a matrix on the left",
    "tensordot",
    "einsum in pieces and a rest",
    "outer",
    "outer, as columns",
)


@pytest.mark.parametrize("name", MEETINGS)
async def test_the_gradient_of_what_meets_many_rows_is_accurate(s, name):
    shape, meet = MEETINGS[name]
    x, b = await s.put(np.ones((ROWS, 2), np.float32)), await leaf(s, np.ones(shape, np.float32))
    found = meet(x, b)
    found.backward(asc.full(found.shape, GRADIENT, dtype=asc.float32))
    times = 2 if name in ("added as a number", "einsum of a number") else 1
    rounding = 2e-6 if name in PRODUCTS else 1e-6  # BLAS adds up a piece of rows in its own way
    np.testing.assert_allclose(await b.grad, np.full(shape, ROWS * float(GRADIENT) * times), rtol=rounding)


async def test_the_gradient_of_a_layers_weight_is_accurate(s):
    rows, w = np.tile(np.array([1, 3], np.float32), (ROWS, 1)), await leaf(s, np.ones(2, np.float32))
    found = F.layer_norm(await s.put(rows), 2, w)
    found.backward(asc.full(found.shape, GRADIENT, dtype=asc.float32))
    each = float(GRADIENT) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(await w.grad, np.array([-each, each]) * ROWS, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("shape", [(5,), (300, 4), (2, 300, 3), (300, 2, 5, 7), (1, 1), (0, 3), (3, 0)])
def test_sums_along_axes_are_those_of_numpy(shape, dtype):
    rng = np.random.default_rng(0)
    array = rng.random(shape).astype(dtype)
    layouts = (
        array,
        array.T.copy().T,
        array[::-1],
        np.broadcast_to(array[..., :1], shape if shape[-1] else (*shape[:-1], 0)),
    )
    for axes in ((0,), (len(shape) - 1,), tuple(range(len(shape))), tuple(range(0, len(shape), 2))):
        for x in layouts:
            expected = x.sum(axis=axes, dtype="c16" if dtype == "c8" else "f8")
            out = np.empty(expected.shape, dtype)
            assert accurate_sum(x, axis=axes, out=out) is out
            np.testing.assert_allclose(out, expected, rtol=1e-3 if dtype == "f2" else 1e-6)
            assert accurate_sum(x, axis=axes).tobytes() == out.tobytes()
