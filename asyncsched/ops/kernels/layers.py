"""Kernels of layers and random numbers, each with its derivatives: `kernel(xp, *arrays, out=None, **options)`.

NumPy goes over memory once for each step of a formula. Here the steps are taken on a block of rows at a time, which
stays in the cache, so that main memory is passed over once. A GPU gets larger blocks, since each step is a launch.

So do several threads. After each step a thread takes the interpreter's lock again; if another has it just then, it
sleeps, and waking it takes as long as some steps do. Measured with two threads: of steps of 2 us they do no more
together than one thread, of 10 us 1.5 times as much, of 20 us 1.8 times as much. So little is done between steps.

Worst are steps that keep the lock. NumPy does so where a result has at most 500 elements, also in `matmul`, which may
pass over all rows of a block for so few. `dot` lets go of it, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from .. import parallel
from .basic import vecdot
from .scratch import scratch
from .turns import matmul

BLOCK = 98_304  # elements worked on at a time: three or four arrays of as many go into a processor's own cache
LONG_BLOCK = 4 * BLOCK  # where several threads do so: it goes into the cache that they share
ROWS = 16  # a block, or a part, has a multiple of so many rows: the kernels of a BLAS give the last ones other bits
_TILE = 8_192  # elements of a row laid out again and again: longer than what NumPy's loops over rows cost
_LARGE = 1 << 18  # elements from which on that is worth the laying out
_WIDE = 512  # elements of a row from which on NumPy's loops over rows are better off without its buffers
# On a GPU: what a launch takes, it passes over some megabytes. A guess, small enough for what is not charged.
DEVICE_BLOCK = 1 << 20
_DEVICE_STATES = 65_536  # of a generator on a GPU, which draw at once: equal numbers on every card


def blocks(xp: Any, count: int, width: int = 1, *, alive: int = 8, elements: int = BLOCK) -> list[slice]:
    """Slices of `count` rows of `width` elements: at most a block each, or one row; more if few arrays are alive."""
    most = max(1, (elements * 8 // alive if xp is np else DEVICE_BLOCK) // max(1, width))
    step = ceil(count / ceil(count / most)) if count else 1  # of one length, since a short one is not worth its calls
    if step > ROWS:
        step = min(ceil(step / ROWS), most // ROWS) * ROWS
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def long_blocks(xp: Any, count: int, width: int = 1, *, alive: int = 8) -> list[slice]:
    """The same for short steps, with no more than three arrays that are made for them."""
    return blocks(xp, count, width, alive=alive, elements=LONG_BLOCK if parallel.threads() > 1 else BLOCK)


@contextmanager
def unbuffered(xp: Any, width: int) -> Iterator[None]:
    """Inside, NumPy applies a number to each of rows of this width twice as fast, to the same bits.

    Before its inner loop it copies operands that are repeated into a buffer, to make the loop longer than a row. It
    does not where a row is longer than the buffer.
    """
    if xp is not np or width < _WIDE:
        yield
        return
    before = np.setbufsize(16)
    try:
        yield
    finally:
        np.setbufsize(before)


def without_buffers(function: Any, width: int, *arrays: Any, **options: Any) -> Any:
    """Call a universal function of NumPy's inside `unbuffered`."""
    with unbuffered(np, width):
        return function(*arrays, **options)


def layer_norm(xp: Any, x: Any, weight: Any, bias: Any, *, eps: float, out: Any = None) -> Any:
    """(x - mean) / sqrt(variance + eps) weight + bias, over as many last axes as the weight has."""
    out, result, rows = as_rows(xp, out, x, width=weight.size)
    weight, bias = _tiled(xp, 0, weight), _tiled(xp, 1, bias)
    # Beside other threads fewer calls are worth more than the cache: nothing is made for a step, but of half precision.
    alive = 4 if parallel.threads() > 1 and out.dtype != xp.float16 else 8
    with unbuffered(xp, rows.shape[1]):
        for block in long_blocks(xp, *rows.shape, alive=alive):
            y, scale = _centre(xp, rows[block], eps, _room(xp, result[block]))
            y *= scale
            _by_tiles(xp.multiply, y, weight, y)
            _by_tiles(xp.add, y, bias, y)
            if y.dtype != out.dtype:
                result[block] = y
    return out


def layer_norm_input_grad(xp: Any, x: Any, weight: Any, grad: Any, *, eps: float, out: Any = None) -> Any:
    """(g - mean of g - y mean of g y) / sqrt(variance + eps), with g = grad weight and y the standardized x."""
    width = weight.size
    out, result, rows, grads = as_rows(xp, out, x, grad, width=width)
    weight = _tiled(xp, 0, weight)
    with unbuffered(xp, width):
        for block in long_blocks(xp, *rows.shape, alive=10):
            room = _room(xp, result[block])
            g = scratch(xp, 1, room.shape, room.dtype)
            _by_tiles(xp.multiply, grads[block], weight, g)
            y, scale = _centre(xp, rows[block], eps, room)
            y *= vecdot(xp, g, y)[:, None] * (scale * scale / -width)
            y += g
            y -= sums(xp, g) / width
            y *= scale
            if y.dtype != out.dtype:
                result[block] = y
    return out


def layer_norm_weight_grad(xp: Any, x: Any, grad: Any, *, eps: float, shape: Any, out: Any = None) -> Any:
    """The sum of grad y over the rows, with y the standardized x."""
    out = xp.empty(shape, x.dtype) if out is None else out
    total = out.reshape(-1)
    total[...] = 0
    rows, grads = x.reshape(-1, total.size), grad.reshape(-1, total.size)
    with unbuffered(xp, total.size):
        for block in long_blocks(xp, *rows.shape):
            v = rows[block]
            y, scale = _centre(xp, v, eps, scratch(xp, 0, v.shape, xp.float32 if v.dtype == xp.float16 else v.dtype))
            y *= grads[block]
            total += xp.dot(scale[:, 0], y)
    return out


def linear(xp: Any, x: Any, weight: Any, *bias: Any, out: Any = None) -> Any:
    """x weight^T + bias."""
    out = xp.empty((*x.shape[:-1], len(weight)), x.dtype) if out is None else out
    rows = as_matrix(out)
    matmul(xp, as_matrix(x), weight.T, out=rows)
    for one in bias:
        if xp is np and rows.size >= _LARGE:
            _by_tiles(xp.add, rows, _tiled(xp, 0, one), rows)
        else:
            rows += one
    return out


def linear_weight_grad(xp: Any, grad: Any, x: Any, *, out: Any = None) -> Any:
    """grad^T x, of all rows."""
    return matmul(xp, as_matrix(grad).T, as_matrix(x), out=out)


def linear_bias_grad(xp: Any, grad: Any, *, out: Any = None) -> Any:
    """The sum of the rows, as a product with ones: BLAS takes half the time of `sum`."""
    rows = as_matrix(grad)
    return xp.dot(xp.ones(len(rows), rows.dtype), rows, out=out)


def dropout(xp: Any, x: Any, seed: int, *, p: float, out: Any = None) -> Any:
    """Zero with probability p, else x / (1 - p). The same seed drops the same elements."""
    out, result, values = flat(xp, out, x)
    generator = seeded(xp, seed)
    for block in blocks(xp, x.size):
        v = values[block]
        keep = generator.random(v.size, dtype=xp.float32) >= p
        xp.multiply(v, keep, out=result[block])
        result[block] *= 1 / (1 - p) if p < 1 else 0
    return out


def uniform(xp: Any, seed: int, *, shape: Any, dtype: Any, low: float, high: float, out: Any = None) -> Any:
    """Numbers drawn evenly from low to high."""
    out = xp.empty(shape, dtype) if out is None else out
    out[...] = seeded(xp, seed).random(shape, dtype=_drawn(xp, dtype))
    out *= high - low
    out += low
    return out


def normal(xp: Any, seed: int, *, shape: Any, dtype: Any, out: Any = None) -> Any:
    """Numbers drawn from the standard normal distribution."""
    out = xp.empty(shape, dtype) if out is None else out
    out[...] = seeded(xp, seed).standard_normal(shape, dtype=_drawn(xp, dtype))
    return out


def seeded(xp: Any, seed: int) -> Any:
    """CuPy's default takes 13 MB and a slow kernel to set up; this one counts."""
    if xp is np:
        return np.random.default_rng(seed)
    return xp.random.Generator(xp.random.Philox4x3210(seed, size=_DEVICE_STATES))


def _drawn(xp: Any, dtype: Any) -> Any:
    return xp.float64 if dtype == xp.float64 else xp.float32


def flat(xp: Any, out: Any, *arrays: Any) -> Any:
    """The result, and the result and the arrays as one row each."""
    out = xp.empty(arrays[0].shape, arrays[0].dtype) if out is None else out
    return out, out.reshape(-1), *[array.reshape(-1) for array in arrays]


def as_rows(xp: Any, out: Any, *arrays: Any, width: int | None = None) -> Any:
    """The result, and the result and the arrays as rows, of the last axis unless a width is given."""
    shape = arrays[0].shape
    width = shape[-1] if width is None else width
    count = arrays[0].size // max(width, 1)
    out = xp.empty(shape, arrays[0].dtype) if out is None else out
    return out, out.reshape(count, width), *[array.reshape(count, width) for array in arrays]


def as_matrix(x: Any) -> Any:
    """The array with all axes but the last as one."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


def sums(xp: Any, rows: Any) -> Any:
    """The sum of each row, as a column."""
    return totals(xp, rows)[:, None]


def totals(xp: Any, array: Any) -> Any:
    """The sums along the last axis, as a product with ones: BLAS takes a sixth of the time of `sum`."""
    ones = _ones(xp, array.shape[-1], array.dtype)
    return np.dot(array, ones) if xp is np and array.ndim == 2 else array @ ones


def _ones(xp: Any, count: int, dtype: Any) -> Any:
    return _kept_ones(count, dtype) if xp is np and count <= _TILE else xp.ones(count, dtype)


@lru_cache(maxsize=8)
def _kept_ones(count: int, dtype: Any) -> Any:
    return np.ones(count, dtype)


def _centre(xp: Any, rows: Any, eps: float, y: Any) -> Any:
    """Rows of mean 0, written to `y`, and for each the factor that gives it variance 1."""
    width = rows.shape[1]
    if rows.dtype != y.dtype:
        y[...] = rows
        rows = y
    mean = sums(xp, rows)
    mean /= width
    xp.subtract(rows, mean, out=y)
    scale = vecdot(xp, y, y)[:, None]
    scale /= width
    scale += eps
    return y, xp.reciprocal(xp.sqrt(scale, out=scale), out=scale)


def _tiled(xp: Any, place: int, row: Any) -> Any:
    """One row, to be applied to rows by `_by_tiles`: laid out some times where it is short."""
    if xp is not np or not row.size:
        return row.reshape(1, -1)
    count = 1 << max(0, (_TILE // row.size).bit_length() - 1)  # so few blocks have rows left over
    tile = scratch(xp, place, (count, row.size), row.dtype)
    tile[...] = row.reshape(-1)
    return tile


def _by_tiles(function: Any, rows: Any, tile: Any, out: Any) -> None:
    """Apply a row to rows, in the precision of `out`."""
    count = len(tile)
    whole = len(rows) - len(rows) % count
    first, last = slice(0, whole), slice(whole, len(rows))
    tiles = out[first].reshape(-1, *tile.shape)
    function(rows[first].reshape(tiles.shape), tile, out=tiles, dtype=out.dtype)
    if whole < len(rows):
        function(rows[last], tile[: len(rows) - whole], out=out[last], dtype=out.dtype)


def _room(xp: Any, block: Any) -> Any:
    """Where rows are standardized: where they go, and of half precision, whose sums overflow, in single."""
    return xp.empty(block.shape, xp.float32) if block.dtype == xp.float16 else block
