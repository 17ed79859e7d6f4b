"""Steps of optimisers: whole updates in one task, with one temporary array instead of one for each operation.

Without `out`, a kernel first makes an array for the result: also for one without axes, for which NumPy would return a
scalar.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import Any

import numpy as np

from ..declare import Inferred, Meta, Op, Operand, Options, elementwise, meta


def axpby(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y, where x may be a number."""
    out = _like(xp, x, y) if out is None else out
    scaled = xp.multiply(y, b, out=xp.empty_like(y))
    return xp.add(x if a == 1 else xp.multiply(x, a, out=out), scaled, out=out)


def axpby_squared(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y**2, where x may be a number."""
    out = _like(xp, x, y) if out is None else out
    squared = xp.square(y, out=xp.empty_like(y))
    xp.multiply(squared, b, out=squared)
    xp.multiply(x, a, out=out)
    return xp.add(out, squared, out=out)


def adam_step(
    xp: Any, x: Any, mean: Any, square: Any, count: Any,
    lr: float, decay: float, b1: float, b2: float, eps: float, *, out: Any = None,
) -> Any:  # fmt: skip
    """(1 - lr decay) x - lr (mean / (1 - b1**count)) / (sqrt(square / (1 - b2**count)) + eps)."""
    out = xp.empty_like(x) if out is None else out
    if xp is np:
        rate, scale = lr / (1 - b1 ** int(count)), 1 / sqrt(1 - b2 ** int(count))
    else:  # the count is on the device, and the host would have to wait for it
        steps = count.astype(xp.float32 if x.dtype == xp.float16 else x.dtype)
        rate = (lr / _bias_correction(xp, b1, steps)).astype(x.dtype)
        scale = (1 / xp.sqrt(_bias_correction(xp, b2, steps))).astype(x.dtype)
    change = xp.sqrt(square, out=xp.empty_like(square))
    xp.multiply(change, scale, out=change)
    xp.add(change, eps, out=change)
    xp.divide(mean, change, out=change)
    xp.multiply(change, rate, out=change)
    xp.multiply(x, 1 - lr * decay, out=out)
    return xp.subtract(out, change, out=out)


def _bias_correction(xp: Any, b: float, steps: Any) -> Any:
    """1 - b**steps, accurate in single precision.

    The power is taken for each element on a card; in single precision, the difference would lose most of its digits.
    """
    return -xp.expm1(steps * (log(b) if b else -inf))


def rms_scaled(xp: Any, x: Any, square: Any, eps: float, *, out: Any = None) -> Any:
    """x / (sqrt(square) + eps)."""
    scale = xp.sqrt(square, out=xp.empty_like(square))
    xp.add(scale, eps, out=scale)
    return xp.divide(x, scale, out=xp.empty_like(x) if out is None else out)


def _like(xp: Any, x: Any, y: Any) -> Any:
    """A new array in the layout of `x`, or in C order and the shape of `y` if `x` is a number."""
    return xp.empty_like(x) if getattr(x, "ndim", 0) else xp.empty(y.shape, y.dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


def update_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A result like the first operand, or in C order if that is a number. Workspace: one more array.

    All operands must be alike, except numbers and a count.
    """
    first, *more = arrays = [operand for operand in operands if isinstance(operand, Meta)]
    if more and more[-1].shape == () and more[-1].dtype.kind == "i":  # the count of steps
        arrays.pop()
    if any(array.shape != first.shape or array.dtype != first.dtype for array in arrays):
        raise ValueError(f"{op.name}: the operands must be alike, but are {', '.join(map(repr, arrays))}")
    in_order = first.contiguous if first is operands[0] else True
    return Inferred(meta(first.shape, first.dtype, in_order), first.nbytes)


OPS = (
    elementwise(axpby, update_rule, "a x + b y, where a and b are numbers."),
    elementwise(axpby_squared, update_rule, "a x + b y**2, where a and b are numbers."),
    elementwise(rms_scaled, update_rule, "x over the root of averaged squares."),
    elementwise(adam_step, update_rule, "A step of Adam."),
)
