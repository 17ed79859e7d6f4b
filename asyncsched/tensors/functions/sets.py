"""Functions on tensors as sets. How many elements are unique depends on data, so such shapes are (None,) until done."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from ...ops.kernels.sets import unique_layout
from ...ops.packed import UNPACK_FOUND
from ..tensor import Tensor, apply
from ._common import Operand, await_all, known_shape, op, refuse_tracked


class UniqueAllResult(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    """Whether each element of `x1` is among those of `x2`, or with `invert` is not: the shape of `x1`, in bool."""
    return op("isin", x1, x2, invert=invert)


def unique_all(x: Tensor, /) -> UniqueAllResult:
    """Each element once, where the first of each is, which one each element of `x` is, and how often each is there.

    The second and the last index and count in the flattened tensor; the third has the shape of `x`. In int64.
    """
    return UniqueAllResult(*_unique("unique_all", x, index=True, inverse=True, counts=True))


def unique_counts(x: Tensor, /) -> UniqueCountsResult:
    """Each element once, and how often each is there, in int64

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         values, counts = asc.unique_counts(await s.put(np.array([3, 1, 3])))
    ...         print(values.shape, *await asc.gather(values, counts))
    >>> asc.run(main)
    (None,) [1 3] [1 2]
    """
    return UniqueCountsResult(*_unique("unique_counts", x, index=False, inverse=False, counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverseResult:
    """Each element once, and which one each element of `x` is, in its shape, in int64."""
    return UniqueInverseResult(*_unique("unique_inverse", x, index=False, inverse=True, counts=False))


def unique_values(x: Tensor, /) -> Tensor:
    """Each element once, in the order that NumPy gives them: that of its version, which may be none."""
    return op("unique_values", x)


def _unique(name: str, x: Tensor, **kinds: bool) -> list[Tensor]:
    refuse_tracked(name, (x,))
    known_shape(x, name)
    packed = op("unique_packed", x, **kinds)
    fixed, width, parts = unique_layout(x._value.meta, kinds)
    layout = {"fixed": fixed, "width": width}
    return [
        apply(UNPACK_FOUND, (packed,), {**layout, "start": start, "before": before, "shape": shape, "dtype": dtype})
        for start, before, shape, dtype in parts
    ]


__all__ = ["isin", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
