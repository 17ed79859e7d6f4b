"""Kernels that are more than one function of the array namespace: `kernel(xp, *arrays, out=None, **options)`.

With `out=` each gives the very same bytes as without. `xp` is numpy or cupy, so what only one of them has is avoided.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..op import Kernel
from . import turns


def copy(xp: Any, x: Any, *, out: Any = None) -> Any:
    """A copy in the layout of `x`."""
    return x.copy(order="K") if out is None else into(xp, out, x)


def astype(xp: Any, x: Any, *, dtype: Any, out: Any = None) -> Any:
    """A copy in another dtype."""
    return x.astype(dtype) if out is None else into(xp, out, x)


def where(xp: Any, condition: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """`where`, with scalars cast as it casts them: without a check."""
    if out is None:
        return xp.where(condition, x, y)
    into(xp, out, _cast(xp, y, out.dtype))
    xp.copyto(out, _cast(xp, x, out.dtype), where=condition.astype(bool, copy=False), casting="unsafe")
    return out


def kept(xp: Any, values: Any, mask: Any, *, out: Any = None) -> Any:
    """Floating-point values where the mask is true, and 0 elsewhere, be they infinite or NaN there.

    Their bits times 0 or 1: a product of the numbers would leave NaN, and `where` takes ten times as long.
    """
    bits = f"i{values.dtype.itemsize}"
    out = xp.empty(values.shape, values.dtype) if out is None else out
    if values.dtype.itemsize > 8:  # no integer is as long
        into(xp, out, values)
        xp.copyto(out, 0, where=~mask)
    else:
        xp.multiply(values.view(bits), mask, out=out.view(bits))
    return out


def real(xp: Any, x: Any) -> Any:
    """The real part: a view."""
    return x.real if x.dtype.kind == "c" else x[...]


def imag(xp: Any, x: Any) -> Any:
    """The imaginary part: a view, or zeros."""
    return x.imag


def flip(xp: Any, x: Any, *, axis: Any = None) -> Any:
    """The elements along the axes in reverse: a view, also of what has no axes."""
    return xp.flip(x, axis) if x.ndim or axis is not None else x[...]


def matrix_transpose(xp: Any, x: Any) -> Any:
    """The last two axes exchanged: a view."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: at least two dimensions are needed, not {x.ndim}")
    return xp.swapaxes(x, -1, -2)


def permute_dims(xp: Any, x: Any, *, axes: Any) -> Any:
    """The axes in another order: a view."""
    return xp.transpose(x, axes)


def reshape(xp: Any, x: Any, *, shape: Any, copy: bool | None = None) -> Any:
    """Another shape: a view where possible, unless a copy is wanted; with `copy=False` an error rather than a copy."""
    return xp.reshape(x, shape) if copy is None else xp.reshape(x, shape, copy=copy)


def count_nonzero(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
    """How many elements are not zero."""
    return xp.sum(x.astype(bool, copy=False), axis=axis, dtype=xp.intp, keepdims=keepdims, out=out)


def averaging(name: str) -> Kernel:
    """`mean`, `var` or `std`; in half precision they round twice if given `out`, so there it is filled afterwards."""

    def average(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None, **options: Any) -> Any:
        if "correction" in options:
            options = {"ddof": options["correction"]}
        function = getattr(xp, name)
        if out is None or x.dtype != xp.float16:
            return function(x, axis=axis, keepdims=keepdims, out=out, **options)
        return into(xp, out, function(x, axis=axis, keepdims=keepdims, **options))

    return average


def cumulative(name: str) -> Kernel:
    """`cumulative_sum` or `cumulative_prod`, written with the older `cumsum` or `cumprod`."""
    np_function = getattr(np, name)

    def cumulate(
        xp: Any, x: Any, *, axis: Any = None, dtype: Any = None, include_initial: bool = False, out: Any = None
    ) -> Any:
        axis = 0 if axis is None else axis
        function = partial(turns.accumulate, np_function) if xp is np else getattr(xp, name)
        if not include_initial:
            return function(x, axis=axis, dtype=dtype, out=out)
        before = (slice(None),) * (axis % x.ndim)
        first = 0 if name == "cumsum" else 1
        if out is None:
            rest = function(x, axis=axis, dtype=dtype)
            shape = [1 if i == axis % x.ndim else length for i, length in enumerate(x.shape)]
            return xp.concatenate([xp.full_like(rest, first, shape=shape), rest], axis=axis)
        function(x, axis=axis, dtype=dtype, out=out[(*before, slice(1, None))])
        out[(*before, 0)] = first
        return out

    return cumulate


def sort(xp: Any, x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True, out: Any = None) -> Any:
    """In order; `descending` keeps equal elements in their order, too."""
    kind = "stable" if stable else None
    if descending:
        result = xp.flip(xp.sort(xp.flip(x, axis), axis=axis, kind=kind), axis)
        return result.copy(order="K") if out is None else into(xp, out, result)
    if out is None:
        return xp.sort(x, axis=axis, kind=kind)
    if out is not x:
        into(xp, out, x)
    out.sort(axis=axis, kind=kind)
    return out


def argsort(xp: Any, x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The indices that sort."""
    kind = "stable" if stable else None
    if not descending:
        return xp.argsort(x, axis=axis, kind=kind)
    flipped = xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind=kind), axis)
    return x.shape[axis] - 1 - flipped


def vecdot(xp: Any, x: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """The product of vectors along an axis. CuPy has none of that name, so there it is one of matrices."""
    if xp is np:
        return turns.vecdot(xp, x, y, axis=axis, out=out)
    x, y = xp.moveaxis(x, axis, -1).conj(), xp.moveaxis(y, axis, -1)
    return xp.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def einsum(xp: Any, *arrays: Any, subscripts: str) -> Any:
    """Products summed over axes. What would be a view of one operand is copied: the row makes an array of its own."""
    found = xp.einsum(subscripts, *arrays)
    return found.copy(order="K") if len(arrays) == 1 else found


def concat(xp: Any, *arrays: Any, axis: int | None = 0, out: Any = None) -> Any:
    """Arrays joined along an axis."""
    return xp.concatenate(arrays, axis=axis, out=out)


def stack(xp: Any, *arrays: Any, axis: int = 0, out: Any = None) -> Any:
    """Arrays joined along a new axis."""
    return xp.stack(arrays, axis=axis, out=out)


def repeat_each(xp: Any, x: Any, repeats: Any, *, axis: int | None = None) -> Any:
    """Each element as often as its own number says. CuPy would have the numbers on the host."""
    if xp is np:
        return turns.repeat_each(x, repeats, axis=axis)
    lines = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    ends = xp.cumsum(xp.broadcast_to(repeats, (lines.shape[along],)))
    if not ends.size:
        return lines.copy()
    if int(xp.min(repeats)) < 0:
        raise ValueError("repeats may not contain negative values.")
    places = xp.searchsorted(ends, xp.arange(int(ends[-1])), side="right")
    return xp.take(lines, places, axis=along)


def full(xp: Any, value: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
    """Filled with a value."""
    return xp.full(shape, value, dtype=dtype) if out is None else into(xp, out, value)


def full_like(xp: Any, x: Any, value: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """Filled with a value, in the layout of `x`."""
    return xp.full_like(x, value, dtype=dtype) if out is None else into(xp, out, value)


def constant(value: int) -> Kernel:
    """Zeros or ones."""

    def fill(xp: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
        if out is not None:
            out.fill(value)
            return out
        return xp.ones(shape, dtype=dtype) if value else xp.zeros(shape, dtype=dtype)

    return fill


def arange(xp: Any, *, start: Any, stop: Any, step: Any, dtype: Any = None) -> Any:
    """Evenly spaced by `step`."""
    return xp.arange(start, stop, step, dtype=dtype)


def linspace(xp: Any, start: Any, stop: Any, *, num: int, dtype: Any = None, endpoint: bool = True) -> Any:
    """`num` evenly spaced numbers."""
    return xp.linspace(start, stop, num, endpoint=endpoint, dtype=dtype)


def eye(xp: Any, *, n_rows: int, n_cols: int, k: int = 0, dtype: Any = None) -> Any:
    """Ones on a diagonal."""
    return xp.eye(n_rows, n_cols, k, dtype=dtype)


def into(xp: Any, out: Any, value: Any) -> Any:
    """Fill `out` with a value or an array, cast as assignment casts."""
    xp.copyto(out, value, casting="unsafe")
    return out


def _cast(xp: Any, value: Any, dtype: Any) -> Any:
    return value if hasattr(value, "dtype") else xp.asarray(value).astype(dtype)
