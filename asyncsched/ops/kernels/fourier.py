"""Kernels of Fourier transforms.

CuPy keeps the plans it made, with their work areas, per thread, and two streams must not use one at once: so on CUDA
these rows share a stream (`Op.resource`), and the plans are dropped when they hold more than `PLAN_BYTES`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..op import Kernel

PLAN_BYTES = 32 * 2**20  # of work areas that outlive their task, and which no task is charged for


def transform(name: str) -> Kernel:
    """A transform along one axis."""

    def kernel(xp: Any, x: Any, *, n: int | None, axis: int, norm: str) -> Any:
        return _bounded(xp, getattr(xp.fft, name)(x, n, axis, norm))

    return kernel


def transform_axes(name: str) -> Kernel:
    """A transform along several axes, or all."""

    def kernel(xp: Any, x: Any, *, s: Any, axes: Any, norm: str) -> Any:
        if axes == ():
            return x.copy(order="K")
        return _bounded(xp, getattr(xp.fft, name)(x, s, axes, norm))

    return kernel


def fftfreq(xp: Any, *, n: int, d: float, dtype: Any) -> Any:
    """The frequencies of a transform."""
    return xp.fft.fftfreq(n, d).astype(dtype, copy=False)


def rfftfreq(xp: Any, *, n: int, d: float, dtype: Any) -> Any:
    """The frequencies of a transform of real numbers."""
    return xp.fft.rfftfreq(n, d).astype(dtype, copy=False)


def _bounded(xp: Any, result: Any) -> Any:
    if xp is not np:
        cache = xp.fft.config.get_plan_cache()
        if cache.get_curr_memsize() > PLAN_BYTES:
            cache.clear()
    return result
