"""Order statistics without a full sort: medians, quantiles, the largest few.

On a GPU all elements are sorted: CuPy's partition takes no NaN, and its quantiles support few of the methods.

Set functions: unique elements and membership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import ceil, floor, nan, prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ..declare import Inferred, Meta, Op, Operand, Options, meta
from ..op import resolve
from ..packed import pack_found
from ..rules import INTP, Known, as_meta, axis_of, copies, lengths, no_axis, shrunk
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


_PARTITION = "The indices that move the k-th elements to their sorted place."


def unique_values(xp: Any, x: Any) -> Any:
    """The unique elements; each NaN counts as different."""
    return np.unique_values(x) if xp is np else xp.unique(x, equal_nan=False)


def unique_packed(xp: Any, x: Any, *, index: bool, inverse: bool, counts: bool) -> Any:
    """The unique elements, the inverse indices, the first indices and the counts: packed."""
    kinds = {"return_index": index, "return_inverse": inverse, "return_counts": counts}
    values, *others = xp.unique(x, equal_nan=False, **kinds)
    if inverse:
        others.insert(0, others.pop(index))
    wide = values.dtype.itemsize > others[0].dtype.itemsize
    return pack_found(xp, [values, *others] if wide else [*others, values])


def isin(xp: Any, x: Any, y: Any, *, invert: bool) -> Any:
    """Whether each element of `x` is among those of `y`."""
    return xp.isin(xp.asarray(x), xp.asarray(y), invert=invert)


# -- rules -------------------------------------------------------------------------------------------------------------


_BYTES = np.dtype(np.uint8)


def unique_values_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The unique elements; as many as there may be."""
    array, elements, most = _flat(operands[0])
    result, used = meta((None,), array.dtype, True, (most,)), _found_bytes(array)
    # CuPy sorts in a copy of the copy.
    on_card = max(used - result.nbytes, elements * (2 * array.dtype.itemsize + 1))
    return Inferred(result, used - result.nbytes, on_card=on_card)


def _found_bytes(array: Meta) -> int:
    """The most bytes of NumPy's unique elements: a copy of all, and a hash table, or the copy sorted and two masks.

    A table has a node for each unique element, and one or two places in a list. NumPy has none for floating-point
    numbers, before 2.3 none at all, and before 2.4 none for complex numbers: the larger is charged.
    """
    array, elements, most = _flat(array)
    nodes = _nodes_bytes(array)
    table = nodes + most * 2 * 8 if nodes else 0
    found = most * array.dtype.itemsize
    return elements * array.dtype.itemsize + max(table + found, elements + max(found, elements))


def _nodes_bytes(array: Meta) -> int:
    """The most bytes of the nodes of NumPy's hash table: an element, two pointers, and what the allocator adds."""
    return 0 if array.dtype.kind == "f" else _flat(array)[2] * 16 * -(-(array.dtype.itemsize + 24) // 16)


def unique_packed_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The unique elements, the inverse indices, the first indices and the counts: packed."""
    array, elements, most = _flat(operands[0])
    itemsize, others = array.dtype.itemsize, options["index"] + options["counts"]
    fixed = elements * INTP.itemsize if options["inverse"] else 0  # bytes; and bytes for each unique element:
    width = itemsize + others * INTP.itemsize

    def part(start: int, before: int, shape: Known | None, dtype: np.dtype[Any]) -> Options:
        return {"fixed": fixed, "width": width, "start": start, "before": before, "shape": shape, "dtype": dtype}

    wide = itemsize if itemsize > INTP.itemsize else 0  # the values come first in the buffer
    parts = [part(fixed, wide + place * INTP.itemsize, None, INTP) for place in range(others)]
    if options["inverse"]:
        parts.insert(options["index"], part(0, wide, array.bound, INTP))
    values = part(0, 0, None, array.dtype) if wide else part(fixed, others * INTP.itemsize, None, array.dtype)
    nbytes = fixed + most * width
    used = _sorted_bytes(elements, most, itemsize, **options)
    workspace, result = max(used, 2 * nbytes) - nbytes, meta((None,), _BYTES, True, (nbytes,))
    on_card = max(workspace, elements * (2 * itemsize + 3 * INTP.itemsize + 1))
    return Inferred(result, workspace, parts=[values, *parts], on_card=on_card)


def _sorted_bytes(elements: int, most: int, itemsize: int, *, index: bool, inverse: bool, counts: bool) -> int:
    """The most bytes of NumPy's `unique` with indices or counts: a copy, a mask of the first ones, and its results."""
    used = elements * (itemsize + 1) + max(most * itemsize, elements)  # the mask is made of another one
    if index or inverse:  # the order, and the elements in order
        used += elements * (INTP.itemsize + itemsize)
    wide = most * (index + 2 * counts) + elements * 2 * inverse  # with the numbers of all, and where the first ones are
    return used + wide * INTP.itemsize


def isin_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A bool for each element of the first operand. NumPy sorts both operands, and then both as one.

    Of a hash table of the second the allocator keeps the nodes, which are too small and too many to be given back.
    Booleans it looks up in a table, by their places and three masks. (Integers, too, if they are close together: this
    takes less.)
    """
    (first, count, _), (second, others, _) = map(_flat, operands)
    most, rest = [min(prod(one.bound), 1 << 8 * one.dtype.itemsize) for one in (first, second)]  # NaNs are equal here
    result, itemsize = meta(first.bound, np.dtype(bool)), np.result_type(first.dtype, second.dtype).itemsize
    if first.dtype == second.dtype == bool:
        used = others + 4 * count + max(others, count) * (1 + INTP.itemsize)
        return Inferred(result, copies(operands) + used)
    unique = _sorted_bytes(count, most, first.dtype.itemsize, index=False, inverse=True, counts=False)
    kept = most * first.dtype.itemsize + count * INTP.itemsize
    together = rest * second.dtype.itemsize + (most + rest) * (2 * itemsize + INTP.itemsize + 3)
    later = max(_found_bytes(second), _nodes_bytes(second) + together)
    return Inferred(result, copies(operands) + max(unique, kept + later))


def _flat(operand: Operand) -> tuple[Meta, int, int]:
    """An operand, its elements, and how many of them may differ. (Each NaN counts as different.)"""
    array = as_meta(operand)
    elements, small = prod(array.bound), array.dtype.kind in "biu" and array.dtype.itemsize < 4
    differing = 2 if array.dtype == bool else 1 << 8 * array.dtype.itemsize
    return array, elements, min(elements, differing) if small else elements


_PACKED = "The unique elements, their first indices, the inverse indices and the counts, packed."


OPS = (
    Op("median", median, median_rule, doc="The middle of the sorted elements along the axes."),
    Op("quantile", quantile, quantile_rule, doc="The sorted elements at fractions of the way, along the axes."),
    Op("argpartition", argpartition, argpartition_rule, doc=_PARTITION),
    Op("topk", topk, topk_rule, doc="The indices of the largest elements along an axis, or the smallest."),
    Op("unique_values", unique_values, unique_values_rule, doc="The unique elements."),
    Op("unique_packed", unique_packed, unique_packed_rule, doc=_PACKED),
    Op("isin", isin, isin_rule, doc="Whether each element is among others."),
)
