"""The facts about an array that are known before it exists: shape, dtype and bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

Shape = tuple[int | None, ...]
# The codes of the dtypes that operations support. Not their kinds: a dtype of another package may claim one of those.
CODES = "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]

# Interned, so that plans are found by identity. A full table is emptied: a lost entry costs one more inference.
_INTERN_LIMIT = 16_384
_interned: dict[tuple[Shape, np.dtype, bool, tuple[int, ...] | None], Meta] = {}


@dataclass(slots=True, eq=False, repr=False)
class Meta:
    """Shape, dtype and layout of an array to come.

    `shape` has `None` for a length that depends on data, until the program has awaited the array: not only until it is
    done, or timing would decide what the next line may do. `bound` is the largest possible shape. If all lengths are
    known, it is the shape itself. `nbytes` is computed from `bound`.
    `contiguous=True` promises a C-contiguous array; False means "unknown".
    """

    shape: Shape
    dtype: np.dtype
    contiguous: bool
    bound: tuple[int, ...]
    nbytes: int = field(init=False)
    known: bool = field(init=False)  # whether every length is known

    def __post_init__(self) -> None:
        self.nbytes = prod(self.bound) * self.dtype.itemsize
        self.known = None not in self.shape

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.dtype}{', contiguous' if self.contiguous else ''})"


def meta(shape: Shape, dtype: np.dtype, contiguous: bool = True, bound: tuple[int, ...] | None = None) -> Meta:
    """The one `Meta` of these properties (equal arguments give the same object).

    Raises:
        TypeError: for a dtype of Python objects: buffers are recycled as bytes, without regard to references in them.
    """
    key = (shape, dtype, contiguous, bound)
    found = _interned.get(key)
    if found is None:
        if dtype.hasobject:
            raise TypeError(
                f"dtype {dtype} is not supported: a tensor has bool, integers, floats or complex numbers"
                " (a submitted function may return anything if shape= and dtype= are not given)"
            )
        if len(_interned) >= _INTERN_LIMIT:
            _interned.clear()
        found = _interned[key] = Meta(shape, dtype, contiguous, shape if bound is None else bound)  # type: ignore[arg-type]
    return found
