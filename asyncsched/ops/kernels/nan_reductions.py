"""Reductions without NaN, in the same steps as NumPy's, so that the bits are its own.

If no element is left, NumPy's functions warn, and CuPy's wait for the device to do so; these do neither. Integers have
no NaN, and go to the plain reduction.
"""

from __future__ import annotations

from math import inf, nan, prod
from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Kernel, Op, Operand, Options, with_out
from ..halves import reducing
from ..rules import as_meta
from .checks import require_true
from .reduce import arg_reduction_rule, averaging, mean_rule, reduction_rule, variance_rule


def filling(name: str, fill: float) -> Kernel:
    """The reduction of that name, applied to a copy with `fill` in place of NaN."""

    def reduce(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None, **options: Any) -> Any:
        function = reducing(xp, name) if name in ("sum", "prod") else getattr(xp, name)
        return function(_filled(xp, x, fill), axis=axis, keepdims=keepdims, out=out, **options)

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

    return reduce


def arg_extreme(name: str, fill: float) -> Kernel:
    """`argmax` or `argmin`. It raises for a line with nothing but NaN, which has no index."""
    reduce = filling(name, fill)

    def find(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
        if x.dtype.kind in "fc":
            text = "All-NaN slice encountered: fill such slices first, by `asc.where`"
            require_true(xp, xp.all(xp.any(~xp.isnan(x), axis=axis)), ValueError, text)
        return reduce(xp, x, axis=axis, keepdims=keepdims, out=out)

    return find


def nanmean(xp: Any, x: Any, *, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
    """The sum of the elements that are not NaN, over their number."""
    if x.dtype.kind not in "fc":
        return averaging("mean")(xp, x, axis=axis, keepdims=keepdims, out=out)
    count = xp.sum(~xp.isnan(x), axis=axis, dtype=xp.intp, keepdims=keepdims)
    return _quotient(xp, reducing(xp, "sum")(_filled(xp, x, 0), axis=axis, keepdims=keepdims, out=out), count)


def nanvar(xp: Any, x: Any, *, axis: Any = None, correction: float = 0, keepdims: bool = False, out: Any = None) -> Any:
    """The sum of squared deviations without NaN, over the number of elements less the correction."""
    if x.dtype.kind not in "fc":
        return averaging("var")(xp, x, axis=axis, correction=correction, keepdims=keepdims, out=out)
    missing = xp.isnan(x)
    deviations = _filled(xp, x, 0)
    count = xp.sum(~missing, axis=axis, dtype=xp.intp, keepdims=True)
    total = reducing(xp, "sum")
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
    return _copied(reduction_rule(op, operands, options), operands[0])


def nanmean_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The same, after counting the elements that are not NaN."""
    found = _copied(mean_rule(op, operands, options), operands[0])
    return found._replace(workspace=found.workspace + prod(found.meta.bound) * 8)


def nanvar_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Workspace: the deviations, two masks, and the conjugates of complex numbers. For integers as `var`."""
    array = as_meta(operands[0])
    if array.dtype.kind not in "fc":
        return variance_rule(op, operands, options)
    found = mean_rule(op, operands, {name: options[name] for name in ("axis", "keepdims") if name in options})
    each = array.dtype.itemsize * (2 if array.dtype.kind == "c" else 1) + 2
    return found._replace(workspace=prod(array.bound) * each + prod(found.meta.bound) * 40)


def arg_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An index, found in a copy."""
    return _copied(arg_reduction_rule(op, operands, options), operands[0])


def _copied(found: Inferred, operand: Operand) -> Inferred:
    array = as_meta(operand)
    copied = array.nbytes + prod(array.bound) if array.dtype.kind in "fc" else 0
    return found._replace(workspace=found.workspace + copied)


OPS = (
    with_out(filling("sum", 0), filling_rule, "The sum without NaN.", Cost.LONG_FUNCTION, name="nansum", launches=4),
    with_out(
        filling("prod", 1), filling_rule, "The product without NaN.", Cost.LONG_FUNCTION, name="nanprod", launches=4
    ),
    with_out(
        extreme("max", -inf), reduction_rule, "The largest that is not NaN.", Cost.SCALAR, name="nanmax", launches=7
    ),
    with_out(
        extreme("min", inf), reduction_rule, "The smallest that is not NaN.", Cost.SCALAR, name="nanmin", launches=7
    ),
    with_out(nanmean, nanmean_rule, "The mean without NaN.", Cost.LONG_FUNCTION, launches=8),
    with_out(nanvar, nanvar_rule, "The variance without NaN.", Cost.LONG_FUNCTION, launches=16),
    with_out(nanstd, nanvar_rule, "The standard deviation without NaN.", Cost.LONG_FUNCTION, launches=17),
    with_out(
        arg_extreme("argmax", -inf), arg_rule, "The index of the largest without NaN.", name="nanargmax", checks=True
    ),
    with_out(
        arg_extreme("argmin", inf), arg_rule, "The index of the smallest without NaN.", name="nanargmin", checks=True
    ),
)
