"""The sum along axes as gradients need it, where an operand was broadcast over many rows.

NumPy adds the elements of a contiguous axis in pairs, but rows one after the other: 12 million rows of float32 come out
11% off, and the time is that of 12 million short loops. Here each piece of rows is multiplied by ones, as BLAS does at
the speed of memory, and the pieces' sums are added in double precision.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from .. import halves
from ..declare import Cost, Inferred, Op, Operand, Options, meta, with_products
from ..rules import as_meta, copies
from .elementwise import into
from .reduce import reduced

MANY = 65_536  # rows: the products of matrices that sum over fewer are left to BLAS
_PIECE = 128  # rows. BLAS adds four rows at a time: 32 additions one after the other are off by at most 5e-7


def accurate_sum(xp: Any, x: Any, *, axis: tuple[int, ...], out: Any = None) -> Any:
    """The sum along axes, in the dtype of `x`. Half precision is added up in single precision."""
    if xp is not np:
        return halves.reduction(xp.sum, x, axis=axis, out=out)
    kept = [one for one in range(x.ndim) if one not in axis]
    out = np.empty([x.shape[one] for one in kept], x.dtype) if out is None else out
    if not x.size:
        out[...] = 0
        return out
    if kept and kept[0] == len(axis) and x.flags.c_contiguous:  # rows of a matrix: half of the time if it is small
        return into(np, out, _down(x.reshape(1, -1, out.size)).reshape(out.shape))
    repeated = [one for one in axis if not x.strides[one]]  # as in a view made by `broadcast_to`
    times = prod([x.shape[one] for one in repeated])
    x = x[tuple([slice(0, 1) if one in repeated else slice(None) for one in range(x.ndim)])]
    order = sorted(range(x.ndim), key=lambda one: -abs(x.strides[one]))
    found, width = np.ascontiguousarray(x.transpose(order)), 1
    for summed, group in groupby(reversed(order), lambda one: one in axis):
        length = prod([x.shape[one] for one in group])
        if summed:
            found = _down(found.reshape(-1, length, width))
        else:
            width *= length
    found = found.reshape([x.shape[one] for one in order if one in kept])
    found = found.transpose([[one for one in order if one in kept].index(one) for one in kept])
    return into(np, out, found if times == 1 else found * found.dtype.type(times))


def _down(x: Any) -> Any:
    """The sums along the middle one of three axes."""
    lead, length, width = x.shape
    single = np.result_type(x.dtype, np.float32)
    if length == 1:
        return x.sum(axis=1, dtype=single)
    piece = _PIECE if width > 1 else 64 * _PIECE
    count = length // piece
    if not count:
        return _product(x, single)
    found = _product(x[:, : count * piece].reshape(lead * count, piece, width), single).reshape(lead, count, width)
    if count > _PIECE:
        found = found.sum(axis=1, dtype=np.result_type(single, np.float64)).astype(single)
    else:
        found = _product(found, single)
    if count * piece < length:
        found += _product(x[:, count * piece :], single)
    return found


def _product(x: Any, single: Any) -> Any:
    """The same for few rows, as a product with ones."""
    if x.dtype != single or x.shape[2] == 1:  # NumPy adds up one row in pairs
        return x.sum(axis=1, dtype=single)
    ones = np.ones(x.shape[1], single)
    return np.dot(ones, x[0])[None] if len(x) == 1 else np.matmul(ones, x)


def weighted_rows(xp: Any, weights: Any, rows: Any) -> Any:
    """The sum of rows by weights, in double precision."""
    if xp is not np:
        return xp.dot(weights, rows)
    whole = len(rows) // _PIECE * _PIECE
    pieces = np.matmul(weights[:whole].reshape(-1, 1, _PIECE), rows[:whole].reshape(-1, _PIECE, rows.shape[1]))
    return pieces.sum(axis=(0, 1), dtype=np.float64) + np.dot(weights[whole:], rows[whole:])


def rows_per_piece(width: int) -> int:
    """How many rows of a product that sums over rows make a piece. All pieces' results are as large as one column."""
    return max(_PIECE, width)


def product_over_rows(x: Any, y: Any) -> Any:
    """x^T y, in pieces of rows that are added up in double precision; None if there is only one."""
    piece = rows_per_piece(x.shape[1] * y.shape[1])
    whole = len(x) // piece * piece
    if whole < MANY:
        return None
    first, second = [array[:whole].reshape(-1, piece, array.shape[1]) for array in (x, y)]
    return np.matmul(first.swapaxes(1, 2), second).sum(axis=0, dtype=np.float64) + x[whole:].T @ y[whole:]


def accurate_sum_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Workspace: the sums of pieces and of groups of axes, and a copy of an operand that is not contiguous."""
    array, axes = as_meta(operands[0]), options["axis"]
    if array.dtype.kind not in "fc":
        raise TypeError(f"{op.name}: dtype {array.dtype} is no floating-point dtype: use `astype`")
    result = meta(reduced(array.bound, axes, options), array.dtype)
    size, largest = prod(array.bound), 0
    for summed, group in groupby(reversed(range(len(array.bound))), lambda one: one in axes):
        length = prod([array.bound[one] for one in group])
        if summed and length > 1:
            pieces, size = size // _PIECE, size // length
            largest = max(largest, pieces + 3 * size)
    return Inferred(result, copies(operands) + largest * max(array.dtype.itemsize, 4))


OPS = (
    with_products(accurate_sum, accurate_sum_rule, "The sum along axes, also of many rows.", Cost.SHORT, launches=1),
)
