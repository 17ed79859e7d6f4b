"""Views in other shapes, and arrays joined, repeated or rolled."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..declare import Cost, Inferred, Op, Operand, Options, meta, operation, with_out
from ..rules import Known, all_contiguous, as_meta, axis_of, copies, lengths, same_as, view_rule
from . import releasing_gil
from .releasing_gil import room

_LEAST_BYTES = 65_536  # charged for repeats in a tensor however small the operand is: those need no `maxlength`


def flip(xp: Any, x: Any, *, axis: Any = None) -> Any:
    """The elements along the axes in reverse: a view, also of an array without axes."""
    return xp.flip(x, axis) if x.ndim or axis is not None else x[...]


def matrix_transpose(xp: Any, x: Any) -> Any:
    """The last two axes exchanged: a view."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: the operand needs at least two dimensions, not {x.ndim}")
    return xp.swapaxes(x, -1, -2)


def reshape(xp: Any, x: Any, *, shape: Any, copy: bool | None = None) -> Any:
    """Another shape: a view if possible, or always a copy (`copy=True`), or never one, with an error (False)."""
    return x.reshape(shape) if copy is None else xp.reshape(x, shape, copy=copy)


def concat(xp: Any, *arrays: Any, axis: int | None = 0, out: Any = None) -> Any:
    """Arrays joined along an axis."""
    return xp.concatenate(arrays, axis=axis, out=out)


def stack(xp: Any, *arrays: Any, axis: int = 0, out: Any = None) -> Any:
    """Arrays joined along a new axis."""
    return xp.stack(arrays, axis=axis, out=out)


def repeat_each(xp: Any, x: Any, repeats: Any, *, axis: int | None = None, maxlength: int | None = None) -> Any:
    """Each element as often as its own number says. CuPy would need the numbers on the host."""
    shape, at = axis_of(x.shape, axis)
    most = _most_repeats(shape, at, x.itemsize, maxlength)
    total = int(repeats.sum()) * (shape[at] if repeats.size == 1 else 1)
    if total > most:
        raise ValueError(
            f"repeat: the repeats add up to {total:,}, and {most:,} were charged: give `maxlength=`, at least {total}"
        )
    if xp is np:
        return releasing_gil.repeat_each(x, repeats, axis=axis)
    lines = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    ends = xp.cumsum(xp.broadcast_to(repeats, (lines.shape[along],)))
    if not ends.size:
        return lines.copy()
    if int(xp.min(repeats)) < 0:
        raise ValueError("repeats may not contain negative values.")
    places = xp.searchsorted(ends, xp.arange(int(ends[-1])), side="right")
    return xp.take(lines, places, axis=along)


# -- rules -------------------------------------------------------------------------------------------------------------


def reshape_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A view of a C-contiguous operand. Any other may be copied, so its bytes are counted."""
    array = as_meta(operands[0])
    found = view_rule(op, (meta(array.shape, array.dtype),), {"shape": options["shape"]})
    copy = options.get("copy")
    result = meta(found.meta.shape, array.dtype, array.contiguous or copy is True)
    may_copy = copy is True or (copy is None and not array.contiguous)
    return Inferred(result, owned=result.nbytes if may_copy else 0)


def concat_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Arrays joined along an existing axis; `axis=None` joins them flattened."""
    axis = options.get("axis", 0)
    shapes = [lengths(operand) for operand in operands]
    if not shapes:
        raise ValueError("concat: need at least one array to concatenate")
    if axis is None:
        return Inferred(meta((sum(map(prod, shapes)),), _joined_dtype(operands)))
    if not all(shapes):
        raise ValueError("concat: zero-dimensional arrays cannot be concatenated")
    axis = normalize_axis_index(axis, len(shapes[0]))
    rest = {(len(shape), shape[:axis], shape[axis + 1 :]) for shape in shapes}
    if len(rest) > 1:
        text = " ".join(map(str, shapes))
        raise ValueError(f"concat: the shapes {text} must agree in every dimension but {axis}")
    joined = sum(shape[axis] for shape in shapes)
    shape = (*shapes[0][:axis], joined, *shapes[0][axis + 1 :])
    return Inferred(meta(shape, _joined_dtype(operands), all_contiguous(operands)))


def stack_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Arrays of one shape joined along a new axis."""
    shapes = [lengths(operand) for operand in operands]
    if not shapes:
        raise ValueError("stack: need at least one array to stack")
    if len(set(shapes)) > 1:
        raise ValueError(f"stack: all arrays must have the same shape, not {' '.join(map(str, shapes))}")
    axis = normalize_axis_index(options.get("axis", 0), len(shapes[0]) + 1)
    shape = (*shapes[0][:axis], len(shapes), *shapes[0][axis:])
    return Inferred(meta(shape, _joined_dtype(operands), all_contiguous(operands)))


def repeat_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Each element `repeats` times along an axis, or of the flattened array. NumPy makes it in C order."""
    array, repeats = as_meta(operands[0]), options["repeats"]
    shape, axis = axis_of(array.bound, options.get("axis"))
    if repeats < 0:
        raise ValueError("repeat: repeats may not contain negative values.")
    found = meta((*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]), array.dtype)
    return Inferred(found, copies(operands) + room(found))


def repeat_each_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Repeats given by a tensor: the length is unknown, and the most that it may be is charged until it is done.

    A tensor of one number holds for all elements.
    """
    array, repeats = as_meta(operands[0]), as_meta(operands[1])
    shape, axis = axis_of(array.bound, options.get("axis"))
    if not np.can_cast(repeats.dtype, np.intp, "safe"):
        raise TypeError(f"repeat: repeats must be integers, not {repeats.dtype}")
    if len(repeats.bound) > 1 or repeats.bound not in ((), (1,), (shape[axis],)):
        raise ValueError(f"repeat: repeats of shape {repeats.bound} must have an element for each of the {shape[axis]}")
    most = _most_repeats(shape, axis, array.dtype.itemsize, options.get("maxlength"))
    before, after = shape[:axis], shape[axis + 1 :]
    found = meta((*before, None, *after), array.dtype, True, (*before, most, *after))
    return Inferred(found, copies((array,)) + repeats.nbytes + room(found))


def _most_repeats(shape: Known, axis: int, itemsize: int, maxlength: int | None) -> int:
    """How long an axis with repeats may become: `maxlength`, or what it was, or as long as 64 KiB are."""
    if maxlength is not None:
        return maxlength
    line = prod([n for at, n in enumerate(shape) if at != axis]) * itemsize
    return max(shape[axis], _LEAST_BYTES // max(line, 1))


def tile_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Copies of the array side by side. Unless it is copied at once, NumPy repeats one axis after the other.

    Workspace: the step before the last.
    """
    array, repetitions = as_meta(operands[0]), options["repetitions"]
    ndim = max(len(array.bound), len(repetitions))
    padded = (1,) * (ndim - len(array.bound)) + array.bound
    counts = (1,) * (ndim - len(repetitions)) + tuple(repetitions)
    if any(count < 0 for count in counts):
        raise ValueError(f"tile: negative repetitions {counts}")
    repeated = [count for count in counts if count != 1]
    shape = tuple([length * count for length, count in zip(padded, counts, strict=True)])
    result = meta(shape, array.dtype, array.contiguous or bool(repeated))
    before = result.nbytes // max(repeated[-1], 1) if len(repeated) > 1 else copies(operands)
    at_once = releasing_gil.tiled_at_once(array.bound, prod(counts))
    return Inferred(result, 0 if at_once else before, on_card=before)


def roll_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The elements rolled. Without an axis the flattened array is rolled, which makes the result C-contiguous."""
    array, axis = as_meta(operands[0]), options.get("axis")
    if axis is None:
        return Inferred(meta(array.shape, array.dtype), copies(operands))
    axes = normalize_axis_tuple(axis, len(array.shape), allow_duplicate=True)
    np.broadcast_shapes(np.shape(options["shift"]), (len(axes),))
    return same_as(array)


def _joined_dtype(operands: tuple[Operand, ...]) -> np.dtype:
    return np.result_type(*[as_meta(operand).dtype for operand in operands])


OPS = (
    operation("broadcast_to", view_rule, "A read-only view in a larger shape.", view=True),
    operation("expand_dims", view_rule, "A view with a new axis of length one.", view=True),
    operation(flip, view_rule, "A view with the elements along the axes in reverse.", view=True),
    operation(matrix_transpose, view_rule, "A view with the last two axes exchanged.", view=True),
    operation("transpose", view_rule, "A view with the axes in another order.", name="permute_dims", view=True),
    operation("squeeze", view_rule, "A view without axes of length one.", view=True),
    operation(reshape, reshape_rule, "Another shape, in C order: perhaps a view.", view=True),
    with_out(concat, concat_rule, "Tensors joined along an existing axis.", Cost.SCALAR),
    with_out(stack, stack_rule, "Tensors joined along a new axis.", Cost.SCALAR),
    operation("repeat", repeat_rule, "Each element several times.", Cost.FUNCTION, releasing_gil=releasing_gil.repeat),
    operation(repeat_each, repeat_each_rule, "Each element as often as its own number says."),
    operation(releasing_gil.tile, tile_rule, "Copies of the tensor side by side.", Cost.SHORT),
    operation("roll", roll_rule, "The elements shifted in a circle along the axes.", Cost.SHORT),
)  # fmt: skip
