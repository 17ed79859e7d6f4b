"""Rules of operations that work along axes: reductions, cumulations, sorting."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..kernels.releasing_gil import room
from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options, resolve
from .common import INTP, Known, as_meta, lengths, no_axis, same_as, sample, shrunk


def reduction(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A reduction over `axis` (an int, a tuple or None for all). A sample tells the dtype, and what emptiness does."""
    array = as_meta(operands[0])
    axes = reduced_axes(options.get("axis"), len(array.shape))
    dtype = resolve(op, np)(shrunk(array), **options).dtype
    return Inferred(meta(_reduced(lengths(array), axes, options), dtype, array.contiguous))


def count_nonzero(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """As a reduction, over a copy in bool."""
    array = as_meta(operands[0])
    return reduction(op, operands, options)._replace(workspace=prod(array.bound) if array.dtype != bool else 0)


def mean(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A reduction that takes empty arrays with a warning, so the sample is never empty."""
    array = as_meta(operands[0])
    axes = reduced_axes(options.get("axis"), len(array.shape))
    dtype = resolve(op, np)(_ones_like(array), axis=options.get("axis")).dtype
    result = meta(_reduced(lengths(array), axes, options), dtype, array.contiguous)
    # Half precision is summed in single, and then written to its place.
    return Inferred(result, 2 * result.nbytes if array.dtype == np.float16 else 0)


def variance(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`var` and `std`: NumPy makes the deviations from the mean, of the whole operand's size, and the mean."""
    inferred = mean(op, operands, {"axis": options.get("axis"), "keepdims": options.get("keepdims", False)})
    array = as_meta(operands[0])
    deviations = np.result_type(inferred.meta.dtype, array.dtype, np.float32)
    # Complex deviations are squared part by part, in one more array of half their size.
    parts = 3 if deviations.kind == "c" else 2
    elements = prod(inferred.meta.bound) + prod(array.bound) * parts // 2
    return inferred._replace(workspace=elements * deviations.itemsize + inferred.workspace)


def arg_reduction(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`argmax` and `argmin`: NumPy copies the operand unless the axis is the last of a C-contiguous array."""
    array = as_meta(operands[0])
    axis = options.get("axis")
    inferred = reduction(op, operands, options)
    last = axis is None or axis in (-1, len(array.shape) - 1)
    copied = 0 if array.contiguous and last else array.nbytes
    shape = inferred.meta.shape
    return Inferred(meta(shape, INTP, True), copied)


def cumulative(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`cumulative_sum` and `cumulative_prod`, perhaps with the initial value in front."""
    array = as_meta(operands[0])
    shape = lengths(array)
    no_axis(shape, op.name)
    axis = _one_axis(options.get("axis"), shape, op.name)
    dtype = resolve(op, np)(_ones_like(array), **options).dtype
    longer = shape[axis] + bool(options.get("include_initial"))
    result = meta((*shape[:axis], longer, *shape[axis + 1 :]), dtype, array.contiguous)
    # Without `out=` the initial value is joined to a result made before.
    joined = options.get("include_initial") and not array.contiguous
    return Inferred(result, (result.nbytes if joined else 0) + room(result))


def diff(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`n` times the difference of neighbours; two of the steps are alive at once."""
    array = as_meta(operands[0])
    shape, n = lengths(array), options.get("n", 1)
    no_axis(shape, op.name)
    axis = normalize_axis_index(options.get("axis", -1), len(shape))
    dtype = resolve(op, np)(sample(array, (2,))).dtype
    if n < 1:
        raise ValueError(f"diff: order must be positive but got {n}")
    result = meta((*shape[:axis], max(shape[axis] - n, 0), *shape[axis + 1 :]), dtype, array.contiguous)
    return Inferred(result, array.nbytes if n > 1 else 0)


def sort(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The same elements in order: one line is buffered, and a stable sort merges through half of it."""
    array = as_meta(operands[0])
    axis = normalize_axis_index(options.get("axis", -1), len(array.shape))
    line = lengths(array)[axis] * array.dtype.itemsize
    return same_as(array, array.nbytes * 2 if options.get("descending") else line + line // 2)


def argsort(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The indices that sort; NumPy returns them C-contiguous."""
    array = as_meta(operands[0])
    workspace = sort(op, operands, options).workspace
    contiguous = array.contiguous or not options.get("descending")
    result = meta(array.shape, INTP, contiguous)
    return Inferred(result, workspace + (2 * result.nbytes if options.get("descending") else 0))


def reduced_axes(axis: Any, ndim: int) -> Known:
    """The axes that a reduction goes over, none negative."""
    # NumPy lets an array without dimensions be reduced along its first or last.
    if axis is None or (ndim == 0 and axis in (0, -1)):
        return tuple(range(ndim))
    return normalize_axis_tuple(axis, ndim)


def _one_axis(axis: int | None, shape: Known, name: str) -> int:
    if axis is not None:
        return normalize_axis_index(axis, len(shape))
    if len(shape) > 1:
        raise ValueError(f"{name}: more than one dimension, so `axis` is required")
    return 0


def _reduced(shape: Known, axes: Known, options: Options) -> Known:
    if options.get("keepdims"):
        return tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    return tuple([length for axis, length in enumerate(shape) if axis not in axes])


def _ones_like(array: Meta) -> Any:
    return sample(array, (1,) * len(array.shape))
