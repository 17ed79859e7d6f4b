"""Rules of operations that only derivatives and optimisers need."""

from __future__ import annotations

from math import prod

import numpy as np

from ..index_keys import TENSOR, decode_view_key
from ..kernels.blocks import ADDED, BLOCK
from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options
from .common import INTP, as_meta, broadcast, cast_bytes, lengths, viewed
from .index import check_value
from .selection import select


def scatter(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Zeros of a shape, with the first operand added where the key says."""
    result = meta(options["shape"], as_meta(operands[0]).dtype)
    if len(operands) == 1:
        place, workspace = viewed(result, lambda array: array[decode_view_key(options["key"])]).meta.shape, 0
    else:
        found = select(result.bound, options["key"], operands[1:])
        place, workspace = found.shape, found.workspace
        if options["key"] == (TENSOR,):
            workspace += _flat_places(as_meta(operands[0]), as_meta(operands[1]), prod(result.bound[1:]))
    check_value(lengths(operands[0]), place)
    return Inferred(result, workspace)


def _flat_places(x: Meta, rows: Meta, width: int) -> int:
    """Bytes of the flat places of a block of rows, and of a copy of the row numbers if they lie scattered."""
    if prod(x.bound) < ADDED:
        return 0
    return (3 * max(ADDED, width) + (0 if rows.contiguous else prod(rows.bound))) * INTP.itemsize


def scatter_along_axis(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Zeros of a shape, with each element of the first operand added at its index; a number for each index in all."""
    shape = options["shape"]
    indices = as_meta(operands[1])
    broadcast(operands)
    return Inferred(meta(shape, as_meta(operands[0]).dtype), cast_bytes(indices, INTP) + sum(shape) * INTP.itemsize)


def update(op: Op, operands: tuple[Operand, ...], options: Options, *, alive: int = 1) -> Inferred:
    """Like the first operand, as all are but the numbers and a count, or in C order if that is a number.

    `alive` more are at work.
    """
    first, *more = arrays = [operand for operand in operands if isinstance(operand, Meta)]
    if more and more[-1].shape == () and more[-1].dtype.kind == "i":  # the count of steps
        arrays.pop()
    if any(array.shape != first.shape or array.dtype != first.dtype for array in arrays):
        raise ValueError(f"{op.name}: the operands must be alike, and are {', '.join(map(repr, arrays))}")
    in_order = first.contiguous if first is operands[0] else True
    return Inferred(meta(first.shape, first.dtype, in_order), alive * first.nbytes)


def choice_backward(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Like the first operand, to whose shape the others broadcast, made in blocks."""
    grad, shape = as_meta(operands[0]), lengths(operands[0])
    if broadcast(operands) != shape or grad.dtype.kind != "f":
        raise ValueError(f"{op.name}: the gradient is {grad}, and the operands {operands[1:]} must broadcast to it")
    arrays = [operand for operand in operands if isinstance(operand, Meta)]
    spread = sum(prod(shape) * a.dtype.itemsize for a in arrays if not a.contiguous or a.bound not in (shape, ()))
    return Inferred(meta(shape, grad.dtype), spread + 4 * min(prod(shape), 2 * BLOCK))  # masks of a byte each


def cumulative_prod_gradient(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Like both operands; a few lines across the axis are alive at once."""
    result = meta(broadcast(operands), np.result_type(*[as_meta(operand).dtype for operand in operands]))
    lines = prod(result.bound) // max(result.bound[options["axis"]], 1)
    return Inferred(result, 3 * lines * result.dtype.itemsize)
