"""Kernels of indexing and searching.

CuPy takes an index that is out of range modulo the length, so indices are checked here, see `checks`. And CuPy waits to
count the elements that a mask selects. If the result's shape is known without that, the places are found on the device.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..declare import Cost, Inferred, Meta, Op, Operand, Options, meta, operation, resolve, with_out
from ..index_keys import ALL, TENSOR, Key, Path, Selection, decode_key, decode_view_key, select, through, without_slices
from ..meta import Shape
from ..rules import INTP, all_contiguous, as_meta, axis_of, cast_bytes, copies, int_bounds, lengths, sample, viewed
from .checks import require, require_between, require_key, require_within
from .elementwise import into


def take_along_axis(xp: Any, x: Any, indices: Any, *, axis: int = -1) -> Any:
    """An element for each index."""
    require_within(xp, indices, x.shape[axis], axis % x.ndim)
    return xp.take_along_axis(x, indices, axis)


def argwhere(xp: Any, x: Any) -> Any:
    """The indices of nonzero elements, one row each. Others than bools NumPy would count with the GIL held."""
    return xp.stack(xp.nonzero(x.astype(bool, copy=False)), axis=-1)


def take(xp: Any, x: Any, indices: Any, *, axis: int | None = None, out: Any = None) -> Any:
    """Slices along an axis. Bad indices are found first: otherwise NumPy would buffer `out` to leave it whole."""
    length = x.size if axis is None or x.ndim == 0 else x.shape[axis]
    require_within(xp, indices, length, 0 if axis is None or x.ndim == 0 else axis % x.ndim)
    if out is None or xp is not np or np.size(indices) == 0 or not _all_within(indices, length):
        return xp.take(x, indices, axis=axis, out=out)
    return np.take(x, indices, axis=axis, out=out, mode="wrap")


def embedding(xp: Any, weight: Any, indices: Any, *, out: Any = None) -> Any:
    """Rows of a table. Unlike in `take`, -1 is out of range."""
    indices = xp.asarray(indices)
    require_between(xp, indices, 0, len(weight), partial(_row_error, len(weight)))
    if out is None:
        return xp.take(weight, indices, axis=0)
    return np.take(weight, indices, axis=0, out=out, mode="wrap")  # without mode="wrap" NumPy would buffer `out`


def _row_error(count: int, least: int, most: int) -> Exception:
    return IndexError(
        f"embedding: the indices range from {least} to {most}, but there are {count} rows: use 0 to {count - 1}"
    )


def searchsorted(xp: Any, ordered: Any, values: Any, sorter: Any = None, *, side: str = "left") -> Any:
    """Where to insert values into a sorted array."""
    if sorter is not None and xp is not np:
        require_between(
            xp, sorter, 0, len(ordered), lambda *_: ValueError("Sorter index out of range.")
        )  # NumPy's message
    return xp.searchsorted(ordered, values, side=side, sorter=sorter)


def getitem(xp: Any, x: Any, *, key: Key) -> Any:
    """A basic index: a view."""
    return x[decode_view_key(key)]


def getitem_advanced(xp: Any, x: Any, *indices: Any, key: Key) -> Any:
    """Index arrays among the parts of the key: a copy."""
    require_key(xp, x.shape, key, indices)
    return x[decode_key(key, indices)]


def setitem(
    xp: Any,
    x: Any,
    value: Any,
    *indices: Any,
    key: Key,
    path: Path | None = None,
    op: Op | None = None,
    out: Any = None,
) -> Any:
    """A new version of `x` with `value` assigned; `x` itself if it is `out`.

    Of several writes to a place the last stays, in C order. (NumPy's own order depends on the layout, CuPy's on
    chance.) With a path, the key is that of a view of `x`, and the new version is in C order. With a universal function
    as `op`, all of the view is assigned `op(view, value)`.
    """
    shape = through(xp, x, path).shape if path else x.shape
    require_key(xp, shape, key, indices)
    if np.ndim(value) and any(index.dtype != bool and index.size > 1 for index in indices):
        if xp is not np:
            value = _of_last_writes(xp, shape, value, key, indices)
        elif len(indices) > 1 or not indices[0].flags.c_contiguous:
            # NumPy goes in C order if neither the indices nor the value suggest another.
            value, *indices = [np.asarray(array, order="C") for array in (value, *indices)]  # type: ignore[assignment]
    if out is None:
        out = x.copy(order="K" if path is None else "C")
    elif out is not x:
        into(xp, out, x)
    part = through(xp, out, path) if path else out
    if op is not None:
        resolve(op, xp)(part, value, out=part)
    elif xp is not np and is_one_mask(key, indices):
        assign_where(xp, part, value, indices[0], key)
    else:
        # With numbers only, NumPy would assign to an element, which from 2.4 on takes no value with axes of length one.
        at = decode_key(key, indices)
        part[at if any(map(np.ndim, indices)) or Ellipsis in key else (*at, Ellipsis)] = value
    return out


def last_written(xp: Any, *indices: Any, shape: Any, key: Key) -> Any:
    """Which of a key's writes are the last to their places."""
    require_key(xp, shape, key, indices)
    last, numbers = _last_writes(xp, shape, key, indices)
    return last == numbers


def _last_writes(xp: Any, shape: Any, key: Key, indices: Any) -> tuple[Any, Any]:
    """For each write the number of the last write to its place, and its own number, in C order from 1."""
    shape, key = without_slices(shape, key, _forms(indices))
    at, last = decode_key(key, indices), xp.zeros(shape, np.uint64)
    picked = last[at].shape
    numbers = xp.arange(1, prod(picked) + 1, dtype=np.uint64).reshape(picked)
    if xp is np:
        last[at] = numbers
    else:
        xp.maximum.at(last, at, numbers)
    return last[at], numbers


def _of_last_writes(xp: Any, shape: Any, value: Any, key: Key, indices: Any) -> Any:
    """The values to assign so that all writes to a place write the value of the last one."""
    last = _last_writes(xp, shape, key, indices)[0].astype(np.intp) - 1
    target = select(shape, key, _forms(indices)).shape
    picked = tuple([n if n is not None else known for n, known in zip(target, last.shape, strict=True)])
    value = xp.broadcast_to(value.reshape(value.shape[max(value.ndim - last.ndim, 0) :]), picked)
    places = list[Any]()
    for n in reversed(last.shape):  # `unravel_index` would wait for the device, to check that all are inside
        places.insert(0, last % max(n, 1))
        last = last // max(n, 1)
    for axis, n in enumerate(picked):
        if last.shape[axis] < n:
            places[axis] = xp.arange(n).reshape(-1, *[1] * (last.ndim - axis - 1))
    return value[tuple(places)]


def _forms(indices: Any) -> tuple[Any, ...]:
    return tuple([meta(index.shape, index.dtype) for index in indices])


def is_one_mask(key: Key, indices: Any) -> bool:
    """Whether the key is one mask, beside slices only."""
    masked = len(indices) == 1 and indices[0].dtype == bool and indices[0].size > 0 and indices[0].ndim > 0
    return masked and not any(isinstance(part, int) for part in key)


def assign_where(xp: Any, out: Any, value: Any, mask: Any, key: Key) -> None:
    """Assign to the places that one mask selects. A wrong number of values is an error; on a GPU it comes later."""
    place = key.index(TENSOR)
    part = out[decode_view_key((*key[:place], *[ALL] * mask.ndim, *key[place + 1 :]))]
    at = part.ndim - mask.ndim - len(key[place + 1 :]) if Ellipsis in key[:place] else place
    if np.ndim(value):
        ndim = part.ndim - mask.ndim + 1
        shape, span = ((1,) * ndim + value.shape)[-ndim:], (1,) * mask.ndim
        if shape[at] != 1:
            places = xp.cumsum(mask.ravel())  # counted from 1
            require(xp, (places[-1],), partial(_value_count_error, shape[at]))
            if not shape[at]:
                return
            value, span = xp.take(value.reshape(shape), places - 1, axis=at), mask.shape
        value = value.reshape(shape[:at] + span + shape[at + 1 :])
    xp.copyto(part, value, where=mask.reshape(mask.shape + (1,) * (part.ndim - at - mask.ndim)), casting="unsafe")


def _value_count_error(count: int, selected: int) -> Exception | None:
    if selected == count:
        return None
    return ValueError(
        f"NumPy boolean array indexing assignment cannot assign {count} input values to the {selected} output values"
        " where the mask is true"
    )


def _all_within(indices: Any, length: int) -> bool:
    array = np.asarray(indices)
    return bool(array.min() >= -length) and bool(array.max() < length)


# -- rules -------------------------------------------------------------------------------------------------------------


def getitem_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A basic index: a view."""
    key = decode_view_key(options["key"])
    return viewed(operands[0], lambda array: array[key])


def getitem_advanced_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Integer tensors and masks among the parts of the key: a copy."""
    array = as_meta(operands[0])
    found = select(lengths(array), options["key"], operands[1:])
    contiguous = found.ordered and all_contiguous(operands)
    bound = found.bound if None in found.shape else None
    return Inferred(meta(found.shape, array.dtype, contiguous, bound), found.workspace, on_card=found.on_card)


def setitem_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A new version of the first operand, with the second assigned at the key."""
    array, value, key, path = as_meta(operands[0]), operands[1], options["key"], options.get("path")
    part = array
    for step, given in path or ():
        part = step.rule(step, (part,), dict(given)).meta
    if (update := options.get("op")) is not None:
        computed: Inferred = update.rule(update, (part, value), {})
        check_in_place(part, computed.meta)
        return computed._replace(meta=meta(array.shape, array.dtype))
    if len(operands) == 2:
        found = Selection(getitem_rule(op, (part,), options).meta.shape, (), True, 0, 0)
    else:
        found = select(lengths(part), key, operands[2:])
    check_value(lengths(value), found.shape)
    if not isinstance(value, (Meta, np.generic)):
        np.empty(1, part.dtype)[...] = sample(value)
    bounds, copied = int_bounds((value,), (part.dtype,)), 0
    if lengths(value) and not (len(operands) == 3 and all_contiguous(operands[2:])):
        copied = copies(operands[1:])  # in C order
    result = meta(array.shape, array.dtype, array.contiguous or path is not None)
    return Inferred(result, found.workspace + copied, int_bounds=bounds, on_card=found.on_card + copied)


def check_in_place(part: Meta, computed: Meta) -> None:
    """Raise if an update in place would have to change the shape or the dtype."""
    if (part.shape, part.dtype) != (computed.shape, computed.dtype):
        was, found = [f"{form.dtype}{form.shape}" for form in (part, computed)]
        raise TypeError(f"in place, {was} cannot become {found}: write x = ...")


def last_written_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A bool for each place that the tensors select; along slices all are alike. Workspace: numbers of all writes."""
    shape, key = without_slices(options["shape"], options["key"], operands)
    found = select(shape, key, operands)
    result = meta(found.shape, np.dtype(bool), True, found.bound if None in found.shape else None)
    numbers = (prod(shape) + 2 * prod(found.bound)) * 8
    return Inferred(result, found.workspace + numbers, on_card=found.on_card + numbers + 8 * prod(found.bound))


def argwhere_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The indices of nonzero elements, one row each: at most as many as there are elements."""
    array = as_meta(operands[0])
    if not array.shape:
        raise ValueError("nonzero: zero-dimensional arrays have no indices; use `x.reshape((1,))` first")
    bound = (prod(array.bound), len(array.bound))
    result = meta((None, bound[1]), INTP, True, bound)
    return Inferred(result, result.nbytes, on_card=result.nbytes + cast_bytes(array, np.dtype(bool)))


def take_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Whole slices along an axis. NumPy makes the result in C order, from a C-contiguous copy if necessary."""
    array, indices = as_meta(operands[0]), as_meta(operands[1])
    shape, axis = axis_of(array.bound, options.get("axis"))
    if not np.can_cast(indices.dtype, INTP, "same_kind"):
        raise TypeError(f"{op.name}: the indices must be integers, not {indices.dtype}")
    if not shape[axis] and 0 not in (*shape[:axis], *indices.bound):
        raise IndexError(f"{op.name}: nothing can be taken from an empty axis")
    result = meta((*shape[:axis], *indices.bound, *shape[axis + 1 :]), array.dtype)
    return Inferred(result, copies((array,)) + cast_bytes(indices, INTP))


def embedding_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Rows of the first operand, (count, width)."""
    if len(lengths(operands[0])) != 2:
        raise ValueError(f"embedding: the weight has shape {lengths(operands[0])} but must be (count, width)")
    return take_rule(op, operands, {"axis": 0})


def take_along_axis_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
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


def searchsorted_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
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
    """Raise if `value` cannot be assigned: it must broadcast to the target, after leading ones are dropped."""
    extra = max(len(value) - len(target), 0)
    fits = all(length == 1 for length in value[:extra])
    aligned = zip(reversed(value), reversed(target), strict=False)
    if not fits or any(length not in (1, wanted) for length, wanted in aligned if wanted is not None):
        raise ValueError(f"could not broadcast input array from shape {value} into shape {target}")


OPS = (
    operation(getitem, getitem_rule, "A basic index: a view.", view=True),
    operation(getitem_advanced, getitem_advanced_rule, "An index with tensors: a copy.", Cost.FUNCTION, checks=True),
    with_out(
        setitem, setitem_rule, "A new version with a part assigned.", Cost.FUNCTION,
        inplace=True, assigns=True, checks=True,
    ),
    operation(last_written, last_written_rule, "Which writes are the last to their places.", checks=True),
    with_out(take, take_rule, "Slices along an axis, by index.", Cost.SCALAR, checks=True),
    operation(take_along_axis, take_along_axis_rule, "An element for each index.", Cost.LONG_FUNCTION, checks=True),
    operation(argwhere, argwhere_rule, "The indices of nonzero elements, a row for each."),
    operation(searchsorted, searchsorted_rule, "Where to insert into a sorted tensor.", checks=True),
    with_out(embedding, embedding_rule, "Rows of a weight, by their numbers.", Cost.SCALAR, checks=True),
)  # fmt: skip
