"""Functions that search, sort and take."""

from __future__ import annotations

from typing import Literal

from ...ops.table import TABLE
from ..keywords import name_keywords
from ..tensor import Tensor, apply
from ._common import Axis, Operand, axes


def argmax(x: Operand, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element along an axis, in int64; without one, in the flattened tensor."""
    return apply(TABLE["argmax"], (x,), {"axis": axes(axis), "keepdims": keepdims})


def argmin(x: Operand, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element along an axis, in int64; without one, in the flattened tensor."""
    return apply(TABLE["argmin"], (x,), {"axis": axes(axis), "keepdims": keepdims})


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort along an axis: a tensor of the shape of `x`, in int64."""
    return apply(TABLE["argsort"], (x,), {"axis": axis, "descending": descending, "stable": stable})


def count_nonzero(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements along the axes are not zero, in int64."""
    return apply(TABLE["count_nonzero"], (x,), {"axis": axes(axis), "keepdims": keepdims})


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of elements that are not zero, in C order: a tensor for each dimension, in int64.

    How many there are is known only when it is done: the shapes are (None,), their cost that of the most there can be.
    """
    found = apply(TABLE["argwhere"], (x,))
    return tuple([found[:, axis] for axis in range(x.ndim)])


def searchsorted(
    x1: Tensor, x2: Operand, /, *, side: Literal["left", "right"] = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where to insert each element of `x2` into `x1` so that it stays in order: the shape of `x2`, in int64.

    `x1` has one dimension and is in order, or `sorter` has the indices that sort it. Equal elements go to the right
    of what is inserted, or with `side="right"` to the left.
    """
    operands = (x1, x2) if sorter is None else (x1, x2, sorter)
    return apply(TABLE["searchsorted"], operands, {"side": side})


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis: a tensor like `x`."""
    return apply(TABLE["sort"], (x,), {"axis": axis, "descending": descending, "stable": stable})


def take(x: Tensor, indices: Operand, /, *, axis: int | None = None) -> Tensor:
    """Slices of `x` along an axis, by index; without one, elements of the flattened tensor.

    The result has the shape of `indices` in place of the axis.

    Raises:
        IndexError: where awaited, for an index out of range, on any device.
    """
    return apply(TABLE["take"], (x, indices), {"axis": axes(axis)})


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """One element of `x` for each index, at the index's own place in all other dimensions, which broadcast.

    Raises:
        IndexError: where awaited, for an index out of range, on any device.
    """
    return apply(TABLE["take_along_axis"], (x, indices), {"axis": axis})


def where(condition: Operand, x1: Operand, x2: Operand, /) -> Tensor:
    """Elements of `x1` where the condition is true (not zero), else of `x2`: the shape all three broadcast to

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([-1.0, 2.0, -3.0]))
    ...         return await asc.where(x < 0, 0, x)
    >>> asc.run(main)
    array([0., 2., 0.])
    """
    return apply(TABLE["where"], (condition, x1, x2))


__all__ = [
    "argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "sort", "take", "take_along_axis",
    "where",
]  # fmt: skip

name_keywords(globals(), __all__)
