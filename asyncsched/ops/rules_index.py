"""Rules of indexing and searching."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .keys import TENSOR, Key, Slice, decode_view_key
from .meta import Meta, Shape, meta
from .row import Inferred, Operand, Options, Row
from .rules_common import all_contiguous, as_meta, cast_bytes, lengths, sample, viewed

_INTP = np.dtype(np.intp)


class Selection(NamedTuple):
    """What a key with index tensors selects."""

    shape: Shape
    bound: tuple[int, ...]
    ordered: bool  # NumPy lays the result out in C order, given C-contiguous operands
    workspace: int


def getitem(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A basic index: a view."""
    key = decode_view_key(options["key"])
    return viewed(operands[0], lambda array: array[key])


def getitem_advanced(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Integer tensors and masks among the parts of the key: a copy."""
    array = as_meta(operands[0])
    found = select(lengths(array), options["key"], operands[1:])
    contiguous = found.ordered and all_contiguous(operands)
    bound = found.bound if None in found.shape else None
    return Inferred(meta(found.shape, array.dtype, contiguous, bound), found.workspace)


def setitem(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A new version of the first operand, with the second assigned where the key says."""
    array, value, key = as_meta(operands[0]), operands[1], options["key"]
    if len(operands) == 2:
        found = Selection(getitem(row, operands, options).meta.shape, (), True, 0)
    else:
        found = select(lengths(array), key, operands[2:])
    _check_value(lengths(value), found.shape)
    if not isinstance(value, (Meta, np.generic)):
        np.empty(1, array.dtype)[...] = sample(value)
    bounds = None
    if type(value) is int and array.dtype.kind in "iu":
        bounds = int(np.iinfo(array.dtype).min), int(np.iinfo(array.dtype).max)
    return Inferred(meta(array.shape, array.dtype, array.contiguous), found.workspace, int_bounds=bounds)


def argwhere(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The indices of nonzero elements, one row each: at most as many as there are elements."""
    array = as_meta(operands[0])
    if not array.shape:
        raise ValueError("nonzero: zero-dimensional arrays have no indices; use `x.reshape((1,))` first")
    bound = (prod(array.bound), len(array.bound))
    result = meta((None, bound[1]), _INTP, True, bound)
    return Inferred(result, result.nbytes)


def take(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Whole slices along an axis; NumPy makes the result in C order, from a C-contiguous copy if need be."""
    array, indices, axis = as_meta(operands[0]), as_meta(operands[1]), options.get("axis")
    if not np.can_cast(indices.dtype, _INTP, "safe"):
        raise TypeError(f"take: indices of dtype {indices.dtype} cannot be cast safely to {_INTP}")
    shape = (prod(array.bound),) if axis is None else array.bound
    axis = normalize_axis_index(0 if axis is None else axis, len(shape))
    if not shape[axis] and 0 not in indices.bound:
        raise IndexError("take: nothing can be taken from an empty axis")
    result = meta((*shape[:axis], *indices.bound, *shape[axis + 1 :]), array.dtype)
    return Inferred(result, (0 if array.contiguous else array.nbytes) + cast_bytes(indices, _INTP))


def take_along_axis(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """One element for each index; the other dimensions broadcast."""
    array, indices = as_meta(operands[0]), as_meta(operands[1])
    if indices.dtype.kind not in "iu":
        raise IndexError("take_along_axis: the indices must be integers")
    if len(array.bound) != len(indices.bound):
        raise ValueError("take_along_axis: the indices and the array must have the same number of dimensions")
    axis = normalize_axis_index(options.get("axis", -1), len(array.bound))
    other = (*array.bound[:axis], 1, *array.bound[axis + 1 :])
    try:
        shape = np.broadcast_shapes(other, indices.bound)
    except ValueError:
        shapes = f"{array.bound} and {indices.bound}"
        raise IndexError(f"take_along_axis: shapes {shapes} could not be broadcast together") from None
    workspace = cast_bytes(indices, _INTP) + sum(array.bound) * 8
    return Inferred(meta(shape, array.dtype, all_contiguous(operands)), workspace)


def searchsorted(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
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
    return Inferred(meta(values.bound, _INTP), workspace)


def select(shape: tuple[int, ...], key: Key, indices: tuple[Operand, ...]) -> Selection:
    """The shape that a key with index tensors selects, by NumPy's rules.

    All tensors and integers of the key broadcast to one block of dimensions. It stands where they stood if they stood
    side by side, else in front.
    """
    tensors = iter([as_meta(operand) for operand in indices])
    parts = _expanded(key, shape, indices)
    basic: list[int] = []
    places: list[int] = []  # for each tensor or integer, which part it is
    blocks: list[Shape] = []
    bounds: list[tuple[int, ...]] = []
    block_at = axis = workspace = 0
    for position, part in enumerate(parts):
        if part is None:
            basic.append(1)
        elif isinstance(part, Slice):
            basic.append(len(range(*slice(*part).indices(shape[axis]))))
            axis += 1
        elif part is not Ellipsis:
            block_at = block_at if places else len(basic)
            places.append(position)
            if isinstance(part, int):
                _check_integer(part, shape[axis], axis)
                axis += 1
                continue
            tensor = next(tensors)
            blocks.append(_index_shape(tensor, shape, axis))
            bounds.append(_index_bound(tensor))
            axis += len(tensor.shape) if tensor.dtype == bool else 1
            workspace += _index_bytes(tensor)
    if places[-1] - places[0] >= len(places):
        block_at = 0
    block, bound = _broadcast_block(blocks, bounds)
    # NumPy makes the block first and then moves it to its place; steps may reorder what is around it.
    ordered = block_at == 0 and all(part in (Slice(None, None, None), TENSOR) for part in parts)
    before, after = tuple(basic[:block_at]), tuple(basic[block_at:])
    return Selection((*before, *block, *after), (*before, *bound, *after), ordered, workspace)


def _expanded(key: Key, shape: tuple[int, ...], indices: tuple[Operand, ...]) -> list[Any]:
    """The parts of the key with full slices for an ellipsis and for what the key leaves out."""
    masks = [len(array.shape) for array in map(as_meta, indices) if array.dtype == bool]
    consumed = sum(masks) - len(masks) + sum(part is not None and part is not Ellipsis for part in key)
    if consumed > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, but {consumed} were indexed")
    if sum(part is Ellipsis for part in key) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing: list[Any] = [Slice(None, None, None)] * (len(shape) - consumed)
    if Ellipsis not in key:
        return [*key, *missing]
    at = key.index(Ellipsis)
    # An ellipsis of no dimension stays in the way of a block side by side.
    return [*key[:at], *(missing or [Ellipsis]), *key[at + 1 :]]


def _check_integer(value: int, length: int, axis: int) -> None:
    if not -length <= value < length:
        raise IndexError(f"index {value} is out of bounds for axis {axis} with size {length}")


def _index_shape(tensor: Meta, shape: tuple[int, ...], axis: int) -> Shape:
    if tensor.dtype == bool:
        if tensor.bound != shape[axis : axis + len(tensor.bound)]:
            raise IndexError(f"boolean index {tensor.bound} did not match the array's {shape} from axis {axis}")
        return (None,)
    if tensor.dtype.kind not in "iu":
        raise IndexError(f"index tensors must be of integer or boolean dtype, not {tensor.dtype}")
    return tensor.bound


def _index_bound(tensor: Meta) -> tuple[int, ...]:
    return (prod(tensor.bound),) if tensor.dtype == bool else tensor.bound


def _index_bytes(tensor: Meta) -> int:
    """What NumPy makes of an index tensor: integers of its own, one for each dimension of a mask."""
    if tensor.dtype == bool:
        return prod(tensor.bound) * 8 * max(len(tensor.bound), 1)
    return cast_bytes(tensor, _INTP)


def _broadcast_block(blocks: list[Shape], bounds: list[tuple[int, ...]]) -> tuple[Shape, tuple[int, ...]]:
    """What the index tensors broadcast to: a mask's unknown length gives way to a known one it must equal."""
    known = [bound for shape, bound in zip(blocks, bounds, strict=True) if None not in shape]
    try:
        block: tuple[int, ...] = np.broadcast_shapes(*known) if known else ()
    except ValueError:
        raise IndexError(f"shape mismatch: index tensors could not be broadcast together with shapes {known}") from None
    if len(known) == len(blocks) or (block and block[-1] != 1):
        return block, block
    longest = min(bound[0] for shape, bound in zip(blocks, bounds, strict=True) if None in shape)
    return (*block[:-1], None), (*block[:-1], longest)


def _check_value(value: tuple[int, ...], target: Shape) -> None:
    """Whether `value` can be assigned: it broadcasts to the target, and leading ones are dropped."""
    extra = max(len(value) - len(target), 0)
    fits = all(length == 1 for length in value[:extra])
    aligned = zip(reversed(value), reversed(target), strict=False)
    if not fits or any(length not in (1, wanted) for length, wanted in aligned if wanted is not None):
        raise ValueError(f"could not broadcast input array from shape {value} into shape {target}")
