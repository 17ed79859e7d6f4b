"""Index keys in a hashable form, for plans to be cached by, and what they select, by NumPy's rules.

Slices are not hashable before Python 3.12.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from types import EllipsisType
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from .meta import Meta, Shape
from .op import Op, Operand, resolve
from .rules import INTP, as_meta, cast_bytes


class Slice(NamedTuple):
    """A slice."""

    start: int | None
    stop: int | None
    step: int | None


# Stands in an encoded key for one index tensor; the tensors follow as operands, in order.
TENSOR: Final = "tensor"
Part = int | Slice | EllipsisType | None | Literal["tensor"]
Key = tuple[Part, ...]
Path = tuple[tuple[Op, tuple[tuple[str, Any], ...]], ...]  # operations that make views, one of the other


def encode_key(key: object, tensor_type: type) -> tuple[Key, tuple[Any, ...]]:
    """The key in hashable form, with the index tensors found in it.

    Without tensors the operation is `getitem` (a view), with some it is `getitem_advanced`; `setitem` takes both.
    """
    parts = key if isinstance(key, tuple) else (key,)
    tensors = tuple([part for part in parts if isinstance(part, tensor_type)])
    return tuple([TENSOR if isinstance(part, tensor_type) else _encode(part) for part in parts]), tensors


def decode_key(key: Key, arrays: Iterable[Any] = ()) -> tuple[Any, ...]:
    """The key for an array of the namespace; always a tuple."""
    tensors = iter(arrays)
    return tuple([_decode(part, tensors) for part in key])


def decode_view_key(key: Key) -> tuple[Any, ...]:
    """The key for a view, which an ellipsis makes of what would else be a scalar."""
    decoded = decode_key(key)
    return decoded if Ellipsis in key else (*decoded, Ellipsis)


def through(xp: Any, x: Any, path: Path) -> Any:
    """The view of an array that a path leads to."""
    for op, options in path:
        x = resolve(op, xp)(x, **dict(options))
    return x


def _encode(part: object) -> Part:
    if part is None or part is Ellipsis:
        return part
    if isinstance(part, slice):
        return Slice(_optional_index(part.start), _optional_index(part.stop), _optional_index(part.step))
    if isinstance(part, np.ndarray):
        raise TypeError("an ndarray cannot be an index here: `await s.put(a)` makes it a tensor")
    if isinstance(part, (bool, np.bool)):
        raise IndexError("a bool is no index here: use `None` for a new axis, or a mask tensor")
    if not hasattr(part, "__index__"):
        raise IndexError(
            f"{type(part).__name__} is no index: only integers, slices, `...`, `None`"
            " and integer or boolean tensors are (`await s.put(...)` makes a tensor of a list)"
        )
    return index(part)


def _optional_index(value: Any) -> int | None:
    return None if value is None else index(value)


def _decode(part: Part, tensors: Any) -> Any:
    if isinstance(part, Slice):
        return slice(*part)
    return next(tensors) if isinstance(part, str) else part


def axes_of(part: Any, index: Any) -> int:
    """How many axes a part of a key takes, with its tensor if it is one; an ellipsis takes what is left."""
    if index is not None and index.dtype == bool:
        return len(index.shape)
    return int(part is not None and part is not Ellipsis)


# -- what a key with index tensors selects -----------------------------------------------------------------------------


class Selection(NamedTuple):
    """What a key with index tensors selects."""

    shape: Shape
    bound: tuple[int, ...]
    ordered: bool  # NumPy lays the result out in C order, given C-contiguous operands
    workspace: int


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
                if not -shape[axis] <= part < shape[axis]:
                    raise IndexError(f"index {part} is out of bounds for axis {axis} with size {shape[axis]}")
                axis += 1
                continue
            tensor = next(tensors)
            block_shape, bound, nbytes = _picked(tensor, shape, axis)
            blocks.append(block_shape)
            bounds.append(bound)
            axis += axes_of(part, tensor)
            workspace += nbytes
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


def without_slices(shape: tuple[int, ...], key: Key, indices: tuple[Operand, ...]) -> tuple[tuple[int, ...], Key]:
    """A shape and a key that select the same block of tensors and integers, where each slice has one place alone."""
    tensors = iter([as_meta(operand) for operand in indices])
    lengths: list[int] = []
    parts: list[Any] = []
    for part in _expanded(key, shape, indices):
        tensor = next(tensors) if part == TENSOR else None
        sliced = isinstance(part, Slice)
        lengths += [1] if sliced else shape[len(lengths) : len(lengths) + axes_of(part, tensor)]
        parts.append(Slice(None, None, None) if sliced else part)
    return tuple(lengths), tuple(parts)


def _picked(tensor: Meta, shape: tuple[int, ...], axis: int) -> tuple[Shape, tuple[int, ...], int]:
    """The shape of what an index tensor picks, the largest there may be, and bytes of what NumPy makes of it: integers
    of its own, for each dimension of a mask."""
    if tensor.dtype == bool:
        if tensor.bound != shape[axis : axis + len(tensor.bound)]:
            raise IndexError(f"boolean index {tensor.bound} did not match the array's {shape} from axis {axis}")
        elements = prod(tensor.bound)
        return (None,), (elements,), elements * INTP.itemsize * max(len(tensor.bound), 1)
    if tensor.dtype.kind not in "iu":
        raise IndexError(f"index tensors must be of integer or boolean dtype, not {tensor.dtype}")
    return tensor.bound, tensor.bound, cast_bytes(tensor, INTP)


def _broadcast_block(blocks: list[Shape], bounds: list[tuple[int, ...]]) -> tuple[Shape, tuple[int, ...]]:
    """What the index tensors broadcast to: a mask's unknown length gives way to a known one it must equal."""
    known = [bound for shape, bound in zip(blocks, bounds, strict=True) if None not in shape]
    try:
        block: tuple[int, ...] = np.broadcast_shapes(*known) if known else ()
    except ValueError:
        raise IndexError(f"shape mismatch: index tensors could not be broadcast together with shapes {known}") from None
    if len(known) == len(blocks) or (block and block[-1] != 1):
        return block, block
    # Of several masks one may select a single place, which broadcasts with the others'.
    longest = max(bound[0] for shape, bound in zip(blocks, bounds, strict=True) if None in shape)
    return (*block[:-1], None), (*block[:-1], longest)
