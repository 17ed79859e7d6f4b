"""Functions that reduce or accumulate along axes.

In all of them `axis` is one axis, several, or None for all; with `keepdims` the axes remain, at length one.
"""

from __future__ import annotations

from ..arguments import axes, dtype_or_none, name_keywords
from ..tensor import Tensor
from ._common import Axis, Dtype, Operand, op
from .manipulation import concat


def all(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along the axes are true (not zero), in bool."""
    return op("all", x, axis=axes(axis), keepdims=keepdims)


def any(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element along the axes is true (not zero), in bool."""
    return op("any", x, axis=axes(axis), keepdims=keepdims)


def max(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element along the axes, in the dtype of `x`. ValueError if there is none to choose from."""
    return op("max", x, axis=axes(axis), keepdims=keepdims)


def min(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element along the axes, in the dtype of `x`. ValueError if there is none to choose from."""
    return op("min", x, axis=axes(axis), keepdims=keepdims)


def mean(x: Operand, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean along the axes, in the dtype of `x`; of integers in float64."""
    return op("mean", x, axis=axes(axis), keepdims=keepdims)


def std(x: Operand, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation along the axes: the root of `var`."""
    return op("std", x, axis=axes(axis), correction=correction, keepdims=keepdims)


def var(x: Operand, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance along the axes, in a real dtype: squared deviations summed, over their number less `correction`.

    Temporaries of the size of `x` are counted in its cost.
    """
    return op("var", x, axis=axes(axis), correction=correction, keepdims=keepdims)


def prod(x: Operand, /, *, axis: Axis = None, dtype: Dtype = None, keepdims: bool = False) -> Tensor:
    """The product along the axes, in `dtype`; by default small integers are widened to 64 bits."""
    return op("prod", x, axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)


def sum(x: Operand, /, *, axis: Axis = None, dtype: Dtype = None, keepdims: bool = False) -> Tensor:
    """The sum along the axes, in `dtype`; by default small integers are widened to 64 bits

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
    """Running products along an axis, which only a tensor of one dimension may leave out.

    Returns a tensor of the shape of `x`; with `include_initial` one longer along the axis, with 1 in front.
    """
    return op("cumulative_prod", x, axis=axes(axis), dtype=dtype_or_none(dtype), include_initial=include_initial)


def cumulative_sum(
    x: Operand, /, *, axis: int | None = None, dtype: Dtype = None, include_initial: bool = False
) -> Tensor:
    """Running sums along an axis, which only a tensor of one dimension may leave out.

    Returns a tensor of the shape of `x`; with `include_initial` one longer along the axis, with 0 in front.
    """
    return op("cumulative_sum", x, axis=axes(axis), dtype=dtype_or_none(dtype), include_initial=include_initial)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th difference of neighbours along an axis, shorter by `n` there.

    `prepend` and `append` are joined to `x` first, so they have its shape but for that axis.
    """
    parts = [part for part in (prepend, x, append) if part is not None]
    joined = concat(parts, axis=axis) if len(parts) > 1 else x
    if n == 0:
        return op("copy", joined)
    return op("diff", joined, axis=axis, n=n)


__all__ = [
    "all", "any", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std", "sum", "var",
]  # fmt: skip

name_keywords(globals(), __all__)
