"""Fourier transforms.

CuPy keeps the plans it made, with their work areas, per thread, and two streams must not use one at once: so on CUDA
these operations share a stream (`Op.resource`), and the plans are dropped when they hold more than `PLAN_BYTES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..declare import Inferred, Kernel, Meta, Op, Operand, Options, meta
from ..op import resolve
from ..rules import as_meta, no_axis, sample

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


# -- rules: what is known of results before anything is computed -------------------------------------------------------


class Half(Enum):
    """Which side of a transform has only the half that is not redundant."""

    NONE = "both are whole"
    OF_RESULT = "the result"
    OF_OPERAND = "the operand"


# Bytes of a number in double, before and after.
_SIZES = {Half.NONE: (16, 16), Half.OF_RESULT: (8, 16), Half.OF_OPERAND: (16, 8)}


def along_axis_rule(
    op: Op, operands: tuple[Operand, ...], options: Options, *, half: Half = Half.NONE, forwards: bool = False,
    conjugates: bool = False,
) -> Inferred:  # fmt: skip
    """A transform along one axis, of `n` points: the operand is cut off there or padded with zeros.

    Forwards means that the norm "backward" has no factor. `conjugates` is for a kernel that makes a conjugated copy
    first.
    """
    array, n = as_meta(operands[0]), options["n"]
    no_axis(array.bound, op.name)
    axis = normalize_axis_index(options["axis"], len(array.bound))
    double = _in_double(array, options, half, forwards=forwards)
    return _transformed(op, array, [(axis, n)], half, double=double, conjugates=conjugates)


def along_axes_rule(
    op: Op, operands: tuple[Operand, ...], options: Options, *, half: Half = Half.NONE, forwards: bool = False
) -> Inferred:
    """A transform along several axes, the last of them first."""
    array, s = as_meta(operands[0]), options["s"]
    given = range(len(array.bound)) if options["axes"] is None else options["axes"]
    axes = [normalize_axis_index(axis, len(array.bound)) for axis in given]
    if not axes and half is not Half.NONE:
        raise IndexError(f"{op.name}: at least one axis is needed")
    points: Sequence[int | None] = [None] * len(axes) if s is None else s
    if len(points) != len(axes):
        raise ValueError(f"{op.name}: shape and axes have different lengths: s={s} and axes={tuple(given)}")
    whole = [(axis, array.bound[axis] if n == -1 else n) for axis, n in zip(axes, points, strict=True)]
    double = _in_double(array, options, half, forwards=forwards)
    return _transformed(op, array, whole, half, double=double, several=True)


def frequencies_rule(op: Op, operands: tuple[Operand, ...], options: Options, *, half: bool = False) -> Inferred:
    """The frequencies of a transform, or the half of them that are not negative: made in double."""
    n, dtype = options["n"], np.dtype(options["dtype"])
    if n < 1:
        raise ValueError(f"{op.name}: the number of points must be positive, not {n}")
    result = meta((n // 2 + 1 if half else n,), dtype)
    return Inferred(result, result.bound[0] * 8 * (2 + (dtype != np.float64)))  # integers in two halves, and together


def _transformed(
    op: Op, array: Meta, places: Sequence[tuple[int, int | None]], half: Half, *, double: bool,
    several: bool = False, conjugates: bool = False,
) -> Inferred:  # fmt: skip
    """The result, from the axes and the points along each; `several` is for a kernel that takes several axes."""
    shape, dtype = list(array.bound), array.dtype
    largest = elements = max(_product(shape), 1)
    plan = 0
    order = list(enumerate(places))
    for i, (axis, n) in order if half is Half.OF_OPERAND else reversed(order):
        last = i == len(places) - 1
        if n is None:
            n = (shape[axis] - 1) * 2 if last and half is Half.OF_OPERAND else shape[axis]
        if n < 1:
            raise ValueError(f"Invalid number of FFT data points ({n}) specified.")
        plan = max(plan, _plan_bytes(n))
        shape[axis] = n // 2 + 1 if last and half is Half.OF_RESULT else n
        largest = max(largest, _product(shape))
        dtype = _dtype(op, array, min(len(places), 2), several) if last else dtype
    result = meta(tuple(shape), dtype, array.contiguous)
    wide = np.result_type(dtype, np.complex64).itemsize
    work = 0
    if double:  # the operand and the result are cast
        before, after = _SIZES[half]
        result_bytes = 0 if dtype.itemsize == after else _product(shape) * after
        work = 2 * largest * 16 if several else elements * before + result_bytes
    steps = (len(places) > 1) + conjugates  # between axes, and what is conjugated before
    copied = 0 if array.contiguous else elements * wide
    # On CUDA it is the work area of a plan.
    return Inferred(result, largest * wide * steps + max(largest * wide, work + plan) + copied)


def _in_double(array: Meta, options: Options, half: Half, *, forwards: bool) -> bool:
    """Whether NumPy makes numbers in double of the operand, and of the result those that it asks for.

    Real numbers are cast where complex ones are transformed, single precision where the factor is the integer 1.
    """
    if array.dtype.kind != ("f" if half is Half.OF_RESULT else "c") or array.dtype == np.float16:
        return True
    return array.dtype.itemsize < _SIZES[half][0] and (options["norm"] == "backward") == forwards


def _plan_bytes(n: int) -> int:
    """Bytes of what NumPy's FFT allocates for a length: roots of unity and a copy of a line, in double.

    If a prime factor is large it is a convolution (Bluestein's), of more than twice the length, in some arrays.
    """
    rest, prime, largest = n, 2, 1
    while prime * prime <= rest:
        while rest % prime == 0:
            rest, largest = rest // prime, prime
        prime += 1
    largest = max(largest, rest)
    return 16 * n * (10 if largest > 50 and largest * largest > n else 2)


def _dtype(op: Op, array: Meta, axes: int, several: bool) -> np.dtype[Any]:
    """The dtype of the result: half precision may stay along one axis, and was widened before along two."""
    options = {"axes": tuple(range(axes)), "s": None} if several else {"axis": 0, "n": None}
    dtype: np.dtype[Any] = resolve(op, np)(sample(array, (2,) * axes), norm="backward", **options).dtype
    return dtype


def _product(shape: list[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


# -- declarations ------------------------------------------------------------------------------------------------------


def _along_axis(name: str, half: Half = Half.NONE, *, forwards: bool = False, conjugates: bool = False) -> Op:
    rule = partial(along_axis_rule, half=half, forwards=forwards, conjugates=conjugates)
    return Op(name, transform(name), rule, resource="fft", doc=f"The transform `{name}` along an axis.")


def _along_axes(name: str, half: Half = Half.NONE, *, forwards: bool = False) -> Op:
    rule = partial(along_axes_rule, half=half, forwards=forwards)
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
    Op("fftfreq", fftfreq, frequencies_rule, doc="The frequencies of a transform."),
    Op(
        "rfftfreq", rfftfreq, partial(frequencies_rule, half=True),
        doc="The frequencies of a transform of real numbers.",
    ),
)  # fmt: skip
