"""Reductions along axes, running sums, sorting.

The sum along axes as gradients need it, where an operand was broadcast over many rows.

NumPy adds the elements of a contiguous axis in pairs, but rows one after the other: 12 million rows of float32 come out
11% off, and the time is that of 12 million short loops. Here each piece of rows is multiplied by ones, as BLAS does at
the speed of memory, and the pieces' sums are added in double precision.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from .. import halves
from ..declare import Cost, Meta, meta, operation, with_out, with_products
from ..op import Inferred, Kernel, Op, Operand, Options, resolve
from ..quiet import quietly
from ..rules import INTP, Known, as_meta, cast_bytes, copies, lengths, no_axis, same_as, sample, shrunk
from . import releasing_gil
from .elementwise import into
from .releasing_gil import LARGE, room, several_lines


def count_nonzero(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
    """How many elements are not zero."""
    x = x if hasattr(x, "dtype") else xp.asarray(x)
    return xp.sum(x.astype(bool, copy=False), axis=axis, dtype=xp.intp, keepdims=keepdims, out=out)


def averaging(name: str) -> Kernel:
    """`mean`, `var` or `std`. In half precision they would round twice with `out`, so `out` is filled afterwards.

    CuPy adds up the squares of halves in half precision.
    """

    def average(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None, **options: Any) -> Any:
        if "correction" in options:
            options = {"ddof": options["correction"]}
        x = x if hasattr(x, "dtype") else xp.asarray(x)
        function = getattr(xp, name)
        if xp is not np and name != "mean":
            return halves.in_single(function, x, axis=axis, keepdims=keepdims, out=out, **options)
        count = count_reduced(x.shape, axis)
        if xp is np and count <= options.get("ddof", 0):  # with all elements corrected away, a sum of squares over 0
            reduce = partial(function, x, axis=axis, keepdims=keepdims)
            found = _over_zero(reduce()) if count else nothing(function, x, axis, keepdims)
            return found if out is None else into(np, out, found)
        if out is None or x.dtype != xp.float16:
            return function(x, axis=axis, keepdims=keepdims, out=out, **options)
        return into(xp, out, function(x, axis=axis, keepdims=keepdims, **options))

    average.__name__ = name
    return average


def count_reduced(shape: Known, axis: Any) -> int:
    """How many elements are reduced to one."""
    return prod([shape[one] for one in reduced_axes(axis, len(shape))])


def nothing(function: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """NaN, as NumPy's function gives of no elements. It would warn, and a stream's thread may not."""
    shape = reduced(x.shape, reduced_axes(axis, x.ndim), {"keepdims": keepdims})
    return _over_zero(np.zeros(shape, function(np.ones((1,) * x.ndim, x.dtype)).dtype))


def _over_zero(x: Any) -> Any:
    return np.asarray(quietly(np.true_divide, x, 0))


def cumulative(name: str) -> Kernel:
    """`cumulative_sum` or `cumulative_prod`, written with the older `cumsum` or `cumprod`."""
    older = f"cum{name}"

    def cumulate(
        xp: Any, x: Any, *, axis: Any = None, dtype: Any = None, include_initial: bool = False, out: Any = None
    ) -> Any:
        axis = 0 if axis is None else axis
        function = getattr(xp, older)
        function = partial(releasing_gil.accumulate, function) if xp is np else function
        if not include_initial:
            return function(x, axis=axis, dtype=dtype, out=out)
        before = (slice(None),) * (axis % x.ndim)
        first = 0 if name == "sum" else 1
        if out is None:
            rest = function(x, axis=axis, dtype=dtype)
            shape = [1 if i == axis % x.ndim else length for i, length in enumerate(x.shape)]
            return xp.concatenate([xp.full_like(rest, first, shape=shape), rest], axis=axis)
        function(x, axis=axis, dtype=dtype, out=out[(*before, slice(1, None))])
        out[(*before, 0)] = first
        return out

    cumulate.__name__ = f"cumulative_{name}"
    return cumulate


def sort(xp: Any, x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True, out: Any = None) -> Any:
    """The elements in order. `descending` keeps equal elements in their order, too."""
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


# -- rules -------------------------------------------------------------------------------------------------------------


def reduction_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A reduction over `axis` (an int, a tuple or None for all). A sample gives the dtype, and errors for no
    elements."""
    array = as_meta(operands[0])
    axes = reduced_axes(options.get("axis"), len(array.shape))
    dtype = resolve(op, np)(shrunk(array), **options).dtype
    return Inferred(meta(reduced(lengths(array), axes, options), dtype, array.contiguous))


def count_nonzero_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """As a reduction, over a copy in bool."""
    array = as_meta(operands[0])
    return reduction_rule(op, operands, options)._replace(workspace=prod(array.bound) if array.dtype != bool else 0)


def mean_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A mean warns for empty arrays, so the sample is never empty."""
    array = as_meta(operands[0])
    axes = reduced_axes(options.get("axis"), len(array.shape))
    dtype = resolve(op, np)(_ones_like(array), axis=options.get("axis")).dtype
    result = meta(reduced(lengths(array), axes, options), dtype, array.contiguous)
    # half precision is summed in single, then written to its place
    return Inferred(result, 2 * result.nbytes if array.dtype == np.float16 else 0)


def variance_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`var` and `std`. Workspace: NumPy's deviations from the mean, as large as the operand, and the mean."""
    inferred = mean_rule(op, operands, {"axis": options.get("axis"), "keepdims": options.get("keepdims", False)})
    array = as_meta(operands[0])
    deviations = np.result_type(inferred.meta.dtype, array.dtype)
    # They are squared in place. But those of bool are conjugated, as if they were complex: one more array.
    elements = prod(inferred.meta.bound) + prod(array.bound) * (2 if array.dtype == bool else 1)
    on_card = elements * np.result_type(deviations, np.float32).itemsize + inferred.workspace
    return inferred._replace(workspace=elements * deviations.itemsize + inferred.workspace, on_card=on_card)


def arg_reduction_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`argmax` and `argmin`: NumPy copies the operand unless the axis is the last of a C-contiguous array."""
    array = as_meta(operands[0])
    axis = options.get("axis")
    inferred = reduction_rule(op, operands, options)
    last = axis is None or axis in (-1, len(array.shape) - 1)
    copied = 0 if array.contiguous and last else array.nbytes
    shape = inferred.meta.shape
    return Inferred(meta(shape, INTP, True), copied)


def cumulative_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`cumulative_sum` and `cumulative_prod`, perhaps with the initial value in front."""
    array = as_meta(operands[0])
    shape = lengths(array)
    no_axis(shape, op.name)
    axis = options.get("axis")
    if axis is None and len(shape) > 1:
        raise ValueError(f"{op.name}: more than one dimension, so `axis` is required")
    axis = normalize_axis_index(axis or 0, len(shape))
    dtype = resolve(op, np)(_ones_like(array), **options).dtype
    longer = shape[axis] + bool(options.get("include_initial"))
    result = meta((*shape[:axis], longer, *shape[axis + 1 :]), dtype, array.contiguous)
    # without `out=`, the initial value is joined to the finished result
    joined = options.get("include_initial") and not array.contiguous
    # An operand of another dtype is cast as a whole, unless few lines are done in pieces.
    pieces = array.contiguous and prod(array.bound) >= LARGE and not several_lines(array.bound, axis)
    cast = room(result) if pieces else cast_bytes(array, dtype)
    return Inferred(result, max(cast, result.nbytes if joined else 0))


def diff_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The `n`-th difference of neighbours. Two of the steps are in memory at once."""
    array = as_meta(operands[0])
    shape, n = lengths(array), options.get("n", 1)
    no_axis(shape, op.name)
    axis = normalize_axis_index(options.get("axis", -1), len(shape))
    dtype = resolve(op, np)(sample(array, (2,))).dtype
    if n < 1:
        raise ValueError(f"diff: order must be positive but got {n}")
    result = meta((*shape[:axis], max(shape[axis] - n, 0), *shape[axis + 1 :]), dtype, array.contiguous)
    return Inferred(result, array.nbytes if n > 1 else 0)


def sort_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The same elements in order. Workspace: lines, see `_lines`; a descending sort is of a copy, which is copied."""
    array = as_meta(operands[0])
    work = _lines(array, options, array.dtype.itemsize, copied=len(array.bound) > 1)
    return same_as(array, array.nbytes + work if options.get("descending") else work)


def argsort_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The indices that sort; NumPy returns them C-contiguous."""
    array = as_meta(operands[0])
    contiguous = array.contiguous or not options.get("descending")
    result = meta(array.shape, INTP, contiguous)
    work = _lines(array, options, INTP.itemsize, copied=True)
    return Inferred(result, max(result.nbytes, work) if options.get("descending") else work)


def _lines(array: Meta, options: Options, width: int, *, copied: bool) -> int:
    """Bytes of what NumPy sorts a line with, if `width` bytes are moved for each element.

    They are a copy of the line (if `copied`) and of its indices, unless it lies in one piece; and room for a stable
    sort: half a line to merge in, or a whole line if numbers of at most 16 bits are sorted by their digits.
    """
    axis = normalize_axis_index(options.get("axis", -1), len(array.bound))
    line = array.bound[axis]
    digits = array.dtype.itemsize <= 2 and array.dtype.kind in "biu"
    moved = line * width if digits else line * width // 2
    last = axis == len(array.bound) - 1
    whole = last and array.contiguous and not options.get("descending")
    room = line * array.dtype.itemsize if copied and not whole else 0
    return room + (0 if last else line * width) + (moved if options.get("stable", True) else 0)


def reduced_axes(axis: Any, ndim: int) -> Known:
    """The axes that a reduction goes over, none negative."""
    # NumPy allows a reduction along the first or last axis of an array without dimensions
    if axis is None or (ndim == 0 and axis in (0, -1)):
        return tuple(range(ndim))
    return normalize_axis_tuple(axis, ndim)


def reduced(shape: Known, axes: Known, options: Options) -> Known:
    if options.get("keepdims"):
        return tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    return tuple([length for axis, length in enumerate(shape) if axis not in axes])


def _ones_like(array: Meta) -> Any:
    return sample(array, (1,) * len(array.shape))


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
    with_out("all", reduction_rule, "Whether all elements along the axes are true (not zero).", Cost.SHORT, launches=1),
    with_out("any", reduction_rule, "Whether any element along the axes is true (not zero).", Cost.SHORT, launches=1),
    with_out("max", reduction_rule, "The largest element along the axes.", Cost.SHORT, launches=1),
    with_out("min", reduction_rule, "The smallest element along the axes.", Cost.SHORT, launches=1),
    with_out("prod", reduction_rule, "The product along axes.", Cost.FUNCTION, launches=1, on_cupy=halves.reduction),
    with_out("sum", reduction_rule, "The sum along the axes.", Cost.SHORT, launches=1, on_cupy=halves.reduction),
    with_out(averaging("mean"), mean_rule, "The mean along the axes.", Cost.SCALAR, launches=2),
    with_out(averaging("std"), variance_rule, "The standard deviation along the axes.", Cost.LONG_FUNCTION, launches=4),
    with_out(averaging("var"), variance_rule, "The variance along the axes.", Cost.LONG_FUNCTION, launches=3),
    with_out(count_nonzero, count_nonzero_rule, "How many elements are not zero.", Cost.SCALAR, launches=2),
    with_out("argmax", arg_reduction_rule, "The index of the first largest element.", Cost.SHORT, launches=1),
    with_out("argmin", arg_reduction_rule, "The index of the first smallest element.", Cost.SHORT, launches=1),
    with_out(cumulative("sum"), cumulative_rule, "Running sums.", Cost.SCALAR, launches=5),
    with_out(cumulative("prod"), cumulative_rule, "Running products.", Cost.LONG_FUNCTION, launches=5),
    operation("diff", diff_rule, "The n-th difference of neighbours along an axis.", Cost.SHORT),
    with_out(sort, sort_rule, "The elements in order along an axis.", Cost.SORTING, inplace=True),
    operation(argsort, argsort_rule, "The indices that sort along an axis.", Cost.SORTING),
    with_products(accurate_sum, accurate_sum_rule, "The sum along axes, also of many rows.", Cost.SHORT, launches=1),
)
