"""Set functions: unique elements and membership."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..declare import Inferred, Meta, Op, Operand, Options, meta
from ..packed import pack_found
from ..rules import INTP, Known, as_meta


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
    """The unique elements. NumPy copies all, and puts them into a hash table, or sorts them and marks the first ones.

    A table has a node for each unique element, and one or two places in a list.
    """
    array, elements, most = _flat(operands[0])
    itemsize = array.dtype.itemsize
    node = 16 * -(-(itemsize + 24) // 16)  # with two pointers and what the allocator adds
    table = most * (node + 2 * 8)
    work = elements * itemsize + max(table, elements * (itemsize + 1))
    return Inferred(meta((None,), array.dtype, True, (most,)), work)


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
    nbytes, sorting = fixed + most * width, elements * (2 * itemsize + 3 * INTP.itemsize + 1)
    return Inferred(meta((None,), _BYTES, True, (nbytes,)), max(sorting, nbytes), parts=[values, *parts])


def isin_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A bool for each element of the first operand. Both operands are joined and sorted, or a table is made."""
    first, second = as_meta(operands[0]), as_meta(operands[1])
    elements, itemsize = prod(first.bound) + prod(second.bound), np.result_type(first.dtype, second.dtype).itemsize
    return Inferred(meta(first.bound, np.dtype(bool)), elements * (4 * itemsize + 4 * INTP.itemsize))


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
