"""Kernels of sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..declare import Op
from ..packed import pack_found
from ..rules import sets as rules


def unique_values(xp: Any, x: Any) -> Any:
    """Each element once, NaN as often as it is there."""
    return np.unique_values(x) if xp is np else xp.unique(x, equal_nan=False)


def unique_packed(xp: Any, x: Any, *, index: bool, inverse: bool, counts: bool) -> Any:
    """Each element once, with which one each element is, where each first is, and how often each is there: packed."""
    kinds = {"return_index": index, "return_inverse": inverse, "return_counts": counts}
    values, *others = xp.unique(x, equal_nan=False, **kinds)
    if inverse:
        others.insert(0, others.pop(index))
    wide = values.dtype.itemsize > others[0].dtype.itemsize
    return pack_found(xp, [values, *others] if wide else [*others, values])


def isin(xp: Any, x: Any, y: Any, *, invert: bool) -> Any:
    """Whether each element of `x` is among those of `y`."""
    return xp.isin(xp.asarray(x), xp.asarray(y), invert=invert)


_PACKED = "The same with where they are, which one each element is, and how often each is there, packed."
OPS = (
    Op("unique_values", unique_values, rules.unique_values, doc="Each element once."),
    Op("unique_packed", unique_packed, rules.unique_packed, doc=_PACKED),
    Op("isin", isin, rules.isin, doc="Whether each element is among others."),
)
