"""Fourier transforms.

CuPy keeps its plans, with their work areas, for each thread, and two streams must not use one at once. So on CUDA these
operations share a stream (`Op.resource`) and go into no graph, which would keep the address of a work area. The plans
are dropped when they hold more than `PLAN_BYTES`, and when their stream ends, since the memory is of its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..declare import Inferred, Kernel, Op, Operand, Options, meta
from ..rules import Known, as_meta, no_axis

PLAN_BYTES = 32 * 2**20  # of work areas that outlive their task and are charged to no task


def transform(name: str) -> Kernel:
    """A transform along one axis, several, or all."""

    def kernel(xp: Any, x: Any, **options: Any) -> Any:
        axes = options["axes"] if "axes" in options else (options["axis"],)
        if axes == ():
            return x.copy(order="K")
        found = getattr(xp.fft, name)(_with_first(xp, x, -1 if axes is None else axes[-1], name), **options)
        forget_plans(xp)
        return found

    return kernel


def forget_plans(xp: Any) -> None:
    """Drop the plans that CuPy keeps for this thread and the current device if they hold more than `PLAN_BYTES`."""
    if xp is not np:
        cache = xp.fft.config.get_plan_cache()
        if cache.get_curr_memsize() > PLAN_BYTES:
            size = cache.get_size()
            cache.set_size(0)  # not `clear`, which runs the garbage collector
            cache.set_size(size)


def forget_all_plans(cupy: Any) -> None:
    """Drop all of them, when the thread's stream has ended."""
    cache = cupy.fft.config.get_plan_cache()
    if cache.get_curr_size():
        cache.clear()  # not `set_size`, which crashes if CuPy has emptied the cache since the interpreter ends


def _with_first(xp: Any, x: Any, axis: int, name: str) -> Any:
    """The operand; with one zero along an axis if that is empty, where NumPy would read undefined memory."""
    if name not in ("irfft", "irfftn") or x.shape[axis]:
        return x
    return xp.zeros([1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)], x.dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


class Half(Enum):
    """Which side of a transform stores only half, since the other half is redundant."""

    NONE = "both sides are whole"
    OF_RESULT = "the result"
    OF_OPERAND = "the operand"


def transform_rule(op: Op, operands: tuple[Operand, ...], options: Options, *, half: Half) -> Inferred:
    """A transform along axes, of `n` or `s` points: the operand is cut off there or padded with zeros.

    Workspace: NumPy transforms along one axis after the other. Each time it casts what is not of the loop's dtypes.
    """
    array = as_meta(operands[0])
    shape, dtype, places = list(array.bound), array.dtype, places_of(op.name, array.bound, options)
    if not places and half is not Half.NONE:
        raise IndexError(f"{op.name}: at least one axis is needed")
    if half is Half.OF_RESULT and dtype.kind == "c":
        raise TypeError(f"{op.name}: the operand must be real, not {dtype}: use `{op.name[1:]}`")
    forward = op.name[0] != "i"
    scaled = options["norm"] == "ortho" or (options["norm"] == "forward") == forward
    largest = elements = max(prod(shape), 1)
    plan = made = most = 0  # bytes
    order = list(enumerate(places))
    for i, (axis, n) in order if half is Half.OF_OPERAND else reversed(order):
        kind = half if i == len(places) - 1 else Half.NONE
        if n is None:
            n = (array.bound[axis] - 1) * 2 if kind is Half.OF_OPERAND else array.bound[axis]
        if n < 1:
            raise ValueError(f"Invalid number of FFT data points ({n}) specified.")
        taken, given, found = _loop(dtype, kind, scaled)
        plan = max(plan, _plan_bytes(n, taken, given))
        used = made + _plan_bytes(n, taken, given) + (prod(shape) * taken.itemsize if taken != dtype else 0)
        shape[axis] = n // 2 + 1 if kind is Half.OF_RESULT else n
        count, dtype = prod(shape), found
        made = count * found.itemsize
        most = max(most, used + made + (count * given.itemsize if given != found else 0))
        largest = max(largest, count)
    wide = np.result_type(dtype, np.complex64).itemsize
    # There a copy, what is between two axes, and the work area of a plan.
    on_card = elements * wide + largest * wide * (len(places) > 1) + max(largest * wide, plan)
    return Inferred(meta(tuple(shape), dtype, array.contiguous), most - made, on_card=on_card)


def _loop(dtype: np.dtype[Any], half: Half, scaled: bool) -> tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]]:
    """The dtypes that NumPy's loop takes and gives, and that of the result.

    Single precision has a loop of its own if the numbers need no cast and are scaled; else all are cast to double.
    """
    single = scaled and dtype == (np.float32 if half is Half.OF_RESULT else np.complex64)
    inside = np.dtype(np.complex64) if single else np.result_type(dtype, np.complex128)
    real, own = np.finfo(inside).dtype, np.finfo(dtype).dtype if dtype.kind == "c" else dtype
    if half is Half.OF_OPERAND:
        return inside, real, np.result_type(own, 1.0)
    return real if half is Half.OF_RESULT else inside, inside, np.result_type(dtype, 1j)


def places_of(name: str, shape: Known, options: Options) -> list[tuple[int, int | None]]:
    """The axes of a transform, and the number of points along each: None for the operand's own."""
    if "axis" in options:
        no_axis(shape, name)
        return [(normalize_axis_index(options["axis"], len(shape)), options["n"])]
    s, given = options["s"], range(len(shape)) if options["axes"] is None else options["axes"]
    axes = [normalize_axis_index(axis, len(shape)) for axis in given]
    points: Sequence[int | None] = [None] * len(axes) if s is None else s
    if len(points) != len(axes):
        raise ValueError(f"{name}: shape and axes have different lengths: s={s} and axes={tuple(given)}")
    return [(axis, shape[axis] if n == -1 else n) for axis, n in zip(axes, points, strict=True)]


def _plan_bytes(n: int, taken: np.dtype[Any], given: np.dtype[Any]) -> int:
    """Bytes that NumPy's FFT allocates for a length: roots of unity and a copy of a line, of real or complex numbers.

    If a prime factor is large, it is a convolution (Bluestein's) of more than twice the length, with several arrays.
    """
    rest, prime, largest = n, 2, 1
    while prime * prime <= rest:
        while rest % prime == 0:
            rest, largest = rest // prime, prime
        prime += 1
    largest = max(largest, rest)
    several = largest > 50 and largest * largest > n
    return n * (10 * max(taken.itemsize, given.itemsize) if several else 2 * min(taken.itemsize, given.itemsize))


# -- declarations ------------------------------------------------------------------------------------------------------


def _transform(name: str, half: Half = Half.NONE) -> Op:
    along = "several axes" if name.endswith("n") else "an axis"
    doc = f"The transform `{name}` along {along}."
    return Op(name, transform(name), partial(transform_rule, half=half), resource="fft", doc=doc)


OPS = (
    _transform("fft"),
    _transform("ifft"),
    _transform("rfft", Half.OF_RESULT),
    _transform("irfft", Half.OF_OPERAND),
    _transform("fftn"),
    _transform("ifftn"),
    _transform("rfftn", Half.OF_RESULT),
    _transform("irfftn", Half.OF_OPERAND),
)
