"""Gradients whose formulas have squares that are beyond the dtype: right or NaN, but never a wrong zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd.rules.elementwise import ELEMENTWISE
from tests.declared import ARITIES

from .test_tape import leaf

pytestmark = pytest.mark.one_loop
LARGE = np.array([[300.0, -400.0, 1200.0], [20_000.0, 30_000.0, -60_000.0]])
FUNCTIONS: dict[str, Callable[[asc.Tensor], asc.Tensor]] = {
    "vector_norm": asc.linalg.vector_norm,
    "vector_norm of rows": lambda x: asc.linalg.vector_norm(x, axis=1),
    "vector_norm of order 3": lambda x: asc.linalg.vector_norm(x, ord=3),
    "matrix_norm": asc.linalg.matrix_norm,
    "matrix_norm of sums": lambda x: asc.linalg.matrix_norm(x, ord=1),
    "std": lambda x: asc.std(x, axis=1),
    "var": lambda x: asc.var(x * 0.01, axis=1),
    "nanstd": lambda x: asc.nanstd(x, axis=1),
    "nanvar": lambda x: asc.nanvar(x * 0.01, axis=1),
    "hypot": lambda x: asc.hypot(x, asc.flip(x)),
    "hypot with a number": lambda x: asc.hypot(x, 40_000.0),
    "atan": lambda x: asc.atan(x / 100),
    "atan2": lambda x: asc.atan2(x, asc.flip(x) / 4),
    "asinh": asc.asinh,
    "acosh": lambda x: asc.acosh(asc.abs(x)),
    "log10": lambda x: asc.log10(asc.abs(x)),
    "reciprocal": lambda x: asc.reciprocal(x / 100),
    "gelu": lambda x: nn.functional.gelu(x, "tanh"),
    "rms_norm": lambda x: nn.functional.rms_norm(x, 3),
}


async def gradient(s: asc.Scheduler, fn: Callable[[asc.Tensor], asc.Tensor], array: np.ndarray) -> np.ndarray:
    x = await leaf(s, array)
    found = fn(x)
    found.backward(asc.full(found.shape, 1, dtype=found.dtype))
    return await x.grad


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_half_precision_has_the_gradient_of_double(s, name):
    half, double = [await gradient(s, FUNCTIONS[name], LARGE.astype("f2").astype(dtype)) for dtype in ("f2", "f8")]
    np.testing.assert_allclose(half, double, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ELEMENTWISE if ARITIES.get(name) == 1 and hasattr(asc, name)])
async def test_no_function_of_elements_has_a_wrong_zero(s, name):
    array = (LARGE if name != "atanh" else LARGE / 1e5).astype("f2")
    half, double = [await gradient(s, getattr(asc, name), array.astype(dtype)) for dtype in ("f2", "f8")]
    assert not ((half == 0) & (np.abs(double) > 1e-6)).any()


@pytest.mark.parametrize("scale", [1e20, 1e-25])
@pytest.mark.parametrize("name", ["vector_norm", "vector_norm of rows", "matrix_norm", "std", "nanstd"])
async def test_single_precision_has_no_wrong_zero(s, name, scale):
    array = LARGE / 300 * scale
    single, double = [await gradient(s, FUNCTIONS[name], array.astype(dtype)) for dtype in ("f4", "f8")]
    wrong = ~np.isnan(single) & ~np.isclose(single, double, rtol=1e-4)
    assert not wrong.any()


@pytest.mark.parametrize("fn", [asc.linalg.vector_norm, asc.linalg.matrix_norm, asc.std, asc.nanstd, asc.var])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
async def test_the_gradient_where_all_is_zero_is_zero(s, fn, dtype):
    assert not (await gradient(s, fn, np.zeros((2, 3), dtype))).any()


SCALED: dict[str, tuple[Callable[[asc.Tensor], asc.Tensor], list[float]]] = {
    "divide": (lambda x: 800 / x, [8.0, -16.0]),
    "log10": (asc.log10, [0.05, 0.25]),
    "silu": (nn.silu, [10.0, 30.0, -3.0]),
    "smooth_l1_loss, wide bend": (lambda x: nn.smooth_l1_loss(x, x * 0, reduction="none", beta=1000.0), [300.0, -700]),
    "smooth_l1_loss, narrow bend": (lambda x: nn.smooth_l1_loss(x, x * 0, reduction="none", beta=1e-6), [0.0, 3.0]),
    "huber_loss": (lambda x: nn.huber_loss(x, x * 0, reduction="none", delta=200.0), [3.0, -0.5]),
}


@pytest.mark.parametrize("name", SCALED)
async def test_a_scaled_loss_has_the_gradient_of_double(s, name):
    """A loss is multiplied by a large number, so that small gradients are no zeros in half precision."""
    function, numbers = SCALED[name]
    found = []
    for dtype in ("f2", "f8"):
        x = await leaf(s, np.array(numbers, dtype))
        value = function(x)
        value.backward(asc.full(value.shape, 5000, dtype=dtype))
        found.append((await value, await x.grad))
    (half, slope), (double, expected) = found
    np.testing.assert_allclose(half, double, rtol=0.01)
    np.testing.assert_allclose(slope, expected, rtol=0.01)


async def test_a_quotient_by_a_small_number_has_a_gradient_in_half_precision(s):
    x = await leaf(s, np.array([0.02], "f2"))
    (100 / x).backward(await s.put(np.array([1e-3], "f2")))
    np.testing.assert_allclose(await x.grad, -250, rtol=0.01)
