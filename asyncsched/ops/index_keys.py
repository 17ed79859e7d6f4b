"""Index keys in a hashable form, by which plans are cached; and what they select, by NumPy's rules.

(Slices are not hashable before Python 3.12.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from operator import index
from types import EllipsisType
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from .meta import Meta, Shape
from .op import Op, Operand, resolve
from .rules import INTP, cast_bytes


class Slice(NamedTuple):
    """A slice, in hashable form."""

    start: int | None
    stop: int | None
    step: int | None


ALL: Final = Slice(None, None, None)
# Stands for an index tensor in an encoded key. The tensors follow as operands, in order.
TENSOR: Final = "tensor"
Part = int | Slice | EllipsisType | None | Literal["tensor"]
Key = tuple[Part, ...]
# Operations that make views, each of the previous one's result
Path = tuple[tuple[Op, tuple[tuple[str, Any], ...]], ...]


def encode_key(key: object, tensor_type: type) -> tuple[Key, tuple[Any, ...]]:
    """The key in hashable form, with the index tensors found in it.

    Without tensors the operation is `getitem` (a view), with tensors it is `getitem_advanced`; `setitem` takes both.
    """
    parts = key if isinstance(key, tuple) else (key,)
    tensors = tuple([part for part in parts if isinstance(part, tensor_type)])
    return tuple([TENSOR if isinstance(part, tensor_type) else _encode(part) for part in parts]), tensors


def decode_key(key: Key, arrays: Iterable[Any] = ()) -> tuple[Any, ...]:
    """The key for an array of the namespace; always a tuple."""
    tensors = iter(arrays)
    return tuple([_decode(part, tensors) for part in key])


@lru_cache(maxsize=512)  # a guess; captured steps and loops ask for the same views again and again
def decode_view_key(key: Key) -> tuple[Any, ...]:
    """The key for a view. It has an ellipsis, so that a single element is a view and no scalar."""
    decoded = decode_key(key)
    return decoded if Ellipsis in key else (*decoded, Ellipsis)


def through(xp: Any, x: Any, path: Path) -> Any:
    """The view of an array at the end of a path."""
    for op, options in path:
        x = resolve(op, xp)(x, **dict(options))
    return x


def _encode(part: object) -> Part:
    if part is None or part is Ellipsis:
        return part
    if isinstance(part, slice):
        return Slice(_optional_index(part.start), _optional_index(part.stop), _optional_index(part.step))
    if isinstance(part, np.ndarray):
        raise TypeError("an ndarray cannot be an index here: `await s.put(a)` makes a tensor from it")
    if isinstance(part, (bool, np.bool)):
        raise IndexError("a bool is no index here: use `None` for a new axis, or a mask tensor")
    if not hasattr(part, "__index__"):
        raise IndexError(
            f"{type(part).__name__} is no index: only integers, slices, `...`, `None`"
            " and integer or boolean tensors are (`await s.put(...)` makes a tensor from a list)"
        )
    return index(part)


def _optional_index(value: Any) -> int | None:
    return None if value is None else index(value)


def _decode(part: Part, tensors: Any) -> Any:
    if isinstance(part, Slice):
        return slice(*part)
    return next(tensors) if isinstance(part, str) else part


def axes_of(part: Any, index: Any) -> int:
    """The number of axes that a part of a key takes, with its tensor if it is one; an ellipsis takes the rest."""
    if index is not None and index.dtype == bool:
        return len(index.shape)
    return int(part is not None and part is not Ellipsis)


# -- keys with index tensors -------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """The result's form for a key with index tensors."""

    shape: Shape
    bound: tuple[int, ...]
    ordered: bool  # whether NumPy's result is in C order, given C-contiguous operands
    workspace: int  # bytes of NumPy's own indices
    on_card: int  # of CuPy's


def select(shape: tuple[int, ...], key: Key, indices: tuple[Operand, ...]) -> Selection:
    """The selection of a key with index tensors, by NumPy's rules.

    All tensors and integers of the key broadcast to one block of dimensions. The block takes their place if they are
    neighbours, else it comes first.
    """
    parts = list(walk(key, shape, indices))
    basic: list[int] = []
    places: list[int] = []  # for each tensor or integer, the position of its part
    blocks: list[Shape] = []
    bounds: list[tuple[int, ...]] = []
    block_at = workspace = on_card = 0
    for position, (part, tensor, axis) in enumerate(parts):
        if part is None:
            basic.append(1)
        elif isinstance(part, Slice):
            basic.append(len(range(*slice(*part).indices(shape[axis]))))
        elif part is not Ellipsis:
            block_at = block_at if places else len(basic)
            places.append(position)
            if tensor is not None:
                block_shape, bound, nbytes = _picked(tensor, shape, axis)
                blocks.append(block_shape)
                bounds.append(bound)
                on_card += nbytes
                # NumPy casts indices in pieces, and makes none for one mask of all elements.
                whole = key == (TENSOR,) and len(tensor.bound) == len(shape)
                workspace += nbytes if tensor.dtype == bool and not whole else 0
            elif not -shape[axis] <= part < shape[axis]:
                raise IndexError(f"index {part} is out of bounds for axis {axis} with size {shape[axis]}")
    if places[-1] - places[0] >= len(places):
        block_at = 0
    block, bound = _broadcast_block(blocks, bounds)
    # NumPy makes the block first, then moves it to its place; slices with steps may reorder the dimensions around it.
    ordered = block_at == 0 and all(part in (ALL, TENSOR) for part, _, _ in parts)
    before, after = tuple(basic[:block_at]), tuple(basic[block_at:])
    return Selection((*before, *block, *after), (*before, *bound, *after), ordered, workspace, on_card)


def walk(key: Key, shape: tuple[int, ...], indices: Sequence[Any]) -> Iterator[tuple[Any, Any, int]]:
    """The parts of the expanded key, each with its index (a meta or an array; None if it is no tensor) and its axis."""
    tensors, axis = iter(indices), 0
    for part in _expanded(key, shape, indices):
        tensor = next(tensors) if part == TENSOR else None
        yield part, tensor, axis
        axis += axes_of(part, tensor)


def _expanded(key: Key, shape: tuple[int, ...], indices: Sequence[Any]) -> list[Any]:
    """The parts of the key, with full slices for an ellipsis and for missing parts."""
    masks = [len(array.shape) for array in indices if array.dtype == bool]
    consumed = sum(masks) - len(masks) + sum(part is not None and part is not Ellipsis for part in key)
    if consumed > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, but {consumed} were indexed")
    if sum(part is Ellipsis for part in key) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing: list[Any] = [ALL] * (len(shape) - consumed)
    if Ellipsis not in key:
        return [*key, *missing]
    at = key.index(Ellipsis)
    # An ellipsis of no dimension still separates tensors that would be neighbours.
    return [*key[:at], *(missing or [Ellipsis]), *key[at + 1 :]]


def without_slices(shape: tuple[int, ...], key: Key, indices: tuple[Operand, ...]) -> tuple[tuple[int, ...], Key]:
    """A shape and a key that select the same block of tensors and integers, with each sliced axis of length one."""
    lengths: list[int] = []
    parts: list[Any] = []
    for part, tensor, axis in walk(key, shape, indices):
        sliced = isinstance(part, Slice)
        lengths += [1] if sliced else shape[axis : axis + axes_of(part, tensor)]
        parts.append(ALL if sliced else part)
    return tuple(lengths), tuple(parts)


def _picked(tensor: Meta, shape: tuple[int, ...], axis: int) -> tuple[Shape, tuple[int, ...], int]:
    """The shape that an index tensor picks, the largest possible one, and the bytes of NumPy's own indices.

    For a mask, NumPy makes integers for each of its dimensions.
    """
    if tensor.dtype == bool:
        if tensor.bound != shape[axis : axis + len(tensor.bound)]:
            raise IndexError(f"boolean index {tensor.bound} did not match the array's {shape} from axis {axis}")
        elements = prod(tensor.bound)
        return (None,), (elements,), elements * INTP.itemsize * max(len(tensor.bound), 1)
    if tensor.dtype.kind not in "iu":
        raise IndexError(f"index tensors must be of integer or boolean dtype, not {tensor.dtype}")
    return tensor.bound, tensor.bound, cast_bytes(tensor, INTP)


def _broadcast_block(blocks: list[Shape], bounds: list[tuple[int, ...]]) -> tuple[Shape, tuple[int, ...]]:
    """The shape that the index tensors broadcast to. A mask's unknown length gives way to a known one."""
    known = [bound for shape, bound in zip(blocks, bounds, strict=True) if None not in shape]
    try:
        block: tuple[int, ...] = np.broadcast_shapes(*known) if known else ()
    except ValueError:
        raise IndexError(f"shape mismatch: index tensors could not be broadcast together with shapes {known}") from None
    if len(known) == len(blocks) or (block and block[-1] != 1):
        return block, block
    # Of several masks, one may select a single element, which broadcasts with those of the others.
    longest = max(bound[0] for shape, bound in zip(blocks, bounds, strict=True) if None in shape)
    return (*block[:-1], None), (*block[:-1], longest)
