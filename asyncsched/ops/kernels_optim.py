"""Kernels of optimisers: whole updates in one task, with one temporary array instead of one per step."""

from __future__ import annotations

from typing import Any


def axpby(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y."""
    scaled = xp.multiply(y, b)
    return xp.add(xp.multiply(x, a, out=out), scaled, out=out)


def axpby_squared(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y**2."""
    squared = xp.square(y, out=xp.empty_like(y))  # an array also where there are no axes
    xp.multiply(squared, b, out=squared)
    return xp.add(xp.multiply(x, a, out=out), squared, out=out)


def adam_step(
    xp: Any, x: Any, mean: Any, square: Any, keep: float, rate: float, scale: float, eps: float, *, out: Any = None
) -> Any:
    """keep x - rate mean / (scale sqrt(square) + eps)."""
    change = xp.sqrt(square, out=xp.empty_like(square))
    xp.multiply(change, scale, out=change)
    xp.add(change, eps, out=change)
    xp.divide(mean, change, out=change)
    xp.multiply(change, rate, out=change)
    return xp.subtract(xp.multiply(x, keep, out=out), change, out=out)
