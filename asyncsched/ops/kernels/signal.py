"""Operations on sequences: interpolation, convolution, padding, windows, and Fourier transforms.

On the host they are NumPy's functions. CuPy has all of them except padding with the median. Where CuPy would wait for
the device, or pads differently from NumPy, other functions are used here.

CuPy keeps its plans of transforms, with their work areas, for each thread, and two streams must not use one at once. So
on CUDA these operations share a stream (`Op.resource`) and go into no graph, which would keep the address of a work
area. The plans are dropped when they hold more than `PLAN_BYTES`, and when their stream ends, since the memory is of
its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..declare import Blas, Cost, Inferred, Kernel, Meta, Op, Operand, Options, meta, operation, resolve, with_out
from ..quiet import quietly
from ..rules import Known, as_meta, no_axis, sample, shrunk, view_rule
from .create import zeros

Pairs = tuple[tuple[int, int], ...]


def interp(xp: Any, x: Any, points: Any, values: Any, *, left: Any, right: Any, period: Any) -> Any:
    """Values between points. CuPy would wait for a number as an argument, and cast it to the dtype of the values."""
    if xp is np:
        return np.interp(x, points, values, left, right, period)
    x, points = [xp.asarray(a, np.float64, "C") for a in (x, points)]
    values = xp.asarray(values, np.complex128 if values.dtype.kind == "c" else np.float64, "C")
    ends = [None if end is None else xp.full((), end, values.dtype) for end in (left, right)]
    return xp.interp(x, points, values, *ends, period)


def convolve(xp: Any, a: Any, v: Any, *, mode: str) -> Any:
    """The convolution of two sequences."""
    found = xp.convolve(*[xp.asarray(x).reshape(-1) for x in (a, v)], mode)
    forget_plans(xp)
    return found


def pad(xp: Any, x: Any, *, pad_width: Pairs, mode: str, **options: Any) -> Any:
    """Add elements around. CuPy's reflections differ from NumPy's where they are longer than the reflected part."""
    if xp is np:
        # The rule has checked the text
        return np.pad(x, pad_width or 0, mode, **options)  # type: ignore[call-overload]
    if is_gathered(mode, options):
        for axis, (before, after) in enumerate(pad_width):
            if before or after:
                n = x.shape[axis]
                x = xp.take(x, gathered_from(xp, xp.arange(-before, n + after), n, mode), axis=axis)
        return x if any(map(any, pad_width)) else x.copy()
    wide = any(max(width) > max(n - (mode == "reflect"), 1) for n, width in zip(x.shape, pad_width, strict=True))
    if mode == "median" or ("reflect_type" in options and wide):
        raise NotImplementedError(f"pad: CuPy has no mode {mode!r} for this: use another, or `await t.numpy()` first")
    if mode == "linear_ramp":
        return _ramped(xp, x, pad_width, np.broadcast_to(options.get("end_values", 0), (x.ndim, 2)).tolist())
    return xp.pad(x, pad_width, mode, **options)


def _ramped(xp: Any, x: Any, pad_width: Pairs, end_values: Sequence[Sequence[Any]]) -> Any:
    """Ramps from the ends to the edges, by NumPy's formula. CuPy's function waits for the device."""
    dtype, wide = x.dtype, np.result_type(x.dtype, np.float64)
    for axis, (pair, ends) in enumerate(zip(pad_width, end_values, strict=True)):
        lines = xp.moveaxis(x, axis, -1)
        edges = [lines[..., :1].astype(wide), lines[..., -1:].astype(wide)]
        ramps = [end + (edge - end) / max(n, 1) * xp.arange(n) for n, end, edge in zip(pair, ends, edges, strict=True)]
        first, last = [(xp.floor(ramp) if dtype.kind in "iu" else ramp).astype(dtype) for ramp in ramps]
        x = xp.moveaxis(xp.concatenate([first, lines, last[..., ::-1]], axis=-1), -1, axis)
    return x


def is_gathered(mode: str, options: Options) -> bool:
    """Whether a padding consists of elements as they are."""
    return mode in ("edge", "wrap", "reflect", "symmetric") and options.get("reflect_type", "even") == "even"


def gathered_from(xp: Any, at: Any, n: int, mode: str) -> Any:
    """The indices, among `n` along an axis, of the elements that a padding has at the positions `at`.

    Positions before the first are negative. `xp` is an array namespace, or this package.
    """
    if mode == "edge":
        return xp.clip(at, 0, n - 1)
    if mode == "wrap":
        return at % n
    period = 2 * n - 1 if mode == "symmetric" else max(2 * n - 2, 1)  # of the last position, counted from 0 or from 1
    at = at % (period + (mode == "symmetric"))
    return xp.minimum(at, period - at)


def sliding_window_view(xp: Any, x: Any, *, window_shape: Known, axis: Known) -> Any:
    """Every window: a view. CuPy's function waits for the device, to look at lengths that are known."""
    tricks = xp.lib.stride_tricks
    if xp is np:
        return tricks.sliding_window_view(x, window_shape, axis)
    shape = list(x.shape)
    for at, length in zip(axis, window_shape, strict=True):
        shape[at] -= length - 1
    return tricks.as_strided(x, (*shape, *window_shape), (*x.strides, *[x.strides[at] for at in axis]))


def overlap_add(xp: Any, windows: Any, *, axis: int, out: Any = None) -> Any:
    """Add windows, which are the last axis, at their positions along another axis: the transpose of sliding windows."""
    *shape, width = windows.shape
    count = shape[axis]
    shape[axis] += width - 1
    out = zeros(xp, shape=tuple(shape), dtype=windows.dtype, out=out)
    lines, parts = xp.moveaxis(out, axis, -1), xp.moveaxis(windows, axis, -2)
    for k in range(min(count, width)):
        if width <= count:
            lines[..., k : k + count] += parts[..., k]
        else:
            lines[..., k : k + width] += parts[..., k, :]
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def interp_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """In double precision, for any operands: each is cast and copied unless it is float64 in C order."""
    x, points, values = [as_meta(operand) for operand in operands]
    if len(points.bound) != 1 or len(values.bound) != 1:
        raise ValueError(f"interp: xp and fp must have one dimension, not shapes {points.bound} and {values.bound}")
    if points.bound != values.bound:
        raise ValueError(f"interp: fp and xp are not of the same length: {values.bound[0]} and {points.bound[0]}")
    if points.bound == (0,):
        raise ValueError("interp: array of sample points is empty")
    if "c" in (x.dtype.kind, points.dtype.kind):
        raise TypeError("interp: x and xp must be real; only fp may be complex")
    dtype = resolve(op, np)(*[sample(one) for one in (x, points, values)], **options).dtype
    count, known, width = prod(x.bound), points.bound[0], dtype.itemsize
    forms = ((x, np.float64, count * 8), (points, np.float64, known * 8), (values, dtype, known * width))
    workspace = sum(nbytes for one, wanted, nbytes in forms if one.dtype != wanted or not one.contiguous)
    if options["period"] is not None:  # remainders, their order, points with two more, and the values likewise
        after_cast = x.dtype != np.float64 and x.contiguous  # the cast is dropped before there is a result
        workspace += (0 if after_cast else count * 8) + known * (2 * 8 + 2 * width)
    elif known <= count:
        workspace += known * width  # slopes
    return Inferred(meta(x.shape, dtype), workspace)


def gradient_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The form of the first operand, in floating point; the caller has checked the arguments.

    Workspace: differences; or of two, which are weighted, what is more than the result. NumPy reuses temporary arrays.
    """
    f, spacing = [as_meta(operand) for operand in operands]
    dtype = f.dtype if f.dtype.kind in "fc" else np.dtype(np.float64)
    exact = isinstance(operands[1], (Meta, np.generic))  # otherwise a Python number, which adapts to the other dtype
    count, wide = prod(f.bound), np.result_type(dtype, spacing.dtype).itemsize if exact else dtype.itemsize
    each = max(wide, 2 * wide - dtype.itemsize) if spacing.bound else wide
    rest = count * (8 if f.dtype != dtype else 0) + 8 * prod(spacing.bound) * wide
    on_card = count * (3 if spacing.bound else 2) * wide + rest  # CuPy reuses none
    return Inferred(meta(f.shape, dtype, f.contiguous), count * each + rest, on_card=on_card)


def convolve_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The sums of products of two overlapping sequences. The shorter one is copied in reverse."""
    arrays = [as_meta(operand) for operand in operands]
    counts = [prod(array.bound) for array in arrays]
    for name, array, count in zip("av", arrays, counts, strict=True):
        if len(array.bound) > 1:
            raise ValueError(f"convolve: {name} must have one dimension, not shape {array.bound}")
        if not count:
            raise ValueError(f"convolve: {name} cannot be empty")
    dtype = resolve(op, np)(*[sample(operand) for operand in operands], **options).dtype
    longer, shorter = max(counts), min(counts)
    length = {"full": longer + shorter - 1, "same": longer, "valid": longer - shorter + 1}[options["mode"]]
    copied = [0 if a.contiguous and a.dtype == dtype else n for a, n in zip(arrays, counts, strict=True)]
    work = 10 * longer * shorter  # one sum after the other: ten times as long as a product of matrices
    return Inferred(meta((length,), dtype), (sum(copied) + shorter) * dtype.itemsize, work=work)


def pad_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The operand with its padding. NumPy checks the options, on an operand of one element with less padding."""
    array, pairs, mode = as_meta(operands[0]), options["pad_width"], options["mode"]
    if options.get("stat_length") is not None and not np.all(options["stat_length"]):
        raise ValueError("stat_length of 0 yields no value for padding")
    little = tuple([(min(before, 1), min(after, 1)) for before, after in pairs])
    more = {name: value for name, value in options.items() if name not in ("pad_width", "mode")}
    quietly(partial(np.pad, shrunk(array), little or 0, mode, **more))
    shape = tuple([before + n + after for n, (before, after) in zip(array.bound, pairs, strict=True)])
    result = meta(shape, array.dtype, array.contiguous)
    return Inferred(result, _pad_bytes(array, shape, pairs, mode, options))


def _pad_bytes(array: Meta, padded: Known, pairs: Pairs, mode: str, options: Options) -> int:
    """Bytes that NumPy takes along one axis after the other, when the axes before it are padded already."""
    most, size, shape = 0, array.dtype.itemsize, array.bound
    wide = np.result_type(array.dtype, np.float64)
    for axis, (n, width) in enumerate(zip(shape, pairs, strict=True)):
        if not any(width) or mode in ("constant", "empty"):
            continue
        each, widest = 0, max(width)
        if mode == "linear_ramp":  # a cast, unless in double
            each = sum(width) * size + (widest * wide.itemsize if array.dtype != wide else 0)
        elif mode == "median":  # of a sorted copy
            each = n * size * (1 if array.contiguous else 2) + 4 * wide.itemsize
        elif mode in ("maximum", "minimum", "mean"):
            each = 3 * wide.itemsize
        elif axis or not array.contiguous or options.get("reflect_type") == "odd":
            each = widest * size  # a copy: only for rows can NumPy tell that source and target do not overlap
            if array.dtype == bool and options.get("reflect_type") == "odd":
                each += widest * 8  # twice the edge, less that, in integers
        most = max(most, each * prod(padded[:axis]) * prod(shape[axis + 1 :]))
    return most


def overlap_add_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """As long as the windows reach."""
    array = as_meta(operands[0])
    *shape, width = array.bound
    shape[normalize_axis_index(options["axis"], len(shape))] += width - 1
    return Inferred(meta(tuple(shape), array.dtype))


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


def _half(name: str) -> Half:
    return Half.OF_OPERAND if name.startswith("irfft") else Half.OF_RESULT if name.startswith("rfft") else Half.NONE


def transform_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A transform along axes, of `n` or `s` points: the operand is cut off there or padded with zeros.

    Workspace: NumPy transforms along one axis after the other. Each time it casts what is not of the loop's dtypes.
    """
    array, half = as_meta(operands[0]), _half(op.name)
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


def _transform(name: str) -> Op:
    along = "several axes" if name.endswith("n") else "an axis"
    doc = f"The transform `{name}` along {along}."
    return Op(name, transform(name), transform_rule, resource="fft", doc=doc)


OPS = (
    operation(interp, interp_rule, "Values between points, on straight lines.", Cost.LONG_FUNCTION),
    operation("gradient", gradient_rule, "Differences between neighbours on both sides."),
    operation(
        convolve, convolve_rule, "The convolution of two sequences.", Cost.MULTIPLICATION,
        blas=Blas.INSIDE, resource="fft",
    ),
    operation(pad, pad_rule, "The operand with elements added around it.", Cost.SHORT),
    operation(sliding_window_view, view_rule, "Every window: a view.", view=True),
    with_out(overlap_add, overlap_add_rule, "Windows added where they overlap: the gradient of sliding windows."),
    *map(_transform, ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn")),
)  # fmt: skip
