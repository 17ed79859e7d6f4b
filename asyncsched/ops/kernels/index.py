"""Kernels of indexing and searching."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..index_keys import Key, decode_key, decode_view_key
from .basic import into
from .checks import deferring, require


def take_along_axis(xp: Any, x: Any, indices: Any, *, axis: int = -1) -> Any:
    """An element for each index."""
    return xp.take_along_axis(x, indices, axis)


def argwhere(xp: Any, x: Any) -> Any:
    """The indices of nonzero elements, a row for each."""
    return xp.stack(xp.nonzero(x), axis=-1)


def take(xp: Any, x: Any, indices: Any, *, axis: int | None = None, out: Any = None) -> Any:
    """Slices along an axis. NumPy would buffer `out` to leave it whole on a bad index, so those are found first."""
    length = x.size if axis is None or x.ndim == 0 else x.shape[axis]
    if out is None or xp.size(indices) == 0 or not _within(xp, indices, length):
        return xp.take(x, indices, axis=axis, out=out)
    return xp.take(x, indices, axis=axis, out=out, mode="wrap")


def embedding(xp: Any, weight: Any, indices: Any, *, out: Any = None) -> Any:
    """Rows of a table. Other than for `take`, -1 is none of them.

    Where a GPU captures, and nobody could tell later, what is no row is NaN.
    """
    if xp is not np and not deferring(xp):
        numbers = xp.asarray(indices)[..., None]
        rows = xp.take(weight, indices, axis=0)
        return xp.where((numbers >= 0) & (numbers < len(weight)), rows, xp.nan).astype(weight.dtype)
    indices = xp.asarray(indices)
    if indices.size:
        require(xp, (indices.min(), indices.max()), partial(_are_rows, len(weight)))
    if out is None:
        return xp.take(weight, indices, axis=0)
    return np.take(weight, indices, axis=0, out=out, mode="wrap")  # else it would be buffered


def _are_rows(count: int, least: int, most: int) -> Exception | None:
    if least >= 0 and most < count:
        return None
    return IndexError(
        f"embedding: the indices reach from {least} to {most}, and there are {count} rows: use 0 to {count - 1}"
    )


def searchsorted(xp: Any, ordered: Any, values: Any, sorter: Any = None, *, side: str = "left") -> Any:
    """Where to insert."""
    return xp.searchsorted(ordered, values, side=side, sorter=sorter)


def getitem(xp: Any, x: Any, *, key: Key) -> Any:
    """A basic index: a view."""
    return x[decode_view_key(key)]


def getitem_advanced(xp: Any, x: Any, *indices: Any, key: Key) -> Any:
    """Index arrays among the parts of the key: a copy."""
    return x[decode_key(key, indices)]


def setitem(xp: Any, x: Any, value: Any, *indices: Any, key: Key, out: Any = None) -> Any:
    """A new version of `x`, or `x` itself as `out`, with `value` assigned."""
    if out is None:
        out = x.copy(order="K")
    elif out is not x:
        into(xp, out, x)
    out[decode_key(key, indices)] = value
    return out


def _within(xp: Any, indices: Any, length: int) -> bool:
    array = xp.asarray(indices)
    return bool(array.min() >= -length) and bool(array.max() < length)
