"""Operands that move along directions drawn at random: so a gradient of many elements is checked at few numbers.

A derivative that is wrong anywhere is wrong along almost every direction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import asyncsched as asc

NOT_YET = np.zeros(2)  # how far along each of two directions, where the operands are those that were given


async def moved(
    s: asc.Scheduler, fn: Callable[..., asc.Tensor], arrays: tuple[np.ndarray, ...]
) -> Callable[[asc.Tensor], asc.Tensor]:
    """`fn` of these operands, all moved at once, as a function of how far."""
    rng = np.random.default_rng(0)
    points = [await s.put(array) for array in arrays]
    directions = [await s.put(rng.standard_normal((NOT_YET.size, *array.shape))) for array in arrays]

    def at(far: asc.Tensor) -> asc.Tensor:
        return fn(*[x + asc.tensordot(far, d, axes=1) for x, d in zip(points, directions, strict=True)])

    return at
