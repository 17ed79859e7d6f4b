"""NumPy functions that hold the GIL for their whole run, done in ways that let other threads run.

Most of NumPy's loops release the GIL. `repeat` does not. Nor does a universal function with at most 500 results, or an
accumulation along at most 500 lines, however many elements it reads. Meanwhile the event loop's thread and the other
streams would stand still. So for large work, this file calls another function that releases the GIL and gives the same
bits, if there is one. Otherwise it works in pieces of less than a millisecond, between which Python releases the GIL.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from .. import halves
from ..meta import Meta

LARGE: Final = 1 << 20  # elements; reading them takes about a millisecond, with the GIL held
PIECE: Final = 1 << 17  # elements of a result per piece: they stay in the cache until they are copied to their place
_PRODUCTS: Final = 1 << 16  # elements of a product's operands; with more, a product of integers takes milliseconds
_FEW: Final = 500  # results; up to here NumPy holds the GIL in a universal function
_WIDE: Final = 64  # contiguous elements that a copy repeats, or repeats of one; with fewer, `repeat` is faster


def matmul(xp: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """The matrix product. `dot` releases the GIL, and calls the same BLAS for contiguous matrices and vectors."""
    if xp is not np:
        return halves.matmul(xp.matmul, x, y, out=out)
    if x.size + y.size < _PRODUCTS or max(x.ndim, y.ndim) > 2 or x.dtype != y.dtype:
        return np.matmul(x, y, out=out)
    if prod(x.shape[:-1]) * prod(y.shape[1:]) > _FEW or not (x.flags.forc and y.flags.forc):
        return np.matmul(x, y, out=out)
    found = np.dot(x, y)
    if out is None:
        return found
    out[...] = found
    return out


def vecdot(xp: Any, x: Any, y: Any, *, axis: int, out: Any = None) -> Any:
    """The products of vectors along an axis: one by one, if they are few and each is contiguous."""
    if x.size + y.size < LARGE or x.dtype != y.dtype or not (_in_lines(x, axis) and _in_lines(y, axis)):
        return xp.vecdot(x, y, axis=axis, out=out)
    shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    if prod(shape) > _FEW:
        return xp.vecdot(x, y, axis=axis, out=out)
    out = np.empty(shape, x.dtype) if out is None else out
    first, second = [np.broadcast_to(array, (*shape, array.shape[-1])) for array in (x, y)]
    for place in np.ndindex(shape):
        out[place] = np.vdot(first[place], second[place])
    return out


def accumulate(function: Any, x: Any, *, axis: int, dtype: Any = None, out: Any = None) -> Any:
    """NumPy's `cumsum` or `cumprod`: if there are few lines, one after the other."""
    if x.size < LARGE or several_lines(x.shape, axis) or not x.flags.c_contiguous:
        return function(x, axis=axis, dtype=dtype, out=out)
    length, after = x.shape[axis], prod(x.shape[axis % x.ndim + 1 :])
    if out is None:
        out = np.empty(x.shape, function(x[:0], axis=0, dtype=dtype).dtype)
    alone = after == 1 and x.dtype == out.dtype  # with one axis and without a cast it releases the GIL
    if not alone and out.dtype.kind == "c" and function is np.cumprod:
        return function(x, axis=axis, dtype=dtype, out=out)  # it would round differently in pieces
    form = (-1, length, after)
    for line, total in zip(x.reshape(form), out.reshape(form, copy=False), strict=True):
        if alone:
            function(line[:, 0], out=total[:, 0])
        else:
            _accumulate_in_pieces(function, line, total)
    return out


def _accumulate_in_pieces(function: Any, x: Any, out: Any) -> None:
    """Accumulate along the first axis, piece by piece. Each piece begins with the last result of the previous one."""
    for part in pieces(*x.shape):
        before = int(part.start > 0)
        some = np.empty((before + part.stop - part.start, *x.shape[1:]), out.dtype)
        some[:before] = out[part.start - before : part.start]
        some[before:] = x[part]
        out[part] = function(some, axis=0, dtype=out.dtype)[before:]


def repeat(xp: Any, x: Any, *, repeats: int, axis: int | None = None) -> Any:
    """Each element several times."""
    if xp is not np or x.size * repeats < LARGE or not x.ndim:
        return xp.repeat(x, repeats, axis=axis)
    if axis is None:
        x, axis = x.reshape(-1), 0
    rows = x.reshape(-1, prod(x.shape[axis % x.ndim + 1 :]))
    count, width = rows.shape
    out = np.empty((count, repeats, width), x.dtype)
    if max(repeats, width) >= _WIDE:
        out[...] = rows[:, None]
    else:
        for part in pieces(count, repeats * width):
            out[part] = np.repeat(rows[part], repeats, axis=0).reshape(-1, repeats, width)
    return out.reshape([n * repeats if i == axis % x.ndim else n for i, n in enumerate(x.shape)])


def repeat_each(x: Any, repeats: Any, *, axis: int | None = None) -> Any:
    """Each element as often as its own number says."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis % x.ndim if x.ndim else 0
    if x.size < LARGE or repeats.shape != x.shape[axis : axis + 1] or repeats.min() < 0:
        return np.repeat(x, repeats, axis=axis)
    lines = x.reshape(prod(x.shape[:axis]), len(repeats), prod(x.shape[axis + 1 :]))
    count, width = int(repeats.sum()), lines.shape[2]
    out = np.empty((len(lines), count, width), x.dtype)
    end = 0
    for part in pieces(len(repeats), count * width // len(repeats)):  # as many repeats as yield a piece on average
        start, end = end, end + int(repeats[part].sum())
        for some in pieces(len(lines), (end - start) * width):
            out[some, start:end] = np.repeat(lines[some, part], repeats[part], axis=1)
    return out.reshape([count if i == axis else n for i, n in enumerate(x.shape)])


def tile(xp: Any, x: Any, *, repetitions: Any) -> Any:
    """Copies of the array side by side, by a copy that repeats it, unless its rows are short."""
    if xp is not np or not tiled_at_once(x.shape, prod(repetitions)):
        return xp.tile(x, repetitions)
    ndim = max(x.ndim, len(repetitions))
    shape, counts = [(1,) * (ndim - len(one)) + tuple(one) for one in (x.shape, repetitions)]
    out = np.empty([n for pair in zip(counts, shape, strict=True) for n in pair], x.dtype)
    out[...] = x.reshape([n for length in shape for n in (1, length)])
    return out.reshape([count * length for count, length in zip(counts, shape, strict=True)])


def tiled_at_once(shape: tuple[int, ...], times: int) -> bool:
    """Whether `tile` copies an array of this shape to all places at once."""
    return prod(shape) * times >= LARGE and times > 1 and shape[-1:] >= (_WIDE,)


def several_lines(shape: tuple[int, ...], axis: int) -> bool:
    """Whether there are so many lines along an axis that NumPy releases the GIL."""
    return prod(shape) // shape[axis] > _FEW


def room(result: Meta) -> int:
    """Bytes of a piece, which is made before it is copied to its place in a result."""
    return PIECE * result.dtype.itemsize if prod(result.bound) >= LARGE else 0


def _in_lines(x: Any, axis: int) -> bool:
    return bool(x.flags.c_contiguous) and axis in (-1, x.ndim - 1)


def pieces(count: int, each: int) -> list[slice]:
    """Slices of `count` places. Each has about a piece's elements, at `each` elements per place."""
    step = max(1, PIECE // max(1, each))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
