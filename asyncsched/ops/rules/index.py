"""Rules of indexing and searching."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..index_keys import decode_view_key
from ..meta import Meta, Shape, meta
from ..op import Inferred, Op, Operand, Options
from .common import INTP, all_contiguous, as_meta, cast_bytes, int_bounds, lengths, sample, viewed
from .selection import Selection, select, without_slices


def getitem(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A basic index: a view."""
    key = decode_view_key(options["key"])
    return viewed(operands[0], lambda array: array[key])


def getitem_advanced(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Integer tensors and masks among the parts of the key: a copy."""
    array = as_meta(operands[0])
    found = select(lengths(array), options["key"], operands[1:])
    contiguous = found.ordered and all_contiguous(operands)
    bound = found.bound if None in found.shape else None
    return Inferred(meta(found.shape, array.dtype, contiguous, bound), found.workspace)


def setitem(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A new version of the first operand, with the second assigned where the key says."""
    array, value, key = as_meta(operands[0]), operands[1], options["key"]
    if len(operands) == 2:
        found = Selection(getitem(op, operands, options).meta.shape, (), True, 0)
    else:
        found = select(lengths(array), key, operands[2:])
    check_value(lengths(value), found.shape)
    if not isinstance(value, (Meta, np.generic)):
        np.empty(1, array.dtype)[...] = sample(value)
    bounds, workspace = int_bounds((value,), (array.dtype,)), found.workspace
    if isinstance(value, Meta) and not all_contiguous((value,)) and not all_contiguous(operands[2:]):
        workspace += value.nbytes  # of the copy in C order
    return Inferred(meta(array.shape, array.dtype, array.contiguous), workspace, int_bounds=bounds)


def last_written(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A truth for each place that the tensors select; along slices all are alike. At work are numbers of all writes."""
    shape, key = without_slices(options["shape"], options["key"], operands)
    found = select(shape, key, operands)
    workspace = found.workspace + (prod(shape) + 3 * prod(found.bound)) * 8
    return Inferred(meta(found.shape, np.dtype(bool), True, found.bound if None in found.shape else None), workspace)


def argwhere(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The indices of nonzero elements, one row each: at most as many as there are elements."""
    array = as_meta(operands[0])
    if not array.shape:
        raise ValueError("nonzero: zero-dimensional arrays have no indices; use `x.reshape((1,))` first")
    bound = (prod(array.bound), len(array.bound))
    result = meta((None, bound[1]), INTP, True, bound)
    return Inferred(result, result.nbytes + cast_bytes(array, np.dtype(bool)))


def take(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Whole slices along an axis; NumPy makes the result in C order, from a C-contiguous copy if need be."""
    array, indices, axis = as_meta(operands[0]), as_meta(operands[1]), options.get("axis")
    shape = (prod(array.bound),) if axis is None else array.bound or (1,)
    axis = normalize_axis_index(0 if axis is None else axis, len(shape))
    if not np.can_cast(indices.dtype, INTP, "same_kind"):
        raise TypeError(f"{op.name}: the indices must be integers, not {indices.dtype}")
    if not shape[axis] and 0 not in (*shape[:axis], *indices.bound):
        raise IndexError(f"{op.name}: nothing can be taken from an empty axis")
    result = meta((*shape[:axis], *indices.bound, *shape[axis + 1 :]), array.dtype)
    return Inferred(result, (0 if array.contiguous else array.nbytes) + cast_bytes(indices, INTP))


def embedding(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Rows of the first operand, (count, width)."""
    if len(lengths(operands[0])) != 2:
        raise ValueError(f"embedding: the weight has shape {lengths(operands[0])} and must be (count, width)")
    return take(op, operands, {"axis": 0})


def take_along_axis(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """One element for each index; the other dimensions broadcast."""
    array, indices = as_meta(operands[0]), as_meta(operands[1])
    axis = normalize_axis_index(options.get("axis", -1), len(array.bound))
    if indices.dtype.kind not in "iu":
        raise IndexError("take_along_axis: the indices must be integers")
    if len(array.bound) != len(indices.bound):
        raise ValueError("take_along_axis: the indices and the array must have the same number of dimensions")
    other = (*array.bound[:axis], 1, *array.bound[axis + 1 :])
    try:
        shape = np.broadcast_shapes(other, indices.bound)
    except ValueError:
        shapes = f"{array.bound} and {indices.bound}"
        raise IndexError(f"take_along_axis: shapes {shapes} could not be broadcast together") from None
    workspace = cast_bytes(indices, INTP) + sum(array.bound) * 8
    return Inferred(meta(shape, array.dtype, all_contiguous(operands)), workspace)


def searchsorted(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Where to insert: an index for each element of the second operand."""
    ordered, values = as_meta(operands[0]), as_meta(operands[1])
    if len(ordered.shape) != 1:
        raise ValueError("searchsorted: the sorted operand must have one dimension")
    if len(operands) > 2 and lengths(operands[2]) != lengths(ordered):
        raise ValueError("searchsorted: sorter must be as long as the sorted operand")
    if options.get("side", "left") not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', not {options['side']!r}")
    dtype = np.result_type(ordered.dtype, values.dtype)
    workspace = cast_bytes(ordered, dtype) + (cast_bytes(values, dtype) or (0 if values.contiguous else values.nbytes))
    return Inferred(meta(values.bound, INTP), workspace)


def check_value(value: tuple[int, ...], target: Shape) -> None:
    """Whether `value` can be assigned: it broadcasts to the target, and leading ones are dropped."""
    extra = max(len(value) - len(target), 0)
    fits = all(length == 1 for length in value[:extra])
    aligned = zip(reversed(value), reversed(target), strict=False)
    if not fits or any(length not in (1, wanted) for length, wanted in aligned if wanted is not None):
        raise ValueError(f"could not broadcast input array from shape {value} into shape {target}")
