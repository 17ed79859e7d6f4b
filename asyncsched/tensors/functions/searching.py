"""Functions that search, sort and take, and functions on tensors as sets.

The number of unique elements depends on data, so such shapes are (None,) until awaited.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from operator import index
from typing import Any, Literal, NamedTuple

from ..arguments import axes, name_keywords
from ..tensor import Tensor
from ._common import Axis, Operand, await_all, known_shape, op, refuse_tracked, several


def argmax(x: Operand, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element along an axis, in int64; without one, in the flattened tensor.

    >>> x = await s.put(np.array([1, 5, 2]))
    >>> await asc.argmax(x).item()
    1
    """
    return op("argmax", x, axis=axes(axis), keepdims=keepdims)


def argmin(x: Operand, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element along an axis, in int64; without one, in the flattened tensor.

    >>> x = await s.put(np.array([1, 5, 0]))
    >>> await asc.argmin(x).item()
    2
    """
    return op("argmin", x, axis=axes(axis), keepdims=keepdims)


def argpartition(x: Tensor, /, kth: int | Sequence[int], axis: int | None = -1) -> Tensor:
    """The indices that move the `kth` elements along an axis to their sorted place: the shape of `x`, in int64.

    Smaller elements come before each of them, larger ones behind, in no order. Without an axis, of the flattened
    tensor.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([7, 1, 5, 2]))
    ...         return await asc.take(x, asc.argpartition(x, 1)[1])     # the second smallest
    >>> asc.run(main)
    array(2)
    """
    return op("argpartition", x, kth=axes(kth), axis=axes(axis))


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort along an axis: a tensor of the shape of `x`, in int64.

    >>> x = await s.put(np.array([3, 1, 2]))
    >>> await asc.argsort(x)
    array([1, 2, 0])
    """
    return op("argsort", x, axis=axis, descending=descending, stable=stable)


def count_nonzero(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements along the axes are not zero, in int64.

    >>> x = await s.put(np.array([0, 1, 2]))
    >>> await asc.count_nonzero(x).item()
    2
    """
    return op("count_nonzero", x, axis=axes(axis), keepdims=keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of elements that are not zero, in C order: a tensor for each dimension, in int64.

    Their number is known only when done. Until then the shapes are (None,), and the largest possible cost is charged.

    >>> x = await s.put(np.array([0, 1, 2]))
    >>> await asc.gather(*asc.nonzero(x))
    [array([1, 2])]
    """
    found = op("argwhere", x)
    return tuple([found[:, axis] for axis in range(x.ndim)])


def searchsorted(
    x1: Tensor, x2: Operand, /, *, side: Literal["left", "right"] = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where to insert each element of `x2` into `x1` so that it stays in order: the shape of `x2`, in int64.

    `x1` has one dimension and is sorted, or `sorter` has the indices that sort it. The new element goes before equal
    ones, or with `side="right"` behind them.

    >>> x = await s.put(np.array([1, 3, 5]))
    >>> y = await s.put(np.array([0, 3, 9]))
    >>> await asc.searchsorted(x, y)
    array([0, 1, 3])
    """
    sorters = () if sorter is None else (sorter,)
    return op("searchsorted", x1, x2, *sorters, side=side)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis: a tensor like `x`.

    >>> x = await s.put(np.array([3, 1, 2]))
    >>> await asc.sort(x, descending=True)
    array([3, 2, 1])
    """
    return op("sort", x, axis=axis, descending=descending, stable=stable)


def take(x: Tensor, indices: Operand, /, *, axis: int | None = None) -> Tensor:
    """Slices of `x` along an axis, by index; without one, elements of the flattened tensor.

    The result has the shape of `indices` in place of the axis.

    >>> x = await s.put(np.array([10, 20, 30]))
    >>> y = await s.put(np.array([2, 0]))
    >>> await asc.take(x, y)
    array([30, 10])

    Raises:
        IndexError: at `await`, for an index out of range, on any device.
    """
    return op("take", x, indices, axis=axes(axis))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """One element of `x` for each index, at the index's own position in all other dimensions; these broadcast.

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> y = await s.put(np.array([[1], [0]]))
    >>> await asc.take_along_axis(x, y)
    array([[2],
           [3]])

    Raises:
        IndexError: at `await`, for an index out of range, on any device.
    """
    return op("take_along_axis", x, indices, axis=axis)


class TopkResult(NamedTuple):
    """The result of `topk`."""

    values: Tensor
    indices: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


def topk(x: Tensor, /, k: int, axis: int = -1, *, largest: bool = True, sorted: bool = True) -> TopkResult:
    """PyTorch's `topk`: the `k` largest elements along an axis, or the smallest, and their indices in int64.

    The largest come first; of equal ones, that with the lower index. Which of equal ones are chosen is not promised.
    NaN counts as the largest. With `sorted=False` they come in no order. The gradient goes to the chosen elements.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.topk(await s.put(np.array([7, 1, 5, 2])), 2)
    >>> asc.run(main)
    TopkResult(values=array([7, 5]), indices=array([0, 2]))

    Raises:
        ValueError: if there are fewer than `k` elements.
    """
    known_shape(x, "topk")
    indices = op("topk", x, k=index(k), axis=axes(axis), largest=bool(largest), sorted=bool(sorted))
    return TopkResult(take_along_axis(x, indices, axis=axis), indices)


def where(condition: Operand, x1: Operand, x2: Operand, /) -> Tensor:
    """Elements of `x1` where the condition is true (not zero), else of `x2`: the shape all three broadcast to

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([-1.0, 2.0, -3.0]))
    ...         return await asc.where(x < 0, 0, x)
    >>> asc.run(main)
    array([0., 2., 0.])
    """
    return op("where", condition, x1, x2)


class UniqueAllResult(NamedTuple):
    """The result of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class UniqueCountsResult(NamedTuple):
    """The result of `unique_counts`."""

    values: Tensor
    counts: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class UniqueInverseResult(NamedTuple):
    """The result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    """Whether each element of `x1` is among those of `x2` (with `invert`: is not): the shape of `x1`, in bool.

    >>> x = await s.put(np.array([1, 2, 3]))
    >>> y = await s.put(np.array([2, 5]))
    >>> await asc.isin(x, y)
    array([False,  True, False])
    """
    return op("isin", x1, x2, invert=invert)


def unique_all(x: Tensor, /) -> UniqueAllResult:
    """The unique elements, the index of the first of each, the inverse indices, and the counts.

    The indices refer to the flattened tensor. The inverse indices refer to the unique elements, and have the shape of
    `x`. All are in int64.

    >>> x = await s.put(np.array([2, 1, 2]))
    >>> await asc.unique_all(x).counts
    array([1, 2])
    """
    return UniqueAllResult(*_unique("unique_all", x, index=True, inverse=True, counts=True))


def unique_counts(x: Tensor, /) -> UniqueCountsResult:
    """The unique elements, and how often each occurs, in int64

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         values, counts = asc.unique_counts(await s.put(np.array([3, 1, 3])))
    ...         print(*await asc.gather(values, counts))
    >>> asc.run(main)
    [1 3] [1 2]
    """
    return UniqueCountsResult(*_unique("unique_counts", x, index=False, inverse=False, counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverseResult:
    """The unique elements, and for each element of `x` the index of its unique one: the shape of `x`, in int64.

    >>> x = await s.put(np.array([2, 1, 2]))
    >>> await asc.unique_inverse(x).inverse_indices
    array([1, 0, 1])
    """
    return UniqueInverseResult(*_unique("unique_inverse", x, index=False, inverse=True, counts=False))


def unique_values(x: Tensor, /) -> Tensor:
    """The unique elements, in the order of the installed NumPy, which may be none.

    >>> x = await s.put(np.array([2, 1, 2]))
    >>> await asc.unique_values(x)
    array([1, 2])
    """
    return op("unique_values", x)


def _unique(name: str, x: Tensor, **kinds: bool) -> list[Tensor]:
    refuse_tracked(name, (x,))
    known_shape(x, name)
    return several("unique_packed", x, **kinds)


__all__ = [
    "argmax", "argmin", "argpartition", "argsort", "count_nonzero", "isin", "nonzero", "searchsorted", "sort", "take",
    "take_along_axis", "topk", "unique_all", "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip

name_keywords(globals(), __all__)
