"""Fourier transforms.

CuPy keeps the plans it made, with their work areas, per thread, and two streams must not use one at once: so on CUDA
these operations share a stream (`Op.resource`), and the plans are dropped when they hold more than `PLAN_BYTES`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..declare import Kernel, Op
from ..rules import fourier as rules
from ..rules.fourier import Half

PLAN_BYTES = 32 * 2**20  # of work areas that outlive their task, and which no task is charged for


def transform(name: str) -> Kernel:
    """A transform along one axis."""

    def kernel(xp: Any, x: Any, *, n: int | None, axis: int, norm: str) -> Any:
        return _bounded(xp, getattr(xp.fft, name)(_with_first(xp, x, axis, name), n, axis, norm))

    return kernel


def transform_axes(name: str) -> Kernel:
    """A transform along several axes, or all."""

    def kernel(xp: Any, x: Any, *, s: Any, axes: Any, norm: str) -> Any:
        if axes == ():
            return x.copy(order="K")
        last = -1 if axes is None else axes[-1]
        return _bounded(xp, getattr(xp.fft, name)(_with_first(xp, x, last, name), s, axes, norm))

    return kernel


def fftfreq(xp: Any, *, n: int, d: float, dtype: Any) -> Any:
    """The frequencies of a transform."""
    return xp.fft.fftfreq(n, d).astype(dtype, copy=False)


def rfftfreq(xp: Any, *, n: int, d: float, dtype: Any) -> Any:
    """The frequencies of a transform of real numbers."""
    return xp.fft.rfftfreq(n, d).astype(dtype, copy=False)


def _with_first(xp: Any, x: Any, axis: int, name: str) -> Any:
    """The operand, or one zero along an axis where it has nothing: NumPy reads what happens to lie in memory there."""
    if name not in ("irfft", "hfft", "irfftn") or x.shape[axis]:
        return x
    return xp.zeros([1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)], x.dtype)


def _bounded(xp: Any, result: Any) -> Any:
    if xp is not np:
        cache = xp.fft.config.get_plan_cache()
        if cache.get_curr_memsize() > PLAN_BYTES:
            cache.clear()
    return result


def _along_axis(name: str, half: Half = Half.NONE, *, forwards: bool = False, conjugates: bool = False) -> Op:
    rule = partial(rules.along_axis, half=half, forwards=forwards, conjugates=conjugates)
    return Op(name, transform(name), rule, resource="fft", doc=f"The transform `{name}` along an axis.")


def _along_axes(name: str, half: Half = Half.NONE, *, forwards: bool = False) -> Op:
    rule = partial(rules.along_axes, half=half, forwards=forwards)
    return Op(name, transform_axes(name), rule, resource="fft", doc=f"The transform `{name}` along several axes.")


OPS = (
    _along_axis("fft", forwards=True),
    _along_axis("ifft"),
    _along_axis("rfft", Half.OF_RESULT, forwards=True),
    _along_axis("irfft", Half.OF_OPERAND),
    _along_axis("hfft", Half.OF_OPERAND, forwards=True, conjugates=True),
    _along_axis("ihfft", Half.OF_RESULT, conjugates=True),
    _along_axes("fftn", forwards=True),
    _along_axes("ifftn"),
    _along_axes("rfftn", Half.OF_RESULT, forwards=True),
    _along_axes("irfftn", Half.OF_OPERAND),
    Op("fftfreq", fftfreq, rules.frequencies, doc="The frequencies of a transform."),
    Op(
        "rfftfreq", rfftfreq, partial(rules.frequencies, half=True),
        doc="The frequencies of a transform of real numbers.",
    ),
)  # fmt: skip
