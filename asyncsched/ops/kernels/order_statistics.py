"""Statistics: the largest few, medians, quantiles, and reductions without NaN.

On a GPU all elements are sorted for an order statistic: CuPy's partition takes no NaN, and its quantiles support few of
the methods.

Reductions without NaN take the same steps as NumPy's, so that the bits are its own. If no element is left, NumPy's
functions warn, and CuPy's wait for the device to do so; these do neither. Integers have no NaN, and go to the plain
reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import ceil, floor, inf, nan, prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..declare import Cost, Inferred, Kernel, Meta, Op, Operand, Options, meta, operation, resolve, with_out
from ..rules import INTP, Known, as_meta, axis_of, lengths, no_axis, shrunk
from . import reduce as plain
from .checks import require_true
from .reduce import argsort, count_reduced, nothing, reduced

# Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996), 361: quantile q of
# n sorted numbers is at position n q + alpha + q (1 - alpha - beta), counted from 1.
_CONTINUOUS = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
# Others use the fraction of the way from the first position to the last. "linear" is (1, 1) of those above.
_BETWEEN_ENDS: dict[str, Callable[[float], float]] = {
    "linear": float,
    "lower": floor,
    "higher": ceil,
    "nearest": round,
    "midpoint": lambda at: (floor(at) + ceil(at)) / 2,
}
# Methods whose results are elements.
_TAKEN = ("inverted_cdf", "closest_observation", "lower", "higher", "nearest")


def place_of(n: int, q: float, method: str) -> tuple[int, int, float]:
    """The two positions among n sorted numbers, counted from 0, around quantile q, and the fraction between them."""
    if method in _BETWEEN_ENDS:
        at = _BETWEEN_ENDS[method]((n - 1) * q)
    elif method in _CONTINUOUS:
        alpha, beta = _CONTINUOUS[method]
        at = n * q + alpha + q * (1 - alpha - beta) - 1
    elif method == "inverted_cdf":
        at = ceil(n * q) - 1
    elif method == "averaged_inverted_cdf":
        at = n * q - 0.5 if n * q == floor(n * q) else ceil(n * q) - 1
    else:  # closest_observation: of two equally close ones, that whose position, counted from 1, is even
        at = n * q - 1.5
        at = 2 * floor(at / 2) + 1 if at == floor(at) else ceil(at)
    at = min(max(at, 0), n - 1)
    return floor(at), ceil(at), at - floor(at)


def parts_of(q: Any, form: Any, percent: bool) -> list[float]:
    """The fractions of the way from the first to the last, one by one."""
    return [float(part) / 100 if percent else float(part) for part in np.ravel(_quantiles(q, form)).tolist()]


def _quantiles(q: Any, form: Any) -> Any:
    """The form in which NumPy is given `q`: a number as it is, or an array of a shape and dtype."""
    return q if form is None else np.array(q, form[1]).reshape(form[0])


def median(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The middle of the sorted elements, or the mean of the middle two."""
    if xp is np:
        if not count_reduced(x.shape, axis):
            return nothing(np.median, x, axis, keepdims)
        return np.asarray(np.median(x, axis=axis, keepdims=keepdims))
    lines = _lines_in_order(xp, x, axis)
    n = lines.shape[-1]
    found = xp.mean(lines[..., max(n - 1, 0) // 2 : n // 2 + 1], axis=-1)
    return _shaped(xp, found.astype(_dtype(np.median, x)), lines, (), x, axis, keepdims)


def quantile(
    xp: Any, x: Any, weights: Any = None, *, q: Any, form: Any, percent: bool, axis: Any, keepdims: bool, method: Any
) -> Any:
    """The sorted elements at some fractions of the way, or interpolated between two."""
    function, given = np.percentile if percent else np.quantile, _quantiles(q, form)
    if xp is np:
        options = {"axis": axis, "keepdims": keepdims, "method": method, "weights": weights}
        return np.asarray(function(x, given, **options))
    if weights is not None:
        raise NotImplementedError("quantile: no weights on CUDA: use `t.to('cpu')`, or `await s.call(fn, t)`")
    lines = _lines_in_order(xp, x, axis)
    dtype, before = _dtype(partial(function, q=given, method=method), x), np.shape(given)
    found = [_lerp(lines, place_of(lines.shape[-1], part, method), dtype) for part in parts_of(q, form, percent)]
    stacked = xp.stack(found) if found else xp.empty((0, *lines.shape[:-1]), dtype)
    return _shaped(xp, stacked.reshape(before + lines.shape[:-1]), lines, before, x, axis, keepdims)


def _lerp(lines: Any, place: tuple[int, int, float], dtype: Any) -> Any:
    below, above, part = place
    first = lines[..., below].astype(dtype)
    return first + (lines[..., above].astype(dtype) - first) * part if part else first


def _axes(axis: Any, ndim: int) -> Known:
    """Axes, none negative. Unlike in sums, an array without axes has no first one."""
    return tuple(range(ndim)) if axis is None else normalize_axis_tuple(axis, ndim)


def _lines_in_order(xp: Any, x: Any, axis: Any) -> Any:
    """A copy in which the reduced axes are one, the last, and sorted."""
    axes = _axes(axis, x.ndim)
    kept = tuple([i for i in range(x.ndim) if i not in axes])
    lines = xp.transpose(x, kept + axes).copy(order="C")
    lines = lines.reshape((*lines.shape[: len(kept)], prod(lines.shape[len(kept) :])))
    lines.sort(axis=-1)
    return lines


def _shaped(xp: Any, found: Any, lines: Any, before: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """The result in its shape, with NaN for lines that contain one (sorting put it last)."""
    if lines.dtype.kind in "fc" and lines.shape[-1]:
        xp.copyto(found, nan, where=xp.isnan(lines[..., -1]))
    return found.reshape(before + reduced(x.shape, _axes(axis, x.ndim), {"keepdims": keepdims}))


def _dtype(function: Any, x: Any) -> Any:
    return np.asarray(function(np.ones((1,) * x.ndim, x.dtype))).dtype


def argpartition(xp: Any, x: Any, *, kth: Any, axis: int | None = -1) -> Any:
    """The indices that move some elements to their sorted place: smaller ones before, larger ones behind."""
    if xp is np:
        return np.argpartition(x, kth, axis=axis)
    return argsort(xp, x if axis is not None else x.reshape(-1), axis=-1 if axis is None else axis)


def topk(xp: Any, x: Any, *, k: int, axis: int, largest: bool, sorted: bool) -> Any:
    """The indices of the largest or smallest, in order, equal ones by index. Which of equal ones is not promised."""
    n, before = x.shape[axis], (slice(None),) * (axis % x.ndim)
    if xp is not np:
        order = argsort(xp, x, axis=axis, descending=largest)
        return xp.ascontiguousarray(order[(*before, slice(k))])
    found = np.argpartition(x, min(n - k if largest else k, n - 1), axis=axis) if n else np.zeros(x.shape, np.intp)
    found = found[(*before, slice(n - k, None) if largest else slice(k))]
    if sorted:
        found = np.sort(found, axis=axis)
        order = argsort(np, np.take_along_axis(x, found, axis), axis=axis, descending=largest)
        found = np.take_along_axis(found, order, axis)
    return np.ascontiguousarray(found)


# -- rules -------------------------------------------------------------------------------------------------------------


def median_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A copy is partitioned. To look for NaN, NumPy makes one more copy if the lines are not contiguous."""
    array = as_meta(operands[0])
    axes = _axes(options.get("axis"), len(array.bound))
    dtype = resolve(op, np)(np.ones((1,) * len(array.bound), array.dtype)).dtype
    result = meta(reduced(lengths(array), axes, options), dtype, array.contiguous)
    workspace = _partitioned(array, options.get("axis"), axes) + 2 * result.nbytes
    if array.dtype.kind in "fc" and not array.contiguous and 1 == len(axes) < len(array.bound):
        workspace += array.nbytes
    return Inferred(result, workspace)


def quantile_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A copy is partitioned, and the neighbours of each quantile are taken from it. With weights it is sorted."""
    dtype = resolve(op, np)(*map(shrunk, operands), **options).dtype
    array, axes = as_meta(operands[0]), _axes(options["axis"], len(lengths(operands[0])))
    if len(operands) > 1:
        _check_weights(array, lengths(operands[1]), options["axis"], axes)
    before = () if options["form"] is None else options["form"][0]
    shape = (*before, *reduced(lengths(array), axes, options))
    workspace = _partitioned(array, options["axis"], axes)
    if len(operands) > 1:  # indices, numbers, weights in order, and three times the running sums of the weights
        each = array.dtype.itemsize + as_meta(operands[1]).dtype.itemsize
        workspace += prod(array.bound) * (each + 4 * INTP.itemsize)
    elif options["method"] in _TAKEN:  # from one more copy, if the lines are not the first axis
        workspace += array.nbytes if len(axes) < len(array.bound) and axes != (0,) else 0
    else:
        workspace += 5 * prod(shape) * max(dtype.itemsize, array.dtype.itemsize)
    return Inferred(meta(shape, dtype, len(operands) == 1 or array.contiguous), workspace)


def argpartition_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Indices, computed line by line."""
    array, kth = as_meta(operands[0]), options["kth"]
    shape, axis = axis_of(lengths(array), options.get("axis"))
    n = shape[axis]
    for k in kth if isinstance(kth, tuple) else (kth,):
        if not -n <= k < n and 0 not in shape:
            raise ValueError(f"argpartition: kth={k} is out of bounds: the axis has {n} elements")
    return Inferred(meta(shape, INTP), _row(array, shape) + _line(array, shape, axis, INTP.itemsize))


def topk_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The indices of the chosen elements, taken from those of all."""
    array, k = as_meta(operands[0]), options["k"]
    no_axis(array.bound, op.name)
    axis = normalize_axis_index(options["axis"], len(array.bound))
    n = array.bound[axis]
    if not 0 <= k <= n:
        raise ValueError(f"topk: k={k} is out of range: the axis has {n} elements")
    result = meta((*array.bound[:axis], k, *array.bound[axis + 1 :]), INTP)
    # Beside the result: the indices of all; then, for the chosen ones, their numbers and their order.
    chosen = prod(result.bound) * (array.dtype.itemsize + INTP.itemsize * 2)
    whole = prod(array.bound) * INTP.itemsize
    lines = _row(array, array.bound) + _line(array, array.bound, axis, INTP.itemsize)
    return Inferred(result, max(whole, chosen) + lines)


def _check_weights(array: Meta, weights: tuple[int, ...], axis: Any, axes: Iterable[int]) -> None:
    along = array.bound if axis is None else tuple([array.bound[i] for i in axes])
    if weights not in (array.bound, along):
        raise ValueError(
            f"quantile: the weights have shape {weights}, but must have {array.bound}, or {along} along the axis"
        )


def _partitioned(array: Meta, axis: Any, axes: Known) -> int:
    """Bytes of a copy, of another one if several axes are merged first, and of a line."""
    last = tuple(range(len(array.bound) - len(axes), len(array.bound)))
    together = axis is not None and len(axes) > 1 and not (array.contiguous and tuple(sorted(axes)) == last)
    line = _line(array, array.bound, axes[0]) if len(axes) == 1 else 0
    return array.nbytes * (2 if together else 1) + line


def _row(array: Meta, shape: Known) -> int:
    """Bytes of all elements, if they are taken as one line and are not contiguous."""
    return array.nbytes if len(shape) == 1 and not array.contiguous else 0


def _line(array: Meta, shape: Known, axis: int, more: int = 0) -> int:
    """Bytes of one of several lines, if they are not contiguous, and of `more` for each element."""
    in_one_piece = axis == len(shape) - 1 and (array.contiguous or len(shape) == 1)
    return 0 if in_one_piece else shape[axis] * (array.dtype.itemsize + more)


_PLAIN = {op.name: op for op in plain.OPS}  # the same, with NaN


def filling(name: str, fill: float) -> Kernel:
    """The reduction of that name, applied to a copy with `fill` in place of NaN."""

    def reduce(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None, **options: Any) -> Any:
        return resolve(_PLAIN[name], xp)(_filled(xp, x, fill), axis=axis, keepdims=keepdims, out=out, **options)

    reduce.__name__ = f"nan{name}"
    return reduce


def extreme(name: str, fill: float) -> Kernel:
    """`max` or `min`, by the universal function that prefers the number to a NaN. CuPy cannot reduce by it."""
    ufunc = getattr(np, f"f{name}")

    def reduce(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
        if xp is np:
            return ufunc.reduce(x, axis=axis, keepdims=keepdims, out=out)
        found = getattr(xp, name)(_filled(xp, x, fill), axis=axis, keepdims=keepdims)
        if found.dtype.kind in "fc":
            xp.copyto(found, nan, where=xp.all(xp.isnan(x), axis=axis, keepdims=keepdims))
        return found

    reduce.__name__ = f"nan{name}"
    return reduce


def arg_extreme(name: str, fill: float) -> Kernel:
    """`argmax` or `argmin`. It raises for a line with nothing but NaN, which has no index."""
    reduce = filling(name, fill)

    def find(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
        if x.dtype.kind in "fc":
            text = "All-NaN slice encountered: fill such slices first, by `asc.where`"
            require_true(xp, xp.all(xp.any(~xp.isnan(x), axis=axis)), ValueError, text)
        return reduce(xp, x, axis=axis, keepdims=keepdims, out=out)

    find.__name__ = f"nan{name}"
    return find


def nanmean(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
    """The sum of the elements that are not NaN, over their number."""
    if x.dtype.kind not in "fc":
        return resolve(_PLAIN["mean"], xp)(x, axis=axis, keepdims=keepdims, out=out)
    count = xp.sum(~xp.isnan(x), axis=axis, dtype=xp.intp, keepdims=keepdims)
    return _quotient(xp, resolve(_PLAIN["sum"], xp)(_filled(xp, x, 0), axis=axis, keepdims=keepdims, out=out), count)


def nanvar(xp: Any, x: Any, *, axis: Any = None, correction: float = 0, keepdims: bool = False, out: Any = None) -> Any:
    """The sum of squared deviations without NaN, over the number of elements less the correction."""
    if x.dtype.kind not in "fc":
        return resolve(_PLAIN["var"], xp)(x, axis=axis, correction=correction, keepdims=keepdims, out=out)
    missing = xp.isnan(x)
    deviations = _filled(xp, x, 0)
    count = xp.sum(~missing, axis=axis, dtype=xp.intp, keepdims=True)
    total = resolve(_PLAIN["sum"], xp)
    mean = _quotient(xp, total(deviations, axis=axis, keepdims=True), count)
    xp.subtract(deviations, mean, out=deviations, casting="unsafe")
    xp.copyto(deviations, 0, where=missing)
    conjugate = deviations.conj() if x.dtype.kind == "c" else deviations
    squares = xp.multiply(deviations, conjugate, out=deviations).real
    found = total(squares, axis=axis, keepdims=keepdims, out=out)
    free = count.reshape(found.shape) - correction
    found = _quotient(xp, found, free)
    xp.copyto(found, nan, where=free <= 0)
    return found


def nanstd(xp: Any, x: Any, **options: Any) -> Any:
    """The root of the variance."""
    variance = xp.asarray(nanvar(xp, x, **options))
    return xp.sqrt(variance, out=variance)


def _filled(xp: Any, x: Any, fill: float) -> Any:
    if x.dtype.kind not in "fc":
        return x
    filled = x.copy(order="K")
    xp.copyto(filled, fill, where=xp.isnan(x))
    return filled


def _quotient(xp: Any, total: Any, count: Any) -> Any:
    total = xp.asarray(total)
    return xp.divide(total, count, out=total, casting="unsafe")


# -- rules -------------------------------------------------------------------------------------------------------------


def filling_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A reduction of a copy, made under a mask."""
    return _copied(plain.reduction_rule(op, operands, options), operands[0])


def nanmean_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The same, after counting the elements that are not NaN."""
    found = _copied(plain.mean_rule(op, operands, options), operands[0])
    return found._replace(workspace=found.workspace + prod(found.meta.bound) * 8)


def nanvar_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Workspace: the deviations, two masks, and the conjugates of complex numbers. For integers as `var`."""
    array = as_meta(operands[0])
    if array.dtype.kind not in "fc":
        return plain.variance_rule(op, operands, options)
    found = plain.mean_rule(op, operands, {name: options[name] for name in ("axis", "keepdims") if name in options})
    each = array.dtype.itemsize * (2 if array.dtype.kind == "c" else 1) + 2
    return found._replace(workspace=prod(array.bound) * each + prod(found.meta.bound) * 40)


def arg_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An index, found in a copy."""
    return _copied(plain.arg_reduction_rule(op, operands, options), operands[0])


def _copied(found: Inferred, operand: Operand) -> Inferred:
    array = as_meta(operand)
    copied = array.nbytes + prod(array.bound) if array.dtype.kind in "fc" else 0
    return found._replace(workspace=found.workspace + copied)


OPS = (
    operation(median, median_rule, "The middle of the sorted elements along the axes."),
    operation(quantile, quantile_rule, "The sorted elements at fractions of the way, along the axes."),
    operation(argpartition, argpartition_rule, "The indices that move the k-th elements to their sorted place."),
    operation(topk, topk_rule, "The indices of the largest elements along an axis, or the smallest."),
    with_out(filling("sum", 0), filling_rule, "The sum without NaN.", Cost.LONG_FUNCTION, launches=4),
    with_out(filling("prod", 1), filling_rule, "The product without NaN.", Cost.LONG_FUNCTION, launches=4),
    with_out(extreme("max", -inf), plain.reduction_rule, "The largest that is not NaN.", Cost.SCALAR, launches=7),
    with_out(extreme("min", inf), plain.reduction_rule, "The smallest that is not NaN.", Cost.SCALAR, launches=7),
    with_out(nanmean, nanmean_rule, "The mean without NaN.", Cost.LONG_FUNCTION, launches=8),
    with_out(nanvar, nanvar_rule, "The variance without NaN.", Cost.LONG_FUNCTION, launches=16),
    with_out(nanstd, nanvar_rule, "The standard deviation without NaN.", Cost.LONG_FUNCTION, launches=17),
    with_out(arg_extreme("argmax", -inf), arg_rule, "The index of the largest without NaN.", checks=True),
    with_out(arg_extreme("argmin", inf), arg_rule, "The index of the smallest without NaN.", checks=True),
)
