"""Shared parts of the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ...ops.index_keys import encode_key
from ...tensors.functions import permute_dims
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor

Partial = Callable[..., Tensor]
Rules = dict[str, tuple[Partial | None, ...]]


def same(g: Tensor) -> Tensor:
    """The unchanged gradient, for operations that pass it on; `fit` sums and casts it."""
    return g


def back(g: Tensor, call: Any) -> Tensor:
    """The gradient in the operand's shape."""
    return in_shape(g, call.metas[call.place].shape)


def in_shape(g: Tensor, shape: tuple[int | None, ...]) -> Tensor:
    """`g` in a shape that has as many elements. A length that is not known yet, None, is the one that is missing."""
    now = g.shape  # once: it may be known a moment later
    if len(now) == len(shape) and all(None in (m, n) or m == n for m, n in zip(now, shape, strict=True)):
        return g
    return g.reshape([-1 if length is None else length for length in shape])


def wide(x: Tensor) -> Tensor:
    """A tensor in half precision as single precision, since sums would overflow; any other as it is."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def summed(g: Tensor, axes: Sequence[int]) -> Tensor:
    """The sum along axes, accurate for any number of rows. (The sum of users has NumPy's bits.)"""
    return op("accurate_sum", g, axis=tuple(axes))


def narrow(found: Tensor, x: Tensor) -> Tensor:
    """A result computed by way of `wide`, in the dtype of `x`."""
    return found if found.dtype == x.dtype else found.astype(x.dtype)


def reordered(x: Tensor, order: Sequence[int]) -> Tensor:
    """`x` with axis `i` moved to `order[i]`: the inverse of a permutation."""
    return permute_dims(x, [order.index(axis) for axis in range(x.ndim)])


def along(axis: int, ndim: int, part: Any) -> tuple[Any, ...]:
    """The index of a part along one axis."""
    return (slice(None),) * normalize_axis_index(axis, ndim) + (part,)


def scatter(g: Tensor, key: Any, shape: tuple[int | None, ...]) -> Tensor:
    """Zeros of a shape, with `g` added at a key: the transpose of indexing."""
    encoded, indices = encode_key(key, Tensor)
    return op("scatter", g, *indices, shape=shape, key=encoded)
