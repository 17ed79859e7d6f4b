"""Statistics with NumPy's names, arguments and bits: counts, quantiles, covariances, and reductions without NaN.

Functions that reduce take one axis, several, or None for all; with `keepdims` the axes remain, at length one. NumPy
warns of a line with nothing but NaN; these functions return NaN in silence.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import axes, dtype_of, dtype_or_none, name_keywords, scalar
from ..handles import runtime_of
from ..tensor import Tensor, listed
from . import elementwise, linalg, reductions
from ._common import Axis, Dtype, await_all, known_shape, op, refuse_tracked, several
from .creation import zeros
from .manipulation import concat, expand_dims, squeeze, where

Method: TypeAlias = Literal[
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
    "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
]  # fmt: skip


Edges: TypeAlias = Tensor | Sequence[float] | np.ndarray[tuple[int], np.dtype[Any]]


class HistogramResult(NamedTuple):
    """The result of `histogram`."""

    hist: Tensor
    bin_edges: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


# -- without NaN ---------------------------------------------------------------------------------------------------


def nanmax(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The largest element that is not NaN; NaN for a line of NaN. ValueError if there is no element.

    >>> x = await s.put(np.array([1.0, np.nan, 3.0]))
    >>> await asc.nanmax(x).item()
    3.0
    """
    return op("nanmax", x, axis=axes(axis), keepdims=keepdims)


def nanmin(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element that is not NaN; NaN for a line of NaN. ValueError if there is no element.

    >>> x = await s.put(np.array([1.0, np.nan, 3.0]))
    >>> await asc.nanmin(x).item()
    1.0
    """
    return op("nanmin", x, axis=axes(axis), keepdims=keepdims)


def nanargmax(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first largest element that is not NaN, in int64. ValueError at `await` for a line of NaN.

    >>> x = await s.put(np.array([1.0, np.nan, 3.0]))
    >>> await asc.nanargmax(x).item()
    2
    """
    return op("nanargmax", x, axis=axes(axis), keepdims=keepdims)


def nanargmin(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element that is not NaN, in int64. ValueError at `await` for a line of NaN.

    >>> x = await s.put(np.array([np.nan, 1.0, 3.0]))
    >>> await asc.nanargmin(x).item()
    1
    """
    return op("nanargmin", x, axis=axes(axis), keepdims=keepdims)


def nansum(x: Tensor, /, axis: Axis = None, dtype: Dtype = None, *, keepdims: bool = False) -> Tensor:
    """The sum of the elements that are not NaN, in `dtype`; by default small integers are widened to 64 bits.

    Its cost counts a copy of `x`, as do those of the functions below.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([[1.0, np.nan], [3.0, 4.0]]))
    ...         return await asc.nansum(x, axis=0), await asc.nanmean(x).item()
    >>> asc.run(main)
    (array([4., 4.]), 2.6666666666666665)
    """
    return op("nansum", x, axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)


def nanprod(x: Tensor, /, axis: Axis = None, dtype: Dtype = None, *, keepdims: bool = False) -> Tensor:
    """The product of the elements that are not NaN, in `dtype`; by default small integers are widened to 64 bits.

    >>> x = await s.put(np.array([2.0, np.nan, 3.0]))
    >>> await asc.nanprod(x).item()
    6.0
    """
    return op("nanprod", x, axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)


def nanmean(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The mean of the elements that are not NaN, in the dtype of `x`; for integers in float64.

    >>> x = await s.put(np.array([1.0, np.nan, 3.0]))
    >>> await asc.nanmean(x).item()
    2.0
    """
    return op("nanmean", x, axis=axes(axis), keepdims=keepdims)


def nanvar(x: Tensor, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance without NaN: the sum of squared deviations, over their number less `correction` (`ddof`).

    >>> x = await s.put(np.array([1.0, np.nan, 3.0]))
    >>> await asc.nanvar(x).item()
    1.0
    """
    return op("nanvar", x, axis=axes(axis), correction=correction, keepdims=keepdims)


def nanstd(x: Tensor, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation without NaN: the root of `nanvar`.

    >>> x = await s.put(np.array([1.0, np.nan, 3.0]))
    >>> await asc.nanstd(x).item()
    1.0
    """
    return op("nanstd", x, axis=axes(axis), correction=correction, keepdims=keepdims)


# -- by rank -------------------------------------------------------------------------------------------------------


def median(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The middle one of the sorted elements, or the mean of the middle two; NaN if one is NaN.

    In the dtype of `x`; for integers in float64. The gradient goes to the one or two middle elements; among equal ones,
    to the first. PyTorch's `quantile(x, 0.5)` does the same.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.median(await s.put(np.array([[1.0, 7.0, 2.0], [5.0, 3.0, 4.0]])), axis=1)
    >>> asc.run(main)
    array([2., 4.])
    """
    return op("median", x, axis=axes(axis), keepdims=keepdims)


def quantile(
    x: Tensor,
    /,
    q: ArrayLike,
    axis: Axis = None,
    *,
    method: Method = "linear",
    keepdims: bool = False,
    weights: Tensor | None = None,
) -> Tensor:
    """The value at the fraction `q` of the sorted elements; NaN if one is NaN.

    The gradient goes to the one or two elements that the result lies between, as in PyTorch.

    Args:
        q: a fraction from 0 to 1, or several: a number, or a list or an array of the host's, since it must be known at
            once.
        method: the rule for a fraction between two elements; names and formulas are NumPy's.
        weights: of each element, or of each along the axis; only with `method="inverted_cdf"`. Not on CUDA, and without
            a gradient.

    Returns a tensor with the axes of `q` in front, then those of `x` that remain.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.arange(11.0))
    ...         return await asc.quantile(x, [0.25, 0.5]), await asc.percentile(x, 90).item()
    >>> asc.run(main)
    (array([2.5, 5. ]), 9.0)

    Raises:
        ValueError: for a fraction out of range, an unknown method, and weights of a wrong shape; at `await`, for
            weights that are negative or sum to zero.
    """
    return _quantile("quantile", x, q, 1, axis, method, keepdims, weights)


def percentile(
    x: Tensor,
    /,
    q: ArrayLike,
    axis: Axis = None,
    *,
    method: Method = "linear",
    keepdims: bool = False,
    weights: Tensor | None = None,
) -> Tensor:
    """The same as `quantile`, with `q` from 0 to 100.

    >>> x = await s.put(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> await asc.percentile(x, 50).item()
    2.5
    """
    return _quantile("percentile", x, q, 100, axis, method, keepdims, weights)


def _quantile(
    name: str, x: Tensor, q: Any, whole: int, axis: Axis, method: str, keepdims: bool, weights: Tensor | None
) -> Tensor:
    if isinstance(q, Tensor):
        raise TypeError(f"{name}: q is a tensor and must be known at once: `await` it first")
    parts = np.asarray(q)
    if parts.dtype.kind not in "biuf":
        raise TypeError(f"{name}: q is a number or several, not {q!r}")
    if not np.all((parts >= 0) & (parts <= whole)):
        raise ValueError(f"{name}: q must lie between 0 and {whole}, and is {q}")
    operands = (x,) if weights is None else (x, weights)
    if weights is not None:
        refuse_tracked(f"{name} with weights", operands)
    alone = isinstance(q, int | float | np.generic)  # for a scalar NumPy promotes dtypes otherwise than for an array
    given: dict[str, Any] = {"q": q, "form": None}
    if not alone:
        given = {"q": tuple(parts.ravel().tolist()), "form": (parts.shape, parts.dtype.str)}
    return op("quantile", *operands, **given, percent=whole == 100, axis=axes(axis), keepdims=keepdims, method=method)


# -- counts --------------------------------------------------------------------------------------------------------


def bincount(
    x: Tensor, /, weights: Tensor | None = None, minlength: int | None = 0, *, maxlength: int | None = None
) -> Tensor:
    """How often each number from 0 to the largest occurs, in int64; or the sum of its weights, in float64.

    The length is the largest number plus one, and at least `minlength`: the shape is (None,) until it is awaited. Until
    it is done, `maxlength` elements are charged; by default as many as `x` has, and at least 8,192.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.bincount(await s.put([0, 3, 1, 3]))
    >>> asc.run(main)
    array([1, 1, 0, 2])

    Raises:
        ValueError: at `await`, for a negative number, and for one that needs a longer result than was charged.
        NotImplementedError: for weights that require a gradient: it has no derivative.
    """
    if weights is None or x.shape == (0,):  # NumPy counts an empty `x` in integers, whatever the weights
        return op("bincount", x, minlength=minlength or 0, maxlength=maxlength)
    return op("bincount", x, weights, minlength=minlength or 0, maxlength=maxlength)


def digitize(x: Tensor, /, bins: Edges, right: bool = False) -> Tensor:
    """The index of the bin that each element falls into: bins[i - 1] <= x < bins[i], in int64 and the shape of `x`.

    `bins` has one dimension and increases or decreases; if it decreases, bins[i - 1] > x >= bins[i]. With `right` the
    other edge belongs to the bin. Elements beyond the bins have index 0 or `len(bins)`.

    >>> x = await s.put(np.array([0.5, 1.5, 9.0]))
    >>> y = await s.put(np.array([1.0, 2.0]))
    >>> await asc.digitize(x, y)
    array([0, 1, 2])

    Raises:
        ValueError: at `await`, for unsorted bins.
    """
    return op("digitize", x, _numbers(x, bins), right=right)


def histogram(
    x: Tensor,
    /,
    bins: int | Edges = 10,
    range: tuple[float, float] | None = None,
    density: bool = False,
    weights: Tensor | None = None,
) -> HistogramResult:
    """How many elements fall into each of n bins, and the n + 1 edges of the bins.

    Args:
        bins: how many, all of one width; or their edges, in ascending order, as `np.linspace` makes them. The last bin
            includes its right edge.
        range: the outer edges of bins of one width; by default the least element and the largest.
        density: return the probability density, whose integral is 1, in float64.
        weights: of each element, in the shape of `x`; their sums have their dtype.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([1.0, 2.0, 1.0, 4.0]))
    ...         return await asc.histogram(x, bins=3, range=(1, 4))
    >>> counts, edges = asc.run(main)
    >>> print(counts, edges)
    [2 1 1] [1. 2. 3. 4.]

    Raises:
        ValueError: for an invalid range; at `await`, for unsorted edges, and for NaN or infinite elements that would
            determine the range.
        NotImplementedError: for elements or weights that require a gradient: it has no derivative.
    """
    if isinstance(bins, str):
        raise TypeError(
            f"histogram: the number of bins for {bins!r} depends on data: give a number, or"
            f" `await s.call(np.histogram, x, {bins!r})`"
        )
    count = int(bins) if isinstance(bins, int | np.integer) else None
    edges = (_numbers(x, bins),) if count is None else ()
    low, high = (None, None) if range is None else map(scalar, range)
    options = {"bins": count, "low": low, "high": high, "density": bool(density)}
    more = () if weights is None else (weights,)
    if edges and isinstance(edges[0], Tensor):
        known_shape(edges[0], "histogram")
    return HistogramResult(*several("histogram", x, *edges, *more, known=False, **options, weighted=bool(more)))


def _numbers(x: Tensor, given: Any) -> Any:
    """A tensor, or a tensor of host numbers, given as a list or an array."""
    if not isinstance(given, list | tuple) and type(given) is not np.ndarray:
        return given
    numbers = np.array(given)
    if numbers.ndim != 1 or numbers.dtype.kind not in "biuf":
        raise TypeError(f"bin edges must be a list, an array or a tensor of one dimension, not {given!r}")
    return listed(numbers, x)


# -- covariances ---------------------------------------------------------------------------------------------------


def cov(
    x: Tensor,
    y: Tensor | None = None,
    /,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
    *,
    dtype: Dtype = None,
) -> Tensor:
    """The covariance matrix of variables, (n, n) for `x` of shape (n, observations). It takes a few tasks.

    Args:
        x, y: the variables, and further variables; with one dimension it is a single variable.
        rowvar: whether rows are variables; otherwise columns are.
        bias: divide by the number of observations, not by one less.
        ddof: divide by the number of observations less this.
        fweights: how often each observation counts, a whole number.
        aweights: the weight of each observation.
        dtype: of the result; by default at least float64.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.cov(await s.put(np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])))
    >>> asc.run(main)
    array([[ 1., -1.],
           [-1.,  1.]])

    Raises:
        ValueError: for more than two dimensions, and lengths that differ; at `await`, for negative weights.
        ZeroDivisionError: at `await`, for weights that sum to zero.
    """
    if ddof is not None and ddof != int(ddof):
        raise ValueError(f"cov: ddof must be an integer, not {ddof}")
    rows = _variables(x, y, rowvar, dtype)
    n, count = known_shape(rows, "cov")
    if not n:
        return zeros((0, 0), scheduler=runtime_of(x._value), device=x.device)
    correction = (0 if bias else 1) if ddof is None else ddof
    if fweights is not None or aweights is not None:
        found = _weighted(rows, fweights, aweights, correction)
    else:
        centred = rows - reductions.mean(rows, axis=1, keepdims=True)
        over = np.float64(1 / (count - correction) if count > correction else np.inf)
        found = reductions.matmul(centred, _conjugate(centred.mT)) * over
        found = found if found.dtype == rows.dtype else found.astype(rows.dtype)
    return squeeze(found, (0, 1)) if n == 1 else found


def _variables(x: Tensor, y: Tensor | None, rowvar: bool, dtype: Dtype) -> Tensor:
    """Both as rows in the dtype of the computation, in the memory order of NumPy's copy."""
    given = [x] if y is None else [x, y]
    if any(one.ndim > 2 for one in given):
        raise ValueError(f"cov: variables have one or two dimensions, not shapes {[one.shape for one in given]}")
    kind = np.result_type(*[one.dtype for one in given], np.float64) if dtype is None else dtype_of(dtype)
    rows: list[Tensor] = []
    for one in given:
        form = one._value.meta
        one = one if one.dtype == kind and form.contiguous else one.astype(kind)
        one = one.reshape((1, -1)) if one.ndim < 2 else one
        # As NumPy does: in columns a vector is still one variable; of the added ones a single row is, too.
        turned = not rowvar and (one.shape[0] != 1 if rows else len(form.shape) != 1)
        rows.append(one.mT if turned else one)
    return rows[0] if len(rows) == 1 or not rows[0].shape[0] else concat(rows, axis=0)


def _weighted(rows: Tensor, fweights: Tensor | None, aweights: Tensor | None, correction: int) -> Tensor:
    given = {name: w for name, w in (("fweights", fweights), ("aweights", aweights)) if w is not None}
    for name, one in given.items():
        if one.shape != rows.shape[1:]:
            raise ValueError(f"cov: {name} has shape {one.shape}, and there are {rows.shape[1]} observations")
    weights = op("observation_weights", *given.values(), names=tuple(given))
    total = reductions.sum(weights, dtype=np.result_type(rows.dtype, np.float64))
    centred = rows - reductions.sum(rows * weights, axis=1, keepdims=True) / total
    centred = centred if centred.dtype == rows.dtype else centred.astype(rows.dtype)
    free = total
    if correction and aweights is None:
        free = total - correction
    elif correction and aweights is not None:
        free = total - reductions.sum(weights * aweights) * correction / total
    free = where(elementwise.real(free) <= 0, 0, free)
    return reductions.matmul(centred, _conjugate((centred * weights).mT)) * (1 / free)


def _conjugate(x: Tensor) -> Tensor:
    """The conjugate; for real numbers no copy, since BLAS multiplies a matrix by its own transpose in another way."""
    return elementwise.conj(x) if x.dtype.kind == "c" else x


def corrcoef(x: Tensor, y: Tensor | None = None, /, rowvar: bool = True, *, dtype: Dtype = None) -> Tensor:
    """The correlation matrix of variables, (n, n): covariances over standard deviations.

    NaN for a constant variable. Complex variables have no gradient. Arguments and errors are those of `cov`.

    >>> x = await s.put(np.array([1.0, 2.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 4.0, 6.0]))
    >>> await asc.corrcoef(x, y)
    array([[1., 1.],
           [1., 1.]])
    """
    found = cov(x, y, rowvar, dtype=dtype)
    if not found.ndim:
        return found / found
    deviations = elementwise.sqrt(elementwise.real(linalg.diagonal(found)))
    found = found / expand_dims(deviations, axis=1) / deviations
    return op("clip_parts", found) if found.dtype.kind == "c" else elementwise.clip(found, -1, 1)


__all__ = [
    "bincount", "corrcoef", "cov", "digitize", "histogram", "median", "nanargmax", "nanargmin", "nanmax", "nanmean",
    "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "percentile", "quantile",
]  # fmt: skip

name_keywords(globals(), __all__)
