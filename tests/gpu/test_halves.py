"""Half precision: sums of 100,000 numbers, rounded once. Added up as halves, most would be off by some last places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.nn.functional import linear
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.cuda_host.runtime import loaded

pytestmark = pytest.mark.one_loop
ROWS, COUNT = 12, 100_000
Reduced = tuple[Callable[[asc.Tensor], asc.Tensor], Callable[[np.ndarray], Any]]

rng = np.random.default_rng(0)
X = rng.uniform(0, 0.5, (ROWS, COUNT)).astype(np.float16)
NEAR_ONE = rng.choice(np.array([1 - 2**-11, 1 - 2**-11, 1 + 2**-10], np.float16), (ROWS, COUNT))


def weight_gradient(x: asc.Tensor) -> asc.Tensor:
    """Of a window of one pixel that moves over an image with one channel."""
    image, one = x.reshape(1, 1, 250, -1), (1, 1)
    options = {"shape": (1, 1, 1, 1), "stride": one, "padding": (0, 0), "dilation": one}
    return apply(TABLE["conv2d_weight_grad"], (image, image), options).reshape(())


# What the device is asked for, and the same in double precision.
OF_A_ROW: dict[str, Reduced] = {
    "sum": (asc.sum, np.sum),
    "sum in half": (lambda x: asc.sum(x, dtype=asc.float16), np.sum),
    "mean": (asc.mean, np.mean),
    "var": (asc.var, np.var),
    "std": (asc.std, np.std),
    "nansum": (asc.nansum, np.sum),
    "nanmean": (asc.nanmean, lambda x: np.sum(x).astype(np.float16).astype(float) / COUNT),  # which rounds the sum
    "matmul": (lambda x: x @ x, lambda x: x @ x),
    "of matrices": (lambda x: (x[None, :] @ x[:, None])[0, 0], lambda x: x @ x),
    "vecdot": (lambda x: asc.vecdot(x, x), lambda x: x @ x),
    "dot": (lambda x: asc.dot(x, x), lambda x: x @ x),
    "tensordot": (lambda x: asc.tensordot(x.reshape(100, -1), x.reshape(100, -1)), lambda x: x @ x),
    "einsum of two": (lambda x: asc.einsum("i,i->", x, x), lambda x: x @ x),
    "einsum of one": (lambda x: asc.einsum("ij->", x.reshape(100, -1)), np.sum),
    "conv2d_weight_grad": (weight_gradient, lambda x: x @ x),
    "vector_norm": (asc.linalg.vector_norm, np.linalg.norm),
    "matrix_norm": (lambda x: asc.linalg.matrix_norm(x.reshape(100, -1)), np.linalg.norm),
}
OF_ALL: dict[str, Reduced] = {
    "sum": (lambda x: asc.sum(x, axis=1), lambda x: x.sum(axis=1)),
    "var": (lambda x: asc.var(x, axis=1), lambda x: x.var(axis=1)),
    "einsum": (lambda x: asc.einsum("ij->i", x), lambda x: x.sum(axis=1)),
    "linear": (lambda x: linear(x, asc.ones((1, COUNT), dtype=asc.float16))[:, 0], lambda x: x.sum(axis=1)),
}  # fmt: skip
PRODUCTS: dict[str, Reduced] = {
    "prod": (lambda x: asc.prod(x, axis=1), lambda x: x.prod(axis=1)),
    "nanprod": (lambda x: asc.nanprod(x, axis=1), lambda x: x.prod(axis=1)),
}


@pytest.fixture(autouse=True)
def no_cub(card: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUB, which a card uses and host memory lacks, is never asked for a sum of halves."""
    if card.fake is not None or loaded() is None:
        yield
        return
    from cupy import _core
    from cupy.cuda import cub

    before = _core.get_routine_accelerators()

    def cub_reduction(
        x: Any, op: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> None:
        assert x.dtype != np.float16 or dtype not in (None, np.float16), f"CUB is asked for {op} of halves"

    monkeypatch.setattr(cub, "cub_reduction", cub_reduction)
    _core.set_routine_accelerators(["cub"])
    yield
    _core.set_routine_accelerators(before)


def as_exact(found: np.ndarray, expected: np.ndarray) -> None:
    """Rounded once, but for a few that lie half way between two halves."""
    rounded = np.asarray(expected).astype(np.float16)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(float), rounded.astype(float), rtol=2e-3)
    assert np.count_nonzero(found != rounded) <= 2, (found, rounded)


@pytest.mark.parametrize("name", OF_A_ROW)
async def test_to_one_number(s: asc.Scheduler, name: str) -> None:
    ours, theirs = OF_A_ROW[name]
    found = [await ours(await s.put(row)).numpy() for row in X]
    as_exact(np.array(found), np.array([theirs(row.astype(float)) for row in X]))


@pytest.mark.parametrize(
    ("table", "name"), [(OF_ALL, name) for name in OF_ALL] + [(PRODUCTS, name) for name in PRODUCTS]
)
async def test_along_an_axis(s: asc.Scheduler, table: dict[str, Reduced], name: str) -> None:
    x = NEAR_ONE if table is PRODUCTS else X
    ours, theirs = table[name]
    as_exact(await ours(await s.put(x)).numpy(), theirs(x.astype(float)))


async def test_a_variance_whose_squares_are_no_halves(s: asc.Scheduler) -> None:
    """And whose sum is none either."""
    x = np.tile(np.array([-300, 300], np.float16), COUNT // 2)
    y = await s.put(x / 2)
    assert await asc.std(await s.put(x)).item() == 300
    assert await asc.var(y).item() == 22_496  # 22,500 as a half
