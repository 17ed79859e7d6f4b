"""Functions that rearrange, join or repeat.

Functions that search, sort and take, and functions on tensors as sets.

The number of unique elements depends on data, so such shapes are (None,) until awaited.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from operator import index
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..arguments import axes, name_keywords
from ..tensor import Tensor
from ._common import Axis, Operand, ShapeLike, await_all, known_shape, lengths, op, refuse_tracked, several


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Read-only views of all tensors, in the shape that they broadcast to.

    >>> await asc.gather(*asc.broadcast_arrays(asc.ones((2, 1)), asc.arange(2)))
    [array([[1., 1.],
           [1., 1.]]), array([[0, 1],
           [0, 1]])]
    """
    shape = np.broadcast_shapes(*[known_shape(x, "broadcast_arrays") for x in arrays])
    return tuple([broadcast_to(x, shape) for x in arrays])


def broadcast_shapes(*shapes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The shape that several shapes broadcast to. An unknown length, None, stays unknown in the result.

    >>> broadcast_shapes((3, 1), (None, 1, 4))
    (None, 3, 4)
    """
    ndim = max(map(len, shapes), default=0)
    padded = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    known = np.broadcast_shapes(*[tuple([1 if length is None else length for length in shape]) for shape in padded])
    unknown = [any(shape[axis] is None for shape in padded) for axis in range(ndim)]
    return tuple([None if hidden else length for length, hidden in zip(known, unknown, strict=True)])


def broadcast_to(x: Tensor, /, shape: ShapeLike) -> Tensor:
    """A read-only view of `x` in a larger shape.

    >>> await asc.broadcast_to(asc.arange(2), (2, 2))
    array([[0, 1],
           [0, 1]])
    """
    return op("broadcast_to", x, shape=lengths(shape))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an existing axis, equal in every other; None joins them flattened

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([[1, 2]]))
    ...         return await asc.concat([x, x + 2])
    >>> asc.run(main)
    array([[1, 2],
           [3, 4]])
    """
    return op("concat", *arrays, axis=axes(axis))


def expand_dims(x: Tensor, /, axis: int | tuple[int, ...] = 0) -> Tensor:
    """A view with a new axis of length one at `axis`.

    >>> asc.expand_dims(asc.ones(3), axis=0).shape
    (1, 3)
    """
    return op("expand_dims", x, axis=axes(axis))


def flip(x: Tensor, /, *, axis: Axis = None) -> Tensor:
    """A view with the elements along the axes in reverse; None is all axes.

    >>> await asc.flip(asc.arange(3))
    array([2, 1, 0])
    """
    return op("flip", x, axis=axes(axis))


def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """A view with the axes `source` moved to `destination`, the others in their present order.

    >>> asc.moveaxis(asc.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    sources = normalize_axis_tuple(source, x.ndim, "source")
    destinations = normalize_axis_tuple(destination, x.ndim, "destination")
    if len(sources) != len(destinations):
        raise ValueError("moveaxis: give as many sources as destinations")
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for at, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(at, axis)
    return permute_dims(x, tuple(order))


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """A view with the axes in another order: axis `i` of the result is axis `axes[i]` of `x`.

    >>> asc.permute_dims(asc.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return op("permute_dims", x, axes=lengths(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None, maxlength: int | None = None) -> Tensor:
    """Each element `repeats` times along an axis; without one, of the flattened tensor.

    With a tensor of repeats, a number for each element along the axis, the length is None until the tensor is awaited.
    Until it is done, `maxlength` places along the axis are charged; by default as many as `x` has, and at least 64 KiB.
    Repeats that add up to more raise ValueError at `await`.

    >>> await asc.repeat(asc.arange(3), 2)
    array([0, 0, 1, 1, 2, 2])
    """
    if isinstance(repeats, Tensor):
        return op("repeat_each", x, repeats, axis=axes(axis), maxlength=maxlength)
    if maxlength is not None:
        raise TypeError("repeat: maxlength is for repeats in a tensor: a number gives a length that is known")
    if not hasattr(repeats, "__index__"):
        raise TypeError(f"repeat: repeats is an int or a tensor of integers, not {type(repeats).__name__}")
    return op("repeat", x, repeats=index(repeats), axis=axes(axis))


def reshape(x: Tensor, /, shape: ShapeLike, *, copy: bool | None = None) -> Tensor:
    """The elements in another shape, in C order; one length may be -1.

    A view where possible. `copy=True` always copies; `copy=False` raises at `await` if a copy is needed.

    >>> await asc.reshape(asc.arange(4), (2, -1))
    array([[0, 1],
           [2, 3]])
    """
    options = {} if copy is None else {"copy": copy}
    return op("reshape", x, shape=lengths(shape), **options)


def roll(x: Tensor, /, shift: int | Sequence[int], *, axis: Axis = None) -> Tensor:
    """The elements shifted in a circle by `shift` along the axes; without axis, in the flattened tensor.

    >>> await asc.roll(asc.arange(4), 1)
    array([3, 0, 1, 2])
    """
    return op("roll", x, shift=axes(shift), axis=axes(axis))


def squeeze(x: Tensor, /, axis: int | Sequence[int]) -> Tensor:
    """A view without the given axes, which must have length one.

    >>> asc.squeeze(asc.ones((1, 3)), 0).shape
    (3,)
    """
    return op("squeeze", x, axis=axes(axis))


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis.

    >>> await asc.stack([asc.arange(2), asc.ones(2)])
    array([[0., 1.],
           [1., 1.]])
    """
    return op("stack", *arrays, axis=axis)


def tile(x: Tensor, repetitions: ShapeLike, /) -> Tensor:
    """Copies of `x` side by side: `repetitions[i]` along axis `i`, counted from the last.

    >>> await asc.tile(asc.arange(2), 2)
    array([0, 1, 0, 1])
    """
    return op("tile", x, repetitions=lengths(repetitions))


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of the parts along an axis, each without that axis.

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> await asc.gather(*asc.unstack(x))
    [array([1, 2]), array([3, 4])]
    """
    axis = normalize_axis_index(axis, x.ndim)
    length = x.shape[axis]
    if length is None:
        raise ValueError(
            f"unstack: the length of axis {axis} is not known until the tensor is awaited; `await` it first"
        )
    return tuple([x[(slice(None),) * axis + (i,)] for i in range(length)])


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
    "argmax", "argmin", "argpartition", "argsort", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat",
    "count_nonzero", "expand_dims", "flip", "isin", "moveaxis", "nonzero", "permute_dims", "repeat", "reshape", "roll",
    "searchsorted", "sort", "squeeze", "stack", "take", "take_along_axis", "tile", "topk", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "where",
]  # fmt: skip

name_keywords(globals(), __all__)
