"""Blocks of rows, for kernels that pass over arrays several times; and helpers of such kernels.

NumPy passes over memory once for each step of a formula. Here all steps are done on one block of rows after the other.
The block stays in the cache, so main memory is passed over once. A GPU gets larger blocks, since each step is a launch.

Several threads also need long steps. After each step a thread takes the GIL again. If another thread has it at that
moment, the first one sleeps, and waking it takes as long as several steps. Measured: two threads do as much as one with
steps of 2 us, 1.5 times as much with 10 us, 1.8 times as much with 20 us.

Worst are steps that keep the GIL. NumPy keeps it if a result has at most 500 elements, also in `matmul`, which may pass
over all rows of a block for so few. `dot` releases it, and gives the same bits.

Scratch memory: arrays that a kernel fills and drops within one call.

On the host it belongs to the calling thread, a stream's, and each call reuses it: it stays in the cache, and no fresh
memory pushes other data out. It is freed with the thread. A plan's workspace counts it as if it were made for each
task.

Parts of one operation differ a little in length. So a buffer is longer than what is first asked for: otherwise the next
part would need another one, and the heap would keep the hole. What is never touched takes only addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from ..._blocks import contextmanager
from .. import halves, parallel

BLOCK = 98_304  # elements of a block: three or four arrays of this size fit a processor's own cache
LONG_BLOCK = 4 * BLOCK  # the same for several threads: it fits the cache that they share
ROWS = 16  # a block, or a part, has a multiple of this: BLAS kernels give remaining rows other bits
_MOST_ONES = 8_192  # kept for products with them
_LONG = 2048  # elements of a row; a longer row is summed in pieces
_WIDE = 512  # elements of a row; with longer rows, NumPy's loops are faster without its buffers
ADDED = 8_192  # elements; more rows than that are added by flat places, this many at a time, which stay in the cache
ORDINARY = 1e-6, 1e30  # between these, a sum of exponentials is an ordinary number
ORDINARY_LOG = 1e-3, 1e6  # between these, its logarithm is small, so that little is rounded off
# For a GPU: a launch takes as long as passing over some megabytes. A guess, small enough for memory that is not
# charged.
DEVICE_BLOCK = 1 << 20
_BUFFERED = nullcontext()


def blocks(xp: Any, count: int, width: int = 1, *, alive: int = 8, elements: int = BLOCK) -> list[slice]:
    """Slices of `count` rows of `width` elements: each at most a block, or one row; more if few arrays are in use."""
    most = max(1, (elements * 8 // alive if xp is np else DEVICE_BLOCK) // max(1, width))
    if 0 < count <= most - ROWS:
        return [slice(0, count)]
    step = ceil(count / ceil(count / most)) if count else 1  # of equal length, since a short one is not worth its calls
    if step > ROWS:
        step = min(ceil(step / ROWS), most // ROWS) * ROWS
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def long_blocks(xp: Any, count: int, width: int = 1, *, alive: int = 8) -> list[slice]:
    """The same for short steps that use at most three temporary arrays."""
    return blocks(xp, count, width, alive=alive, elements=LONG_BLOCK if parallel.here.threads > 1 else BLOCK)


def unbuffered(xp: Any, width: int) -> AbstractContextManager[None]:
    """A context in which NumPy applies a number to each of rows of this width twice as fast, with the same bits.

    Before its inner loop NumPy copies repeated operands into a buffer, to make the loop longer than a row. It does not
    if a row is longer than the buffer.
    """
    return _BUFFERED if xp is not np or width < _WIDE else _unbuffered()


@contextmanager
def _unbuffered() -> Iterator[None]:
    before = np.setbufsize(16)
    try:
        yield
    finally:
        np.setbufsize(before)


def without_buffers(function: Any, width: int, *arrays: Any, **options: Any) -> Any:
    """Call a universal function of NumPy's inside `unbuffered`."""
    with unbuffered(np, width):
        return function(*arrays, **options)


def flat(xp: Any, out: Any, *arrays: Any) -> Any:
    """The result; and the result and the arrays, each as one row."""
    out = xp.empty(arrays[0].shape, arrays[0].dtype) if out is None else out
    return out, out.reshape(-1), *[array.reshape(-1) for array in arrays]


def as_rows(xp: Any, out: Any, *arrays: Any, width: int | None = None) -> Any:
    """The result; and the result and the arrays as rows: of the last axis, unless a width is given."""
    shape = arrays[0].shape
    width = shape[-1] if width is None else width
    count = arrays[0].size // max(width, 1)
    out = xp.empty(shape, arrays[0].dtype) if out is None else out
    return out, out.reshape(count, width), *[array.reshape(count, width) for array in arrays]


def as_matrix(x: Any) -> Any:
    """The array with all axes but the last merged into one."""
    return x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])


def sums(xp: Any, rows: Any) -> Any:
    """The sum of each row, as a column."""
    return totals(xp, rows)[:, None]


def totals(xp: Any, array: Any) -> Any:
    """The sums along the last axis, as a product with ones: BLAS takes a sixth of the time of `sum`.

    BLAS adds up one number after the other. So long rows are summed in pieces, and then the pieces' sums: this rounds
    as little as NumPy's `sum`, if a mean may be a thousand times the deviations. (Each piece is summed by itself: in
    one product of many pieces, the bits of some would depend on their number.)
    """
    width = array.shape[-1]
    # A GPU has a kernel for sums; but some of them add halves up in halves
    if xp is not np and array.dtype != np.float16:
        return array.sum(axis=-1)
    if xp is not np or width < _LONG:
        ones = _ones(xp, width, array.dtype)
        if xp is not np:
            return halves.matmul(xp.matmul, array, ones)
        return np.dot(array, ones) if array.ndim == 2 else array @ ones
    piece = _piece(width)
    count = width // piece
    pieces = array[..., : count * piece].reshape(*array.shape[:-1], count, piece)
    return np.vecdot(pieces, _ones(xp, piece, array.dtype)).sum(axis=-1) + array[..., count * piece :].sum(axis=-1)


@cache
def _piece(width: int) -> int:
    """The length of the pieces of a row: one that divides the row evenly, if possible."""
    return next((piece for piece in range(256, 63, -1) if width % piece == 0), 128)


def _ones(xp: Any, count: int, dtype: Any) -> Any:
    return _kept_ones(count, dtype) if xp is np and count <= _MOST_ONES else xp.ones(count, dtype)


@lru_cache(maxsize=8)
def _kept_ones(count: int, dtype: Any) -> Any:
    return np.ones(count, dtype)


PLACES = 4  # buffers that a thread keeps at most
LINE_BYTES = 64  # bytes of a cache line, at which buffers begin: a vector across two lines takes two accesses
PLACE_BYTES = 3 << 20  # bytes of one buffer at most, a long block of 8 bytes each; larger ones are made for each call


_NOTHING = np.empty(0, np.uint8)


class _Places(threading.local):
    def __init__(self) -> None:
        self.buffers = [_NOTHING] * PLACES


_places = _Places()


def scratch(xp: Any, place: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array with undefined contents, valid until this thread's next call for the same place. Places count from 0."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if xp is not np or nbytes > PLACE_BYTES or place >= PLACES:
        return xp.empty(shape, dtype)
    buffer = _places.buffers[place]
    if buffer.nbytes < nbytes:
        buffer = _places.buffers[place] = _NOTHING  # drops the old one first, so that both never exist at once
        room = np.empty(nbytes + nbytes // 4 + LINE_BYTES, np.uint8)
        buffer = _places.buffers[place] = room[-room.ctypes.data % LINE_BYTES :]
    return np.ndarray(shape, dtype, buffer)
