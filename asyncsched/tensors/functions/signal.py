"""Functions of NumPy and SciPy on sequences: special functions, differences, integrals, windows and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ...ops.table import TABLE
from ..arguments import name_keywords, scalar
from ..tensor import Scalar, Tensor, apply, as_now
from ._common import Axis, Operand, ShapeLike, known_shape, lengths, op
from .creation import empty_like
from .elementwise import equal
from .manipulation import where
from .reductions import all, diff, sum


def erf(x: Operand, /) -> Tensor:
    """SciPy's error function: the integral of 2 / sqrt(pi) exp(-t^2) from 0 to x.

    Returns a tensor of the shape of `x`, in float32 for float32, otherwise in float64. The error is at most 4e-16 of
    the result in float64; float32 results are rounded from those. On CUDA it is CuPy's function. Complex numbers raise
    TypeError.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.erf(await s.put(np.array([0.0, 0.5, np.inf])))
    >>> asc.run(main)
    array([0.        , 0.52049988, 1.        ])
    """
    return op("erf", x)


def erfinv(x: Operand, /) -> Tensor:
    """The inverse of `erf`: infinite at -1 and 1, NaN beyond

    Returns a tensor of the shape of `x`, in float32 if that holds every number of its dtype, otherwise in float64. The
    error is at most 1e-15 of the result in float64; float32 results are rounded from those. On CUDA it is CuPy's
    function.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.erfinv(await s.put(np.array([0.0, 0.5, 1.0])))
    >>> asc.run(main)
    array([0.        , 0.47693628,        inf])
    """
    return op("erfinv", x)


def interp(
    x: Operand,
    xp: Tensor,
    fp: Tensor,
    left: Scalar | None = None,
    right: Scalar | None = None,
    period: float | None = None,
) -> Tensor:
    """NumPy's `interp`: values at `x` on straight lines between the points (xp, fp), which have one dimension

    `xp` must increase, which is not checked. With `period`, `x` and `xp` are taken modulo that and need no order.
    Before the first point the value is `left`, by default the first of `fp`; after the last it is `right`, by default
    the last. Returns a tensor of the shape of `x`, in float64, or in complex128 if `fp` is complex. It has no
    derivative.

    Raises:
        ValueError: if `xp` and `fp` differ in length, or are empty.
        TypeError: if `x` or `xp` is complex.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         xp, fp = await s.put(np.array([1.0, 2.0, 3.0])), await s.put(np.array([3.0, 2.0, 0.0]))
    ...         return await asc.interp(await s.put(np.array([0.0, 1.5, 2.72, 4.0])), xp, fp, right=-1)
    >>> asc.run(main)
    array([ 3.  ,  2.5 ,  0.56, -1.  ])
    """
    ends = [None if end is None else scalar(end) for end in (left, right, period)]
    if ends[2] is not None and not ends[2]:
        raise ValueError("interp: period must be a non-zero value")
    return op("interp", x, xp, fp, left=ends[0], right=ends[1], period=ends[2])


def gradient(
    f: Tensor, *varargs: Operand, axis: Axis = None, edge_order: Literal[1, 2] = 1
) -> Tensor | tuple[Tensor, ...]:
    """NumPy's `gradient`: differences between neighbours on both sides, and at the ends between the first or last

    Args:
        f: values at points in space; at least `edge_order + 1` along each axis.
        varargs: the distances of the points: nothing (1), a number for all axes, or for each axis a number or the
            points' coordinates, a tensor of one dimension.
        axis: the axis, or the axes; by default all.
        edge_order: whether differences at the ends are of first or of second order.

    Returns:
        A tensor of the shape of `f`, in its dtype; for integers in float64. For several axes, a tuple of them.

    NumPy uses a special formula if the coordinates turn out to be evenly spaced. If coordinates require a gradient, the
    general formula is used all the same, which may round differently.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([0.0, 1.0, 1.5, 3.5, 4.0, 6.0]))
    ...         return await asc.gradient(x**2, x)
    >>> asc.run(main)
    array([ 1.,  2.,  3.,  7.,  8., 10.])
    """
    f = as_now(f)
    along = tuple(range(f.ndim)) if axis is None else normalize_axis_tuple(axis, f.ndim)
    spacing: list[Any] = [as_now(one) if isinstance(one, Tensor) else scalar(one) for one in varargs] or [1.0]
    if len(spacing) == 1 and not _has_axes(spacing[0]):
        spacing *= len(along)
    if len(spacing) != len(along):
        raise TypeError(
            f"gradient: {len(varargs)} spacings for {len(along)} axes: give none, one number, or one for each"
        )
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order must be 1 or 2, not {edge_order!r}")
    found = tuple([_gradient(f, at, h, edge_order) for at, h in zip(along, spacing, strict=True)])
    return found[0] if len(along) == 1 else found


def _has_axes(spacing: Any) -> bool:
    return isinstance(spacing, Tensor) and spacing.ndim > 0


def _gradient(f: Tensor, axis: int, h: Any, order: int) -> Tensor:
    """The gradient along one axis."""
    n = known_shape(f, "gradient")[axis]
    if n < order + 1:
        raise ValueError(f"gradient: {n} elements along axis {axis} are too few: at least edge_order + 1 are required")
    if f.dtype.kind == "b" or (_has_axes(h) and h.dtype.kind == "b"):
        raise TypeError("gradient: a boolean tensor has no differences: use `t.astype(int)`")
    if f.dtype.kind != "c" and (h.dtype.kind == "c" if hasattr(h, "dtype") else isinstance(h, complex)):
        raise TypeError("gradient: if the spacing is complex, f must be, too: use `f.astype(complex)`")
    if _has_axes(h) and h.shape != (n,):
        raise ValueError(f"gradient: coordinates along axis {axis} must have shape ({n},), not {h.shape}")
    recorded = f.requires_grad or (isinstance(h, Tensor) and h.requires_grad)
    if f.device.inline and not recorded:
        return op("gradient", f, h, axis=axis, edge_order=order)
    return _by_operations(f, axis, h, order)


def _by_operations(f: Tensor, axis: int, h: Any, order: int) -> Tensor:
    """By operations that have derivatives and do not wait for a GPU, with NumPy's formulas and so its bits."""
    f = f.astype(np.float64) if f.dtype.kind in "iu" else f
    if not _has_axes(h):
        return _evenly_spaced(f, axis, h, order)
    d = diff(h.astype(np.float64) if h.dtype.kind in "iu" else h)
    uneven = _unevenly_spaced(f, axis, d, order)
    if h.requires_grad:  # the other formula would have the derivative of one distance only
        return uneven
    return where(all(equal(d, d[0])), _evenly_spaced(f, axis, d[0], order), uneven)


def _evenly_spaced(f: Tensor, axis: int, h: Any, order: int) -> Tensor:
    """For points at equal distances `h`."""
    inner = (f[_along(axis, 2, None)] - f[_along(axis, None, -2)]) / (2.0 * h)
    if order == 1:
        return _with_ends(f, axis, inner, h, h)
    return _with_ends(f, axis, inner, (-1.5 / h, 2.0 / h, -0.5 / h), (0.5 / h, -2.0 / h, 1.5 / h))


def _unevenly_spaced(f: Tensor, axis: int, d: Tensor, order: int) -> Tensor:
    """For neighbours at distances `d`."""
    shape, d1, d2 = [-1 if at == axis else 1 for at in range(f.ndim)], d[:-1], d[1:]
    weights = (-d2 / (d1 * (d1 + d2)), (d2 - d1) / (d1 * d2), d1 / (d2 * (d1 + d2)))
    a, b, c = [weight.reshape(shape) for weight in weights]
    inner = a * f[_along(axis, None, -2)] + b * f[_along(axis, 1, -1)] + c * f[_along(axis, 2, None)]
    if order == 1:
        return _with_ends(f, axis, inner, d[0], d[-1])
    d1, d2 = d[0], d[1]
    first = (-(2.0 * d1 + d2) / (d1 * (d1 + d2)), (d1 + d2) / (d1 * d2), -d1 / (d2 * (d1 + d2)))
    d1, d2 = d[-2], d[-1]
    last = (d2 / (d1 * (d1 + d2)), -(d2 + d1) / (d1 * d2), (2.0 * d2 + d1) / (d2 * (d1 + d2)))
    return _with_ends(f, axis, inner, first, last)


def _with_ends(f: Tensor, axis: int, inner: Tensor, first: Any, last: Any) -> Tensor:
    """Add the results at the ends. `first`, `last`: the distance of two elements, or weights for three."""
    n, found = known_shape(f, "gradient")[axis], empty_like(f)
    found[_along(axis, 1, -1)] = inner
    for place, of in ((0, first), (n - 1, last)):
        count = 3 if isinstance(of, tuple) else 2
        x, y, *z = [f[_along(axis, at, at + 1)] for at in range(min(place, n - count), min(place, n - count) + count)]
        found[_along(axis, place, place + 1)] = of[0] * x + of[1] * y + of[2] * z[0] if z else (y - x) / of
    return found


def _along(axis: int, start: int | None, stop: int | None) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(start, stop),)


def trapezoid(y: Tensor, x: Tensor | None = None, dx: Operand = 1.0, axis: int = -1) -> Tensor:
    """NumPy's `trapezoid`: the integral along an axis, of straight lines between the values

    `x` has the points' coordinates, in one dimension or in the shape of `y`; without it the distances are `dx`. Returns
    a tensor without the axis; for integers in float64. Along fewer than two elements it is 0.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         y = await s.put(np.array([1.0, 2.0, 3.0]))
    ...         return await asc.gather(asc.trapezoid(y), asc.trapezoid(y, dx=2), asc.trapezoid(y, y * 4))
    >>> asc.run(main)
    [array(4.), array(8.), array(16.)]
    """
    y = as_now(y)
    at = normalize_axis_index(axis, y.ndim)
    if x is None:
        d: Any = dx
    elif x.ndim == 1:
        d = diff(x).reshape([-1 if i == at else 1 for i in range(y.ndim)])
    else:
        d = diff(x, axis=axis)
    return sum(d * (y[_along(at, 1, None)] + y[_along(at, None, -1)]) / 2.0, axis=at)


def convolve(a: Operand, v: Operand, mode: Literal["full", "same", "valid"] = "full") -> Tensor:
    """NumPy's `convolve`: the sums of products of two sequences, the second one in reverse

    Args:
        a, v: sequences of n and m elements, of one dimension.
        mode: "full" gives all n + m - 1 sums; "same" the middle max(n, m); "valid" the max(n, m) - min(n, m) + 1 for
            which the shorter sequence lies within the longer one.

    On CUDA floating-point numbers are convolved by Fourier transforms: the rounding error is relative to the largest
    result, and an element that is not finite affects all results.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         a, v = await s.put(np.array([1.0, 2.0, 3.0])), await s.put(np.array([0.0, 1.0, 0.5]))
    ...         return await asc.convolve(a, v)
    >>> asc.run(main)
    array([0. , 1. , 2.5, 4. , 1.5])
    """
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolve: mode must be 'full', 'same' or 'valid', not {mode!r}")
    return op("convolve", a, v, mode=mode)


def pad(array: Tensor, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Tensor:
    """NumPy's `pad`: the tensor with elements added before and after it, along each axis

    Args:
        array: the tensor.
        pad_width: how many elements to add: a number for all, `(before, after)` for all axes, `((before, after), ...)`
            for each, or `{axis: (before, after)}`.
        mode: NumPy's "constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric",
            "wrap" or "empty". CUDA lacks "median", and more than one reflection with `reflect_type="odd"`. "constant",
            "empty", "edge", "wrap" and even reflections have a derivative.
        kwargs: the mode's options: `constant_values`, `end_values`, `stat_length` or `reflect_type`.

    Raises:
        ValueError: for an unknown mode or keyword, and for negative numbers.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([1, 2, 3]))
    ...         return await asc.gather(asc.pad(x, (1, 2)), asc.pad(x, 2, mode="reflect"))
    >>> asc.run(main)
    [array([0, 1, 2, 3, 0, 0]), array([3, 2, 1, 2, 3, 2, 1])]
    """
    if callable(mode):
        raise TypeError("pad: mode must be a name: run a function of your own as a task, `await s.call(fn, t)`")
    options = {name: _frozen(value) for name, value in kwargs.items()}
    return apply(TABLE["pad"], (array,), {"pad_width": _pairs(pad_width, array.ndim), "mode": mode, **options})


def _pairs(pad_width: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """The numbers of elements to add before and after each axis."""
    if isinstance(pad_width, Mapping):
        given = {normalize_axis_index(axis, ndim): width for axis, width in pad_width.items()}
        pad_width = [np.broadcast_to(given.get(axis, 0), 2) for axis in range(ndim)]
    widths = np.asarray(pad_width)
    if widths.dtype.kind != "i" and widths.size:
        raise TypeError(f"pad: `pad_width` must be of integral type, not {widths.dtype}")
    pairs = np.broadcast_to(widths, (ndim, 2))
    if (pairs < 0).any():
        raise ValueError(f"pad: index can't contain negative values, as {pad_width!r} does")
    return tuple([(before, after) for before, after in pairs.tolist()])


def _frozen(value: Any) -> Any:
    """An option (a number, or nested lists of numbers) in hashable form."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_frozen, value))
    return value if value is None or isinstance(value, str) else scalar(value)


def sliding_window_view(x: Tensor, window_shape: ShapeLike, axis: Axis = None) -> Tensor:
    """NumPy's `sliding_window_view`: all windows of a shape, as a view, which needs no memory

    Args:
        x: the tensor.
        window_shape: the windows' length along each of these axes.
        axis: the axes; by default each once. An axis given twice yields windows of windows.

    Returns:
        A view of shape (..., windows): the axes of `x`, each shorter by its window's length less one, then those of the
        windows. It is PyTorch's `unfold` with a step of 1; `[::step]` takes fewer windows. A result computed from the
        view may be many times as large as `x`.

    Raises:
        ValueError: if a window is longer than `x`, or the numbers of axes and lengths differ.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         windows = asc.sliding_window_view(await s.put(np.arange(5.0)), 3)
    ...         print(windows.shape)
    ...         return await windows.mean(axis=-1)
    >>> asc.run(main)
    (3, 3)
    array([1., 2., 3.])
    """
    shape = lengths(window_shape)
    given = tuple(range(x.ndim)) if axis is None else (axis,) if not isinstance(axis, Sequence) else axis
    along = normalize_axis_tuple([index(one) for one in given], x.ndim, allow_duplicate=True)
    return op("sliding_window_view", x, window_shape=shape, axis=along)


__all__ = ["convolve", "erf", "erfinv", "gradient", "interp", "pad", "sliding_window_view", "trapezoid"]

name_keywords(globals(), __all__)
