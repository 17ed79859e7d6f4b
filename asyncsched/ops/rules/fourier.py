"""Rules of Fourier transforms. NumPy computes in the precision of the operand, integers and bool in double."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options, resolve
from .common import as_meta, no_axis, sample

_HALVES = ("rfft", "rfftn", "ihfft")  # the result has the half that is not redundant
_DOUBLES = ("irfft", "irfftn", "hfft")  # the operand has that half


def along_axis(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A transform along one axis, of `n` points: the operand is cut off there or padded with zeros."""
    array, n = as_meta(operands[0]), options["n"]
    no_axis(array.bound, op.name)
    axis = normalize_axis_index(options["axis"], len(array.bound))
    return _transformed(op, array, [axis], [n])


def along_axes(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A transform along several axes, the last of them first."""
    array, s = as_meta(operands[0]), options["s"]
    given = range(len(array.bound)) if options["axes"] is None else options["axes"]
    axes = [normalize_axis_index(axis, len(array.bound)) for axis in given]
    if not axes and op.name in ("rfftn", "irfftn"):
        raise IndexError(f"{op.name}: at least one axis is needed")
    points: Sequence[int | None] = [None] * len(axes) if s is None else s
    if len(points) != len(axes):
        raise ValueError(f"{op.name}: shape and axes have different lengths: s={s} and axes={tuple(given)}")
    whole = [array.bound[axis] if n == -1 else n for axis, n in zip(axes, points, strict=True)]
    return _transformed(op, array, axes, whole)


def frequencies(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`fftfreq` and `rfftfreq`: made in double."""
    n, dtype = options["n"], np.dtype(options["dtype"])
    if n < 1:
        raise ValueError(f"{op.name}: the number of points must be positive, not {n}")
    result = meta((n // 2 + 1 if op.name == "rfftfreq" else n,), dtype)
    return Inferred(result, result.bound[0] * 8 * (1 + (dtype != np.float64)))


def _transformed(op: Op, array: Meta, axes: list[int], points: list[int | None]) -> Inferred:
    name, shape, dtype = op.name, list(array.bound), array.dtype
    largest = elements = max(_product(shape), 1)
    for i in reversed(range(len(axes))):
        axis, n = axes[i], points[i]
        last = i == len(axes) - 1
        if n is None:
            n = (shape[axis] - 1) * 2 if last and name in _DOUBLES else shape[axis]
        if n < 1:
            raise ValueError(f"Invalid number of FFT data points ({n}) specified.")
        shape[axis] = n // 2 + 1 if last and name in _HALVES else n
        largest = max(largest, _product(shape))
        dtype = _dtype(op, array, min(len(axes), 2)) if last else dtype
    result = meta(tuple(shape), dtype, array.contiguous)
    wide = np.result_type(dtype, np.complex64).itemsize
    # A plan's work area on CUDA; steps between axes; what is conjugated before.
    steps = 1 + (len(axes) > 1) + (name in ("hfft", "ihfft"))
    return Inferred(result, largest * wide * steps + (elements * wide if not array.contiguous else 0))


def _dtype(op: Op, array: Meta, axes: int) -> np.dtype[Any]:
    """The dtype of the result: half precision may stay along one axis, and was widened before along two."""
    options = {"axes": tuple(range(axes)), "s": None} if op.name.endswith("fftn") else {"axis": 0, "n": None}
    dtype: np.dtype[Any] = resolve(op, np)(sample(array, (2,) * axes), norm="backward", **options).dtype
    return dtype


def _product(shape: list[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
