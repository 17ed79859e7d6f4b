"""Counts of elements by value or by bin, the weights of observations, and sets: unique elements and membership."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ..declare import Cost, Meta, meta, operation, pack_found, packed_op, with_out
from ..op import Inferred, Op, Operand, Options, resolve
from ..rules import INTP, Known, as_meta, cast_bytes, copies, lengths, sample
from . import releasing_gil
from .checks import require_true
from .elementwise import add_at, copy_rule

LEAST_COUNTS = 8192  # 64 KiB, charged however few elements there are: small numbers need no `maxlength`
_BLOCK = 65_536  # elements that NumPy's histogram reads at a time


def bincount(xp: Any, x: Any, weights: Any = None, *, minlength: int = 0, maxlength: int | None = None) -> Any:
    """How often each number occurs, or the sum of its weights. NumPy's own function would hold the GIL throughout."""
    largest = int(x.max()) if x.size else -1
    most = most_counts(x.size, x.dtype, minlength, maxlength)
    if largest >= most:
        raise ValueError(
            f"bincount: the largest number is {largest:,}, and {most:,} counts were charged: give `maxlength=`, at"
            f" least {largest + 1}"
        )
    if xp is not np or x.size < releasing_gil.LARGE:
        return xp.bincount(x, weights, minlength=minlength)
    if x.min() < 0:
        raise ValueError("'list' argument must have no negative elements")  # NumPy's message
    found = np.zeros(max(minlength, largest + 1), np.intp if weights is None else np.float64)
    for part in releasing_gil.pieces(x.size, 1):
        np.add.at(found, x[part].astype(np.intp, copy=False), 1 if weights is None else weights[part])
    return found


def most_counts(elements: int, dtype: np.dtype[Any], minlength: int, maxlength: int | None) -> int:
    """How many counts are charged: those of `maxlength`, or as many as there are elements or numbers of one byte."""
    if maxlength is not None:
        return maxlength
    most = {"b": 2, "i": 1 << 7, "u": 1 << 8}[dtype.kind] if dtype.itemsize == 1 else max(elements, LEAST_COUNTS)
    return max(most, minlength)


def digitize(xp: Any, x: Any, bins: Any, *, right: bool = False) -> Any:
    """The bin that each element falls into. CuPy's function checks for no error."""
    if xp is not np:
        up, down = xp.all(bins[1:] >= bins[:-1]), xp.all(bins[1:] <= bins[:-1])
        require_true(xp, up | down, ValueError, "bins must be monotonically increasing or decreasing")
    x = xp.asarray(x)
    if xp is np and bins.size and bins[0] > bins[-1]:  # NumPy would make another array of its result
        found = np.asarray(np.digitize(x, bins[::-1], right))
        return np.subtract(len(bins), found, out=found)
    return xp.digitize(x, bins, right)


def histogram(
    xp: Any, x: Any, *arrays: Any, bins: int | None, low: Any, high: Any, density: bool, weighted: bool
) -> tuple[Any, Any]:
    """The number of elements in each bin, or the sum of their weights; and the edges of the bins."""
    edges: Any = arrays[0] if bins is None else bins
    weights = arrays[-1] if weighted else None
    x = x.astype(np.uint8) if x.dtype == bool else x
    span = None if low is None else (low, high)
    if xp is np:
        return np.histogram(x, edges, span, density=density, weights=weights)
    if bins is not None:
        edges = _edges(xp, x, bins, span)
    else:
        text = "`bins` must increase monotonically, when an array"
        require_true(xp, xp.all(edges[1:] >= edges[:-1]), ValueError, text)
    found = _counts(xp, x, edges, weights)
    return (found / xp.diff(edges).astype(float) / found.sum() if density else found), edges


def _edges(xp: Any, x: Any, bins: int, span: Any) -> Any:
    """The edges of bins of one width, from the least element to the largest. On a GPU they never come to the host."""
    dtype = _edges_dtype(x.dtype, span)
    first, last = [xp.asarray(end, dtype=dtype) for end in span or ((x.min(), x.max()) if x.size else (0, 1))]
    text = "histogram: the range of the elements is not finite: give one by `range=`"
    require_true(xp, xp.isfinite(first) & xp.isfinite(last), ValueError, text)
    half = xp.where(first == last, 0.5, 0).astype(dtype)
    first, last = first - half, last + half
    edges = first + xp.arange(bins + 1).astype(dtype) * ((last - first) / bins)
    edges[-1] = last
    return edges


def _counts(xp: Any, x: Any, edges: Any, weights: Any) -> Any:
    """The counts or sums of weights. The last bin includes its right edge. Elements in no bin go to an extra one."""
    n = len(edges) - 1
    at = xp.where(x == edges[-1], n - 1, xp.searchsorted(edges, x, side="right") - 1)
    at = xp.where((x >= edges[0]) & (x <= edges[-1]), at, n)
    if weights is None:
        found = xp.zeros(n + 1, np.int64)
        xp.add.at(found, at, 1)
        return found[:n]
    sums = xp.zeros(n + 1, np.result_type(weights.dtype, np.float64))
    add_at(xp, sums, at, weights.astype(sums.dtype))
    return sums[:n].astype(weights.dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


def bincount_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A count for each number up to the largest, which depends on the data. The most that it may be is charged."""
    array, shapes = as_meta(operands[0]), [lengths(operand) for operand in operands]
    if len(shapes[0]) != 1:
        raise ValueError(f"bincount: the tensor must have one dimension, not shape {shapes[0]}: use `t.flatten()`")
    dtype = resolve(op, np)(*map(sample, operands)).dtype  # raises for dtypes other than integers
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"bincount: the weights have shape {shapes[1]}, but the numbers {shapes[0]}")
    if options["minlength"] < 0:
        raise ValueError("bincount: 'minlength' must not be negative")
    elements, maxlength = array.bound[0], options.get("maxlength")
    if maxlength is not None and maxlength < options["minlength"]:
        raise ValueError(f"bincount: maxlength={maxlength} is less than minlength={options['minlength']}")
    most = most_counts(elements, array.dtype, options["minlength"], maxlength)
    copied = sum(
        not one.contiguous or one.dtype != wanted
        for one, wanted in zip(map(as_meta, operands), (INTP, np.dtype(np.float64)), strict=False)
    )
    at_once = elements if elements < releasing_gil.LARGE else releasing_gil.PIECE
    return Inferred(meta((None,), dtype, True, (most,)), copied * at_once * 8)


def digitize_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An index for each element. Workspace: copies of both operands in one dtype."""
    array, bins = as_meta(operands[0]), as_meta(operands[1])
    if "c" in (array.dtype.kind, bins.dtype.kind):
        raise TypeError("digitize: complex numbers have no order: use `asc.abs` or `asc.real`")
    if len(bins.bound) != 1:
        raise ValueError(f"digitize: the bins must have one dimension, not shape {bins.bound}")
    dtype = np.result_type(array.dtype, bins.dtype)
    copied = cast_bytes(array, dtype) or (0 if array.contiguous else array.nbytes)
    result, workspace = meta(array.bound, INTP), copied + bins.bound[0] * (dtype.itemsize + 8)
    return Inferred(result, workspace, on_card=workspace + result.nbytes)


def histogram_parts(name: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[list[Meta], int]:
    """Counts and edges. Workspace: blocks of elements, and copies of operands that are not contiguous."""
    array, bins = as_meta(operands[0]), options["bins"]
    span = None if options["low"] is None else (options["low"], options["high"])
    if array.dtype.kind == "c":
        raise TypeError("histogram: complex numbers have no order: use `asc.abs` or `asc.real`")
    weights = as_meta(operands[-1]) if options["weighted"] else None
    if weights is not None and weights.bound != array.bound:
        raise ValueError(f"histogram: the weights have shape {weights.bound}, but the elements {array.bound}")
    if bins is None:
        edges = as_meta(operands[1])
        if len(edges.bound) != 1 or not edges.bound[0]:
            raise ValueError(f"histogram: the edges of the bins must have one dimension, not shape {edges.bound}")
        if weights is not None and weights.dtype == bool and weights.nbytes:  # NumPy refuses to sum them
            raise TypeError("histogram: bool weights cannot be summed between given edges: use `w.astype(asc.int64)`")
    elif bins < 1:
        raise ValueError(f"histogram: bins={bins} must be positive")
    else:
        edges = meta((bins + 1,), _edges_dtype(array.dtype, span))
    dtype = INTP if weights is None else weights.dtype
    if options["density"]:
        dtype = np.result_type(dtype, np.float64)
    counts = meta((edges.bound[0] - 1,), dtype)
    workspace = sum(a.nbytes for a in (array, weights) if a is not None and not a.contiguous)
    workspace += prod(array.bound) if array.dtype == bool else 0
    each = _element_bytes(array.dtype, None if bins is None else edges.dtype, weights.dtype if weights else None, span)
    workspace += min(prod(array.bound), _BLOCK) * each + 3 * (counts.nbytes + edges.nbytes)
    return [counts, edges], workspace


def _element_bytes(dtype: np.dtype[Any], edges: np.dtype[Any] | None, weights: np.dtype[Any] | None, span: Any) -> int:
    """Bytes for each element of a block: the sorted elements, or the bin of each."""
    weight = weights.itemsize if weights else 0
    if edges is None:
        return 2 * dtype.itemsize + (2 * INTP.itemsize + 2 * weight if weights else 0)
    some = dtype.itemsize + weight if span else 0  # the elements in the range
    return 2 * edges.itemsize + INTP.itemsize + 10 + (edges.itemsize if edges != dtype else 0) + some


def _edges_dtype(dtype: np.dtype[Any], span: Any) -> np.dtype[Any]:
    """NumPy's dtype for edges. Raises for an invalid range."""
    elements = np.ones(1, np.uint8 if dtype.kind == "b" else dtype)
    return np.histogram_bin_edges(elements, 1, span).dtype


def observation_weights(xp: Any, *weights: Any, names: tuple[str, ...]) -> Any:
    """One weight for each observation: the product of the given weights, which are checked."""
    found = weights[0].astype(np.float64)
    if names[0] == "fweights":
        require_true(xp, xp.all(found == xp.rint(found)), TypeError, "fweights must be integer")
    for given, name in zip(weights, names, strict=True):
        require_true(xp, ~xp.any(given < 0), ValueError, f"{name} cannot be negative")
    for more in weights[1:]:
        found *= more
    require_true(xp, xp.sum(found) != 0, ZeroDivisionError, "Weights sum to zero, can't be normalized")
    return found


def clip_parts(xp: Any, x: Any, *, out: Any = None) -> Any:
    """Complex numbers with both parts limited to the range from -1 to 1."""
    out = xp.empty_like(x) if out is None else out
    xp.clip(x.real, -1, 1, out=out.real)
    xp.clip(x.imag, -1, 1, out=out.imag)
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def observation_weights_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A float64 number for each observation. Workspace: masks, and rounded frequencies."""
    result = meta(lengths(operands[0]), np.dtype(np.float64))
    rounded = result.nbytes if "fweights" in options["names"] else 0
    return Inferred(result, rounded + result.bound[0])


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


_BINS = "The number of elements in each bin, and the edges of the bins."
_PACKED = "The unique elements, their first indices, the inverse indices and the counts, packed."


OPS = (
    operation(bincount, bincount_rule, "How often each number occurs."),
    operation(digitize, digitize_rule, "The bin that each element falls into.", checks=True),
    packed_op(histogram, histogram_parts, _BINS, checks=True),
    operation(observation_weights, observation_weights_rule, "The weights of `cov`.", checks=True),
    with_out(clip_parts, copy_rule, "Complex numbers with both parts between -1 and 1.", Cost.LONG_FUNCTION),
    operation(unique_values, unique_values_rule, "The unique elements."),
    operation(unique_packed, unique_packed_rule, _PACKED),
    operation(isin, isin_rule, "Whether each element is among others."),
)
