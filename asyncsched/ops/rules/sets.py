"""Rules of sets: what is unique, and what is among others. How many are unique depends on data."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..meta import Meta, Shape, meta
from ..op import Inferred, Op, Operand, Options
from .common import INTP, as_meta

_BYTES = np.dtype(np.uint8)


def unique_values(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Each element once: at most as many as there are."""
    array, elements = _flat(operands[0])
    return Inferred(meta((None,), array.dtype, True, (elements,)), 2 * elements * array.dtype.itemsize)


def unique_packed(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Each element once, with which one each element is, where each first is, and how often each is there: packed."""
    array, elements = _flat(operands[0])
    fixed, width, _ = unique_layout(array, options)
    nbytes = fixed + elements * width
    sorting = elements * (2 * array.dtype.itemsize + 3 * INTP.itemsize + 1)
    return Inferred(meta((None,), _BYTES, True, (nbytes,)), sorting + 2 * nbytes)


def unique_layout(array: Meta, options: Options) -> tuple[int, int, list[tuple[int, int, Shape | None, np.dtype[Any]]]]:
    """How the kernel packs: bytes in all cases, bytes for each that was found, and for each part where it is.

    That is bytes in front, bytes in front for each that was found, its shape if that is known, and its dtype: first of
    the values, then of the others in NumPy's order.
    """
    itemsize, others = array.dtype.itemsize, options["index"] + options["counts"]
    fixed = prod(array.bound) * INTP.itemsize if options["inverse"] else 0
    wide = itemsize if itemsize > INTP.itemsize else 0
    found: list[Any] = [(fixed, wide + place * INTP.itemsize, None, INTP) for place in range(others)]
    if options["inverse"]:
        found.insert(options["index"], (0, wide, array.shape, INTP))
    values = (0, 0, None, array.dtype) if wide else (fixed, others * INTP.itemsize, None, array.dtype)
    return fixed, itemsize + others * INTP.itemsize, [values, *found]


def isin(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A truth for each element of the first; both are joined and sorted, or a table is made."""
    first, second = as_meta(operands[0]), as_meta(operands[1])
    elements, itemsize = prod(first.bound) + prod(second.bound), np.result_type(first.dtype, second.dtype).itemsize
    return Inferred(meta(first.bound, np.dtype(bool)), elements * (4 * itemsize + 4 * INTP.itemsize))


def _flat(operand: Operand) -> tuple[Meta, int]:
    array = as_meta(operand)
    return array, prod(array.bound)
