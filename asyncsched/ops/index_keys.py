"""Index keys in a hashable form, for plans to be cached by: slices are not hashable before Python 3.12."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from types import EllipsisType
from typing import Any, Final, Literal, NamedTuple

import numpy as np


class Slice(NamedTuple):
    """A slice."""

    start: int | None
    stop: int | None
    step: int | None


# Stands in an encoded key for one index tensor; the tensors follow as operands, in order.
TENSOR: Final = "tensor"
Part = int | Slice | EllipsisType | None | Literal["tensor"]
Key = tuple[Part, ...]


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
