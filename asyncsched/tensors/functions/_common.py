"""What the functions share: the types of their arguments, and how those become options of a row."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ...ops.table import TABLE
from ..tensor import Scalar, Tensor, apply

Operand: TypeAlias = Tensor | Scalar
Axis: TypeAlias = int | Sequence[int] | None


def op(name: str, *operands: Any, **options: Any) -> Tensor:
    """Apply a row of the table."""
    return apply(TABLE[name], operands, options)


def axes(axis: Axis) -> int | tuple[int, ...] | None:
    """An axis or several, hashable."""
    if axis is None:
        return None
    return tuple([index(one) for one in axis]) if isinstance(axis, Sequence) else index(axis)


def lengths(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape, also if given as one length."""
    return tuple([index(length) for length in shape]) if isinstance(shape, Sequence) else (index(shape),)


def dtype_or_none(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    """The dtype meant, or None for the default."""
    return None if dtype is None else np.dtype(dtype)


def known_shape(x: Tensor, what: str) -> tuple[int, ...]:
    """The tensor's shape, for functions that cannot go on without it."""
    shape = tuple([length for length in x.shape if length is not None])
    if len(shape) < len(x.shape):
        raise ValueError(f"{what}: the shape {x.shape} is not known until the tensor is done; `await` it first")
    return shape
