"""What is known of an array before it exists: its shape, dtype and byte cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

Shape = tuple[int | None, ...]

# Interned, so that plans can be looked up by identity. A full table is emptied: a lost entry costs one re-inference.
_INTERN_LIMIT = 16_384
_interned: dict[tuple[Shape, np.dtype, bool, tuple[int, ...] | None], Meta] = {}


@dataclass(slots=True, eq=False, repr=False)
class Meta:
    """Shape, dtype and layout of an array to come.

    `shape` has `None` where a length depends on data; `bound` is then the largest possible shape, else the shape
    itself. `nbytes` is computed from `bound`. `contiguous` is a promise that the array will be C-contiguous; False is
    "unknown".
    """

    shape: Shape
    dtype: np.dtype
    contiguous: bool
    bound: tuple[int, ...]
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = prod(self.bound) * self.dtype.itemsize

    @property
    def known(self) -> bool:
        """Whether every length is known."""
        return None not in self.shape

    def __repr__(self) -> str:
        return f"Meta({self.shape}, {self.dtype}{', contiguous' if self.contiguous else ''})"


def meta(shape: Shape, dtype: np.dtype, contiguous: bool = True, bound: tuple[int, ...] | None = None) -> Meta:
    """The one `Meta` of these properties (equal arguments give the identical object).

    Raises:
        TypeError: for a dtype of Python objects: buffers are recycled as bytes, with no regard to references in them.
    """
    key = (shape, dtype, contiguous, bound)
    found = _interned.get(key)
    if found is None:
        if dtype.hasobject:
            raise TypeError(
                f"dtype {dtype} is not supported: a tensor has bool, integers, floats or complex numbers"
                " (a submitted function may return anything, where no shape= and dtype= are given)"
            )
        if len(_interned) >= _INTERN_LIMIT:
            _interned.clear()
        found = _interned[key] = Meta(shape, dtype, contiguous, shape if bound is None else bound)  # type: ignore[arg-type]
    return found
