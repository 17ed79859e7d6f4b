"""Set functions: unique elements and membership."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..declare import Inferred, Meta, Op, Operand, Options, meta
from ..packed import pack_found
from ..rules import INTP, Known, as_meta, copies


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
    Op("unique_values", unique_values, unique_values_rule, doc="The unique elements."),
    Op("unique_packed", unique_packed, unique_packed_rule, doc=_PACKED),
    Op("isin", isin, isin_rule, doc="Whether each element is among others."),
)
