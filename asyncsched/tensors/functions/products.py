"""Products that sum over axes."""

from __future__ import annotations

from collections.abc import Sequence

from ..arguments import axes, name_keywords
from ..tensor import Tensor
from ._common import Operand, op


def matmul(x1: Operand, x2: Operand, /) -> Tensor:
    """The matrix product: (..., n, k) with (..., k, m) gives (..., n, m), and the dimensions in front broadcast.

    An operand of one dimension is a row on the left, a column on the right, and that dimension is dropped.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([[1.0, 2.0], [3.0, 4.0]]))
    ...         return await asc.matmul(x, x)           # or x @ x
    >>> asc.run(main)
    array([[ 7., 10.],
           [15., 22.]])
    """
    return op("matmul", x1, x2)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """A view with the last two axes exchanged: (..., n, m) gives (..., m, n)."""
    return op("matrix_transpose", x)


def tensordot(
    x1: Operand, x2: Operand, /, *, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> Tensor:
    """The sum of products over several axes.

    `axes` is how many, the last of `x1` and the first of `x2`; or a pair: those of `x1`, those of `x2`. The result has
    the axes of `x1` not summed over, then those of `x2`. Both operands may be copied, which the cost counts.
    """
    return op("tensordot", x1, x2, axes=_pair(axes))


def vecdot(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Tensor:
    """The sum of products along one axis, with `x1` conjugated; the other dimensions broadcast."""
    return op("vecdot", x1, x2, axis=axis)


def dot(x1: Operand, x2: Operand, /) -> Tensor:
    """NumPy's `dot`: the sum of products over the last axis of `x1` and the one before the last of `x2`.

    Of two vectors a number, of matrices their product; beyond that, `tensordot` and `matmul` are easier to read. A
    number multiplies.
    """
    return op("dot", x1, x2)


def einsum(subscripts: str, /, *operands: Operand) -> Tensor:
    """Products summed over axes, in Einstein's notation: a letter for each axis, as in `asc.einsum("ij,jk->ik", x, y)`.

    Letters that the result does not have are summed over; without `->` it has those that stand once, in the order of
    the alphabet. An ellipsis stands for axes in front that broadcast. The sum is made at once, without intermediates,
    which is slow for three large operands: there, write two.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([[1.0, 2.0], [3.0, 4.0]]))
    ...         return await asc.einsum("ij,ij->i", x, x)
    >>> asc.run(main)
    array([ 5., 25.])
    """
    return op("einsum", *operands, subscripts=subscripts)


def _pair(given: int | tuple[int | Sequence[int], int | Sequence[int]]) -> object:
    return given if isinstance(given, int) else tuple([axes(one) for one in given])


__all__ = ["dot", "einsum", "matmul", "matrix_transpose", "tensordot", "vecdot"]

name_keywords(globals(), __all__)
