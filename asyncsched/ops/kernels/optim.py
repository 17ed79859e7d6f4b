"""Kernels of optimisers: whole updates in one task, with one temporary array instead of one per step.

Without `out` they make it first, which is an array also where there are no axes; what NumPy returns there is not.
"""

from __future__ import annotations

from typing import Any


def axpby(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y."""
    out = xp.empty_like(x) if out is None else out
    scaled = xp.multiply(y, b)
    return xp.add(x if a == 1 else xp.multiply(x, a, out=out), scaled, out=out)


def axpby_squared(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y**2."""
    out = xp.empty_like(x) if out is None else out
    squared = xp.square(y, out=xp.empty_like(y))
    xp.multiply(squared, b, out=squared)
    xp.multiply(x, a, out=out)
    return xp.add(out, squared, out=out)


def adam_step(
    xp: Any, x: Any, mean: Any, square: Any, keep: float, rate: float, scale: float, eps: float, *, out: Any = None
) -> Any:
    """keep x - rate mean / (scale sqrt(square) + eps)."""
    out = xp.empty_like(x) if out is None else out
    change = xp.sqrt(square, out=xp.empty_like(square))
    xp.multiply(change, scale, out=change)
    xp.add(change, eps, out=change)
    xp.divide(mean, change, out=change)
    xp.multiply(change, rate, out=change)
    xp.multiply(x, keep, out=out)
    return xp.subtract(out, change, out=out)
