"""Functions that reduce or accumulate along axes, and products that sum over axes.

Functions that reduce take one axis, several, or None for all; with `keepdims` the axes remain, at length one.

They add up and multiply float32, float64 and complex numbers in their own dtype, integers in 64 bits, or all in
`dtype`. Half precision ends at 65,504, and cannot count in ones beyond 2,048. So float16 is accumulated in:

| | on the CPU, as NumPy | on CUDA |
|---|---|---|
| `mean`, `var`, `std`, `matmul`, `vecdot`, `dot`, `tensordot` | float32 | float32 |
| `sum`, `prod`, `nansum`, ..., `einsum`, norms | float32 along the contiguous axis, float16 along others | float32 |
| `cumulative_sum`, `cumulative_prod` | float16 | float16 |
| gradients of what was broadcast or repeated | float32 | float32 |
| gradients of indexing and of `embedding` | float16; rows taken 64 times and more: float64 | float16, in any order |

A result computed in float32 is rounded once. `asc.sum(x, axis=0, dtype=asc.float32)` adds up in float32 everywhere.

Sums have NumPy's bits. It adds up rows one after the other, so a sum of millions of float32 rows may be percents off:
`dtype=asc.float64` helps. Gradients of what was broadcast over rows are added up in pieces, and exact to 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..arguments import axes, dtype_or_none, name_keywords
from ..tensor import Tensor
from ._common import Axis, Dtype, Operand, op
from .manipulation import concat


def all(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along the axes are true (not zero), in bool.

    >>> x = await s.put(np.array([True, False]))
    >>> await asc.all(x)
    array(False)
    """
    return op("all", x, axis=axes(axis), keepdims=keepdims)


def any(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element along the axes is true (not zero), in bool.

    >>> x = await s.put(np.array([True, False]))
    >>> await asc.any(x)
    array(True)
    """
    return op("any", x, axis=axes(axis), keepdims=keepdims)


def max(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element along the axes, in the dtype of `x`. ValueError if there is no element.

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> await asc.max(x, axis=0)
    array([3, 4])
    """
    return op("max", x, axis=axes(axis), keepdims=keepdims)


def min(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element along the axes, in the dtype of `x`. ValueError if there is no element.

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> await asc.min(x, axis=0)
    array([1, 2])
    """
    return op("min", x, axis=axes(axis), keepdims=keepdims)


def mean(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean along the axes, in the dtype of `x`; for integers in float64.

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> await asc.mean(x, axis=1)
    array([1.5, 3.5])
    """
    return op("mean", x, axis=axes(axis), keepdims=keepdims)


def std(x: Operand, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation along the axes: the root of `var`.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> await asc.std(x).item()
    1.0
    """
    return op("std", x, axis=axes(axis), correction=correction, keepdims=keepdims)


def var(x: Operand, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance along the axes, in a real dtype: the sum of squared deviations, over their number less `correction`.

    Its cost counts temporaries of the size of `x`.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> await asc.var(x, correction=1).item()
    2.0
    """
    return op("var", x, axis=axes(axis), correction=correction, keepdims=keepdims)


def prod(x: Operand, /, *, axis: Axis = None, dtype: Dtype = None, keepdims: bool = False) -> Tensor:
    """The product along the axes, in `dtype`; by default small integers are widened to 64 bits.

    >>> x = await s.put(np.array([2, 3, 4]))
    >>> await asc.prod(x).item()
    24
    """
    return op("prod", x, axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)


def sum(x: Operand, /, *, axis: Axis = None, dtype: Dtype = None, keepdims: bool = False) -> Tensor:
    """The sum along the axes, in `dtype`; by default small integers are widened to 64 bits.

    For float16 give `dtype=asc.float32` if an axis is long: float16 ends at 65,504, and NumPy adds up in it along all
    axes but the contiguous one. On CUDA float16 is added up in float32.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([[1.0, 2.0], [3.0, 4.0]]))
    ...         return await asc.sum(x, axis=0)
    >>> asc.run(main)
    array([4., 6.])
    """
    return op("sum", x, axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)


def cumulative_prod(
    x: Operand, /, *, axis: int | None = None, dtype: Dtype = None, include_initial: bool = False
) -> Tensor:
    """Running products along an axis. Only a tensor of one dimension may omit the axis.

    Returns a tensor of the shape of `x`; with `include_initial` it is one longer along the axis, with 1 in front.

    >>> x = await s.put(np.array([1, 2, 3]))
    >>> await asc.cumulative_prod(x)
    array([1, 2, 6])
    """
    return op("cumulative_prod", x, axis=axes(axis), dtype=dtype_or_none(dtype), include_initial=include_initial)


def cumulative_sum(
    x: Operand, /, *, axis: int | None = None, dtype: Dtype = None, include_initial: bool = False
) -> Tensor:
    """Running sums along an axis. Only a tensor of one dimension may omit the axis.

    Returns a tensor of the shape of `x`; with `include_initial` it is one longer along the axis, with 0 in front.

    >>> x = await s.put(np.array([1, 2, 3]))
    >>> await asc.cumulative_sum(x, include_initial=True)
    array([0, 1, 3, 6])
    """
    return op("cumulative_sum", x, axis=axes(axis), dtype=dtype_or_none(dtype), include_initial=include_initial)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th difference of neighbours along an axis, shorter by `n` there.

    `prepend` and `append` are joined to `x` first, so they need its shape in all other axes.

    >>> x = await s.put(np.array([1, 4, 9]))
    >>> await asc.diff(x)
    array([3, 5])
    """
    parts = [part for part in (prepend, x, append) if part is not None]
    joined = concat(parts, axis=axis) if len(parts) > 1 else x
    if n == 0:
        return op("copy", joined)
    return op("diff", joined, axis=axis, n=n)


def matmul(x1: Operand, x2: Operand, /) -> Tensor:
    """The matrix product: (..., n, k) with (..., k, m) gives (..., n, m), and the leading dimensions broadcast.

    An operand of one dimension is a row on the left and a column on the right; that dimension is dropped.

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
    """A view with the last two axes exchanged: (..., n, m) gives (..., m, n).

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> await asc.matrix_transpose(x)
    array([[1, 3],
           [2, 4]])
    """
    return op("matrix_transpose", x)


def tensordot(
    x1: Operand, x2: Operand, /, *, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> Tensor:
    """The sum of products over several axes.

    `axes` is a number (the last axes of `x1` with the first of `x2`), or a pair: axes of `x1`, axes of `x2`. The result
    has the remaining axes of `x1`, then those of `x2`. The cost counts copies of both operands.

    >>> await asc.tensordot(asc.ones((2, 3)), asc.ones((3, 2)), axes=1)
    array([[3., 3.],
           [3., 3.]])
    """
    return op("tensordot", x1, x2, axes=_pair(axes))


def vecdot(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Tensor:
    """The sum of products along one axis, with `x1` conjugated; the other dimensions broadcast.

    >>> x = await s.put(np.array([[1, 2], [3, 4]]))
    >>> y = await s.put(np.array([1, 1]))
    >>> await asc.vecdot(x, y)
    array([3, 7])
    """
    return op("vecdot", x1, x2, axis=axis)


def dot(x1: Operand, x2: Operand, /) -> Tensor:
    """NumPy's `dot`: the sum of products over the last axis of `x1` and the one before the last of `x2`.

    For two vectors it is a number, for matrices their product. In other cases `tensordot` and `matmul` are easier to
    read. A number multiplies.

    >>> await asc.dot(asc.arange(3), asc.arange(3))
    array(5)
    """
    return op("dot", x1, x2)


def einsum(subscripts: str, /, *operands: Operand) -> Tensor:
    """Products summed over axes, in Einstein's notation: a letter for each axis: `asc.einsum("ij,jk->ik", x, y)`.

    Letters that the result does not have are summed over. Without `->` the result has the letters that occur once, in
    alphabetical order. An ellipsis stands for leading axes that broadcast. The sum is computed in one step without
    intermediates, which is slow for three large operands: write two calls there.

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


__all__ = [
    "all", "any", "cumulative_prod", "cumulative_sum", "diff", "dot", "einsum", "matmul", "matrix_transpose", "max",
    "mean", "min", "prod", "std", "sum", "tensordot", "var", "vecdot",
]  # fmt: skip

name_keywords(globals(), __all__)
