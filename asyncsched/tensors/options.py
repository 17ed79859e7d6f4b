"""Arguments of functions and methods in the form in which operations have them: hashable."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

_KINDS = "biufc"  # bool, integers, floats and complex: what the operations know


def axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """An axis or several."""
    if axis is None or type(axis) is int:  # without this an abstract class is asked
        return axis
    return tuple([index(one) for one in axis]) if isinstance(axis, Sequence) else index(axis)


def dtype_of(dtype: DTypeLike | None) -> np.dtype[Any]:
    """The dtype meant, in this machine's order of bytes, as `put` has it; of None float64, as NumPy's.

    Raises:
        TypeError: for what is none, or is one that a tensor cannot have.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{dtype!r} is no dtype: use one of NumPy's, as np.float32, int or 'complex64'") from error
    if found.kind not in _KINDS:
        raise TypeError(f"dtype {found} is not supported: a tensor has bool, integers, floats or complex numbers")
    return found if found.isnative else found.newbyteorder("=")


def dtype_or_none(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    """The dtype meant, or None for the default."""
    return None if dtype is None else dtype_of(dtype)
