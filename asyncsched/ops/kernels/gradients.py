"""Operations that only training needs: parts of derivatives, and steps of optimisers.

A step is a whole update in one task, with one temporary array instead of one for each operation. Without `out`, its
kernel first makes an array for the result: also for one without axes, for which NumPy would return a scalar.
"""

from __future__ import annotations

from math import inf, log, prod, sqrt
from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Meta, Op, Operand, Options, in_place, meta, with_out
from ..index_keys import TENSOR, Key, decode_key, decode_view_key, select
from ..rules import INTP, as_meta, broadcast, cast_bytes, copies, lengths, viewed
from .blocks import ADDED, BLOCK, blocks
from .checks import require_key, require_within
from .create import zeros
from .elementwise import add_at, into, kept
from .index import assign_where, check_value, is_one_mask

_MANY_EACH = 64  # rows


def scatter(xp: Any, x: Any, *indices: Any, shape: Any, key: Key, out: Any = None) -> Any:
    """Zeros, with `x` added at the key: the transpose of indexing. A place named twice gets both values.

    On CUDA it uses atomics, whose order differs from run to run.
    """
    out = zeros(xp, shape=shape, dtype=x.dtype, out=out)
    place = decode_key(key, indices)
    require_key(xp, out.shape, key, indices)
    if xp is not np and is_one_mask(key, indices):
        assign_where(xp, out, x, indices[0], key)
    elif TENSOR not in key or all(xp.asarray(index).dtype.kind == "b" for index in indices):
        out[place] = x
    elif xp is np and key == (TENSOR,) and x.size >= ADDED and x.shape == place[0].shape + shape[1:]:
        _add_rows(out, place[0], x)
    else:
        _add_at(xp, out, place, x)
    return out


def _add_at(xp: Any, out: Any, place: Any, x: Any) -> None:
    """`xp.add.at`. In double precision if many are added to each on average, as `_add_rows`."""
    if xp is not np or not _often(x.size, out.size, out.dtype):
        add_at(xp, out, place, x)
        return
    total = np.zeros(out.shape)
    np.add.at(total, place, x.astype(total.dtype))  # it takes ten times as long to cast each by itself
    into(np, out, total)


def _room_for_double(x: Meta, result: Meta) -> int:
    """Bytes of the sums in double precision, and of what is added."""
    added, places = prod(x.bound), prod(result.bound)
    return (added + places) * np.dtype(np.float64).itemsize if _often(added, places, result.dtype) else 0


def _add_rows(out: Any, rows: Any, x: Any) -> None:
    """The same as `np.add.at(out, rows, x)`, in the same order, but with single elements: several times faster.

    In double precision if many rows are added to each on average: one after the other, millions would be percents off.
    """
    width = prod(out.shape[1:])
    rows, lines = rows.reshape(-1).astype(np.intp, copy=False), x.reshape(rows.size, width)
    total = np.zeros(out.size) if _often(rows.size, len(out), out.dtype) else out.reshape(-1)
    columns, step = np.arange(width), max(ADDED // width, 1)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        added = lines[part].reshape(-1).astype(total.dtype, copy=False)
        np.add.at(total, (rows[part, None] * width + columns).reshape(-1), added)
    if total.dtype != out.dtype:
        into(np, out, total.reshape(out.shape))


def _often(added: int, places: int, dtype: np.dtype[Any]) -> bool:
    return dtype in (np.float16, np.float32) and added >= _MANY_EACH * places


def scatter_along_axis(xp: Any, x: Any, indices: Any, *, shape: Any, axis: int, out: Any = None) -> Any:
    """Zeros, with each element of `x` added at its index on the axis: the transpose of `take_along_axis`."""
    out = zeros(xp, shape=shape, dtype=x.dtype, out=out)
    require_within(xp, indices, shape[axis], axis % len(shape))
    place = [xp.arange(n).reshape([-1 if i == at else 1 for i in range(len(shape))]) for at, n in enumerate(shape)]
    place[axis] = indices
    _add_at(xp, out, tuple(place), x)
    return out


def cumulative_prod_gradient(xp: Any, x: Any, g: Any, *, axis: int, out: Any = None) -> Any:
    """The product before each element times a sum over the elements after it, computed from the end.

    It never divides by zero. The k-th of n is x[0] ... x[k-1] (g[k] + x[k+1] (g[k+1] + x[k+2] (...))).
    """
    result = xp.empty(x.shape, xp.result_type(x, g)) if out is None else out
    lines, values, gradients = [xp.moveaxis(a, axis, 0) for a in (result, x, g)]
    total: Any = 0
    for k in reversed(range(len(values))):
        total = gradients[k] + (values[k + 1] * total if k + 1 < len(values) else 0)
        lines[k] = total
    before: Any = 1
    for k in range(1, len(values)):
        before = before * values[k - 1]
        lines[k] *= before
    return result


def choice_backward(xp: Any, grad: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """The gradient where x > y, half of it where they are equal, and 0 elsewhere, even where it is infinite."""
    out = xp.empty(grad.shape, grad.dtype) if out is None else out
    result, grads, operands = out.reshape(-1), grad.reshape(-1), [_line(xp, array, grad.shape) for array in (x, y)]
    for block in blocks(xp, grad.size, alive=4):
        a, b = [array[block] if np.ndim(array) else array for array in operands]
        kept(xp, grads[block], ~(a < b), out=result[block])
        ties = a == b
        if xp is not np or ties.any():  # on a GPU, the question would wait for the device
            xp.divide(result[block], xp.add(ties, 1, dtype="i1"), out=result[block])
    return out


def _line(xp: Any, array: Any, shape: Any) -> Any:
    """The array broadcast to `shape`, with one axis; a number is returned as it is."""
    if np.ndim(array) == 0:
        return array
    return (array if array.shape == shape else xp.broadcast_to(array, shape)).reshape(-1)


# -- rules -------------------------------------------------------------------------------------------------------------


def scatter_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Zeros of a shape, with the first operand added at the key."""
    result = meta(options["shape"], as_meta(operands[0]).dtype)
    if len(operands) == 1:
        check_value(lengths(operands[0]), viewed(result, lambda x: x[decode_view_key(options["key"])]).meta.shape)
        return Inferred(result)
    found = select(result.bound, options["key"], operands[1:])
    check_value(lengths(operands[0]), found.shape)
    rows = options["key"] == (TENSOR,)
    x = as_meta(operands[0])
    room = _room_for_rows(x, as_meta(operands[1]), result) if rows else _room_for_double(x, result)
    return Inferred(result, found.workspace + room, on_card=found.on_card + room)


def _room_for_rows(x: Meta, rows: Meta, result: Meta) -> int:
    """Bytes of the flat places of a block of rows, of copies of what is not contiguous, and of the sums in double."""
    if prod(x.bound) < ADDED:
        return 0
    block, count = max(ADDED, prod(result.bound[1:])), prod(rows.bound)
    sums = prod(result.bound) if _often(count, result.bound[0], result.dtype) else 0
    copied = 0 if rows.contiguous and rows.dtype == INTP else count
    return (4 * block + sums + copied) * INTP.itemsize + copies((x,))


def scatter_along_axis_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Zeros of a shape, with each element added at its index. Workspace: a number for each index."""
    shape = options["shape"]
    x, indices = as_meta(operands[0]), as_meta(operands[1])
    broadcast(operands)
    result = meta(shape, x.dtype)
    return Inferred(result, cast_bytes(indices, INTP) + sum(shape) * INTP.itemsize + _room_for_double(x, result))


def choice_backward_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The form of the first operand, to whose shape the others broadcast; made in blocks."""
    grad, shape = as_meta(operands[0]), lengths(operands[0])
    if broadcast(operands) != shape or grad.dtype.kind != "f":
        raise ValueError(f"{op.name}: the gradient is {grad}; the operands {operands[1:]} must broadcast to it")
    arrays = [operand for operand in operands if isinstance(operand, Meta)]
    spread = sum(prod(shape) * a.dtype.itemsize for a in arrays if not a.contiguous or a.bound not in (shape, ()))
    return Inferred(meta(shape, grad.dtype), spread + 4 * min(prod(shape), 2 * BLOCK))  # masks of a byte each


def cumulative_prod_gradient_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The form of both operands. Workspace: a few lines across the axis."""
    result = meta(broadcast(operands), np.result_type(*[as_meta(operand).dtype for operand in operands]))
    lines = prod(result.bound) // max(result.bound[options["axis"]], 1)
    return Inferred(result, 3 * lines * result.dtype.itemsize)


def axpby(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y, where x may be a number."""
    out = _like(xp, x, y) if out is None else out
    scaled = xp.multiply(y, b, out=xp.empty_like(y))
    return xp.add(x if a == 1 else xp.multiply(x, a, out=out), scaled, out=out)


def axpby_squared(xp: Any, x: Any, y: Any, a: float, b: float, *, out: Any = None) -> Any:
    """a x + b y**2, where x may be a number."""
    out = _like(xp, x, y) if out is None else out
    squared = xp.square(y, out=xp.empty_like(y))
    xp.multiply(squared, b, out=squared)
    xp.multiply(x, a, out=out)
    return xp.add(out, squared, out=out)


def adam_step(
    xp: Any, x: Any, mean: Any, square: Any, count: Any,
    lr: float, decay: float, b1: float, b2: float, eps: float, *, out: Any = None,
) -> Any:  # fmt: skip
    """(1 - lr decay) x - lr (mean / (1 - b1**count)) / (sqrt(square / (1 - b2**count)) + eps)."""
    out = xp.empty_like(x) if out is None else out
    if xp is np:
        rate, scale = lr / (1 - b1 ** int(count)), 1 / sqrt(1 - b2 ** int(count))
    else:  # the count is on the device, and the host would have to wait for it
        steps = count.astype(xp.float32 if x.dtype == xp.float16 else x.dtype)
        rate = (lr / _bias_correction(xp, b1, steps)).astype(x.dtype)
        scale = (1 / xp.sqrt(_bias_correction(xp, b2, steps))).astype(x.dtype)
    change = xp.sqrt(square, out=xp.empty_like(square))
    xp.multiply(change, scale, out=change)
    xp.add(change, eps, out=change)
    xp.divide(mean, change, out=change)
    xp.multiply(change, rate, out=change)
    xp.multiply(x, 1 - lr * decay, out=out)
    return xp.subtract(out, change, out=out)


def _bias_correction(xp: Any, b: float, steps: Any) -> Any:
    """1 - b**steps, accurate in single precision.

    The power is taken for each element on a card; in single precision, the difference would lose most of its digits.
    """
    return -xp.expm1(steps * (log(b) if b else -inf))


def rms_scaled(xp: Any, x: Any, square: Any, eps: float, *, out: Any = None) -> Any:
    """x / (sqrt(square) + eps)."""
    scale = xp.sqrt(square, out=xp.empty_like(square))
    xp.add(scale, eps, out=scale)
    return xp.divide(x, scale, out=xp.empty_like(x) if out is None else out)


def _like(xp: Any, x: Any, y: Any) -> Any:
    """A new array in the layout of `x`, or in C order and the shape of `y` if `x` is a number."""
    return xp.empty_like(x) if getattr(x, "ndim", 0) else xp.empty(y.shape, y.dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


def update_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A result like the first operand, or in C order if that is a number. Workspace: one more array.

    All operands must be alike, except numbers and a count.
    """
    first, *more = arrays = [operand for operand in operands if isinstance(operand, Meta)]
    if more and more[-1].shape == () and more[-1].dtype.kind == "i":  # the count of steps
        arrays.pop()
    if any(array.shape != first.shape or array.dtype != first.dtype for array in arrays):
        raise ValueError(f"{op.name}: the operands must be alike, but are {', '.join(map(repr, arrays))}")
    in_order = first.contiguous if first is operands[0] else True
    return Inferred(meta(first.shape, first.dtype, in_order), first.nbytes)


OPS = (
    with_out(scatter, scatter_rule, "Zeros, with elements added at an index.", checks=True),
    with_out(scatter_along_axis, scatter_along_axis_rule, "Zeros, with elements added along an axis.", checks=True),
    with_out(
        choice_backward, choice_backward_rule,
        "The gradient of the operand that `maximum` or `minimum` chose, shared where both are equal.", Cost.SCALAR,
        inplace=True, fused_on_cuda=True,
    ),
    with_out(cumulative_prod_gradient, cumulative_prod_gradient_rule, "The gradient of running products."),
    in_place(axpby, update_rule, "a x + b y, where a and b are numbers.", Cost.SCALAR),
    in_place(axpby_squared, update_rule, "a x + b y**2, where a and b are numbers.", Cost.SCALAR),
    in_place(rms_scaled, update_rule, "x over the root of averaged squares.", Cost.SCALAR),
    in_place(adam_step, update_rule, "A step of Adam.", Cost.FUNCTION),
)  # fmt: skip
