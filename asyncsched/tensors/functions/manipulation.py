"""Functions that rearrange, join or repeat."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..arguments import axes, name_keywords
from ..tensor import Tensor
from ._common import Axis, ShapeLike, known_shape, lengths, op


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


__all__ = [
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis",
    "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip

name_keywords(globals(), __all__)
