"""Reductions along axes, running sums, sorting."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..declare import Cost, Kernel, Op, with_out
from ..rules import reduce as rules
from . import releasing_gil
from .elementwise import into


def count_nonzero(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
    """How many elements are not zero."""
    return xp.sum(x.astype(bool, copy=False), axis=axis, dtype=xp.intp, keepdims=keepdims, out=out)


def averaging(name: str) -> Kernel:
    """`mean`, `var` or `std`; in half precision they round twice if given `out`, so there it is filled afterwards."""

    def average(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None, **options: Any) -> Any:
        if "correction" in options:
            options = {"ddof": options["correction"]}
        function = getattr(xp, name)
        if out is None or x.dtype != xp.float16:
            return function(x, axis=axis, keepdims=keepdims, out=out, **options)
        return into(xp, out, function(x, axis=axis, keepdims=keepdims, **options))

    return average


def cumulative(name: str) -> Kernel:
    """`cumulative_sum` or `cumulative_prod`, written with the older `cumsum` or `cumprod`."""
    np_function = getattr(np, name)

    def cumulate(
        xp: Any, x: Any, *, axis: Any = None, dtype: Any = None, include_initial: bool = False, out: Any = None
    ) -> Any:
        axis = 0 if axis is None else axis
        function = partial(releasing_gil.accumulate, np_function) if xp is np else getattr(xp, name)
        if not include_initial:
            return function(x, axis=axis, dtype=dtype, out=out)
        before = (slice(None),) * (axis % x.ndim)
        first = 0 if name == "cumsum" else 1
        if out is None:
            rest = function(x, axis=axis, dtype=dtype)
            shape = [1 if i == axis % x.ndim else length for i, length in enumerate(x.shape)]
            return xp.concatenate([xp.full_like(rest, first, shape=shape), rest], axis=axis)
        function(x, axis=axis, dtype=dtype, out=out[(*before, slice(1, None))])
        out[(*before, 0)] = first
        return out

    return cumulate


def sort(xp: Any, x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True, out: Any = None) -> Any:
    """In order; `descending` keeps equal elements in their order, too."""
    kind = "stable" if stable else None
    if descending:
        result = xp.flip(xp.sort(xp.flip(x, axis), axis=axis, kind=kind), axis)
        return result.copy(order="K") if out is None else into(xp, out, result)
    if out is None:
        return xp.sort(x, axis=axis, kind=kind)
    if out is not x:
        into(xp, out, x)
    out.sort(axis=axis, kind=kind)
    return out


def argsort(xp: Any, x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The indices that sort."""
    kind = "stable" if stable else None
    if not descending:
        return xp.argsort(x, axis=axis, kind=kind)
    flipped = xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind=kind), axis)
    return x.shape[axis] - 1 - flipped


OPS = (
    with_out("all", rules.reduction, "Whether all elements along the axes are true (not zero).", Cost.SHORT),
    with_out("any", rules.reduction, "Whether any element along the axes is true (not zero).", Cost.SHORT),
    with_out("max", rules.reduction, "The largest element along the axes.", Cost.SHORT),
    with_out("min", rules.reduction, "The smallest element along the axes.", Cost.SHORT),
    with_out("prod", rules.reduction, "The product along the axes.", Cost.FUNCTION),
    with_out("sum", rules.reduction, "The sum along the axes.", Cost.SHORT),
    with_out(averaging("mean"), rules.mean, "The mean along the axes.", Cost.SCALAR, name="mean"),
    with_out(
        averaging("std"), rules.variance, "The standard deviation along the axes.", Cost.LONG_FUNCTION, name="std"
    ),
    with_out(averaging("var"), rules.variance, "The variance along the axes.", Cost.LONG_FUNCTION, name="var"),
    with_out(count_nonzero, rules.count_nonzero, "How many elements are not zero.", Cost.SCALAR),
    with_out("argmax", rules.arg_reduction, "Where the first largest element is.", Cost.SHORT),
    with_out("argmin", rules.arg_reduction, "Where the first smallest element is.", Cost.SHORT),
    with_out(cumulative("cumsum"), rules.cumulative, "Running sums.", Cost.SCALAR, name="cumulative_sum"),
    with_out(cumulative("cumprod"), rules.cumulative, "Running products.", Cost.LONG_FUNCTION, name="cumulative_prod"),
    Op("diff", "diff", rules.diff, doc="The n-th difference of neighbours along an axis."),
    with_out(sort, rules.sort, "The elements in order along an axis.", Cost.SORTING, inplace=True),
    Op("argsort", argsort, rules.argsort, doc="The indices that sort along an axis.", element_seconds=Cost.SORTING),
)
