"""Arguments of functions and methods in the form in which rows have them: hashable."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index


def axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """An axis or several."""
    if axis is None:
        return None
    return tuple([index(one) for one in axis]) if isinstance(axis, Sequence) else index(axis)
