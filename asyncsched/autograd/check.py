"""Comparing gradients with central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._arguments import check_plain
from ..runtime.context import current_scope, find
from ..runtime.runtime import Runtime
from ..tensors.putting import importable, make_put
from ..tensors.tensor import Tensor
from .backward import grad

Array = np.ndarray[Any, Any]


async def gradcheck(
    fn: Callable[..., Tensor],
    *inputs: Array,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    scheduler: Any = None,
) -> None:
    """Compare the gradients of `fn` with central differences, (f(x + eps) - f(x - eps)) / 2 eps for each element.

    The result of `fn` is weighted by random numbers (always the same) and summed, so one pass covers all its elements.

    Args:
        fn: from tensors to one tensor of floating-point numbers.
        inputs: arrays in float64, more than `eps` away from kinks. Gradients are checked for each.
        eps: the step.
        atol, rtol: the largest deviation of a gradient from the difference d: atol + rtol * abs(d).
        scheduler: default: the ambient one.

    Raises:
        AssertionError: names the element with the largest error.
        TypeError: for inputs of another dtype.
    """
    check_plain("fn", fn)
    for i, array in enumerate(inputs):
        if not isinstance(array, np.ndarray) or array.dtype != np.float64:
            raise TypeError(f"gradcheck: input {i} must be an ndarray of float64: `a.astype(float)` makes one")
    runtime = find(scheduler)
    tensors = [_put(runtime, array) for array in inputs]
    for tensor in tensors:
        tensor.requires_grad = True
    out = fn(*tensors)
    weights = np.random.default_rng(0).uniform(0.5, 1.5, (await out).shape)

    async def moved(i: int, place: tuple[int, ...], step: float) -> Any:
        """The weighted sum, with one element of one input moved by a step."""
        arrays = [array.copy() for array in inputs]
        arrays[i][place] += step
        return np.sum(weights * await fn(*[_put(runtime, array) for array in arrays]))

    for i, gradient in enumerate(grad([out], tensors, [_put(runtime, weights.astype(out.dtype))])):
        got, expected = await gradient, np.empty(inputs[i].shape)
        for place in np.ndindex(expected.shape):
            expected[place] = (await moved(i, place, eps) - await moved(i, place, -eps)) / (2 * eps)
        _compare(i, got, expected, atol, rtol)


def _compare(i: int, got: Array, expected: Array, atol: float, rtol: float) -> None:
    excess = np.abs(got - expected) - (atol + rtol * np.abs(expected))
    if not np.all(excess <= 0):  # also for a gradient that is NaN
        worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
        raise AssertionError(
            f"input {i}, element {tuple([int(n) for n in worst])}: the gradient is {got[worst]:.9g},"
            f" the central difference {expected[worst]:.9g}"
        )


def _put(runtime: Runtime, array: Array) -> Tensor:
    return make_put(runtime, current_scope(runtime), importable(runtime, array.copy(), None), bounded=False)[1]
