"""Elementwise operations. Most are one universal function of NumPy and CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..declare import Cost, Meta, elementwise, in_place, meta, operation
from ..op import Bound, Cut, Inferred, Op, Operand, Options, ScalarCode, resolve
from ..rules import all_contiguous, as_meta, broadcast, cast_bytes, int_bounds, lengths, same_as, sample, view_rule


def copy(xp: Any, x: Any, *, out: Any = None) -> Any:
    """A copy in the layout of `x`."""
    return x.copy(order="K") if out is None else into(xp, out, x)


def native_copy(xp: Any, x: Any, *, out: Any = None) -> Any:
    """A copy in the layout of `x` and in this machine's byte order."""
    if out is None and not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return copy(xp, x, out=out)


def astype(xp: Any, x: Any, *, dtype: Any, out: Any = None) -> Any:
    """A copy in another dtype."""
    return x.astype(dtype) if out is None else into(xp, out, x)


def where(xp: Any, condition: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """`where`. Scalars are cast without a check, as NumPy does."""
    if out is None:
        return xp.where(condition, x, y)
    into(xp, out, _cast(xp, y, out.dtype))
    xp.copyto(out, _cast(xp, x, out.dtype), where=condition.astype(bool, copy=False), casting="unsafe")
    return out


def kept(xp: Any, values: Any, mask: Any, *, out: Any = None) -> Any:
    """Floating-point values where the mask is true, and 0 elsewhere, even where they are infinite or NaN.

    Multiplies their bits by 0 or 1: multiplying the numbers would leave NaN, and `where` takes ten times as long.
    """
    keep = getattr(xp, "kept", None)  # of a namespace that records the operations on one element
    if keep is not None:
        return keep(values, mask, out=out)
    bits = f"i{values.dtype.itemsize}"
    out = xp.empty(values.shape, values.dtype) if out is None else out
    if values.dtype.itemsize > 8:  # no integer is that long
        into(xp, out, values)
        xp.copyto(out, 0, where=~mask)
    else:
        xp.multiply(values.view(bits), mask, out=out.view(bits))
    return out


def real(xp: Any, x: Any) -> Any:
    """The real part: a view."""
    return x.real if x.dtype.kind == "c" else x[...]


def into(xp: Any, out: Any, value: Any) -> Any:
    """Fill `out` with a value or an array, cast as by assignment."""
    xp.copyto(out, value, casting="unsafe")
    return out


def add_at(xp: Any, out: Any, place: Any, values: Any) -> None:
    """`xp.add.at`. CuPy's takes no complex numbers, so it adds up their parts."""
    both = xp is not np and out.dtype.kind == "c"
    for some, added in ((out.real, values.real), (out.imag, values.imag)) if both else ((out, values),):
        xp.add.at(some, place, added)


def _cast(xp: Any, value: Any, dtype: Any) -> Any:
    return value if hasattr(value, "dtype") else xp.asarray(value).astype(dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


def ufunc_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A universal function: NumPy's own choice of loop, the broadcast shape, K-order."""
    function = getattr(np, op.kernel)  # type: ignore[arg-type]  # operations of this rule name their ufunc
    resolved = function.resolve_dtypes((*[_promoted_as(operand) for operand in operands], None))
    result = meta(broadcast(operands), resolved[-1], all_contiguous(operands))
    number = resolved[1] if len(operands) == 2 and type(operands[1]) in (int, float) else None
    return Inferred(result, int_bounds=int_bounds(operands, resolved), number=number)


def comparison_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A comparison: as any ufunc, but it accepts every Python integer, however large."""
    return ufunc_rule(op, operands, options)._replace(int_bounds=None)


def by_sample_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Elementwise without a ufunc to ask: the dtype is that of a sample's result."""
    dtype = resolve(op, np)(*[sample(operand) for operand in operands], **options).dtype
    return Inferred(meta(broadcast(operands), dtype, all_contiguous(operands)))


def round_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """As by a sample. NumPy rounds the parts of complex numbers one after the other, each in an array of its own."""
    found = by_sample_rule(op, operands, options)
    return found._replace(workspace=found.meta.nbytes // 2 if found.meta.dtype.kind == "c" else 0)


def clip_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`clip` with both limits."""
    found = by_sample_rule(op, operands, options)
    return found._replace(int_bounds=int_bounds(operands, (found.meta.dtype,) * len(operands)))


def astype_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Another dtype, or a copy in the same one."""
    array = as_meta(operands[0])
    return Inferred(meta(array.shape, np.dtype(options["dtype"]), array.contiguous))


def copy_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The operand's own shape and dtype."""
    return same_as(operands[0])


def imag_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The imaginary part: a view of complex arrays, new zeros for others."""
    array = as_meta(operands[0])
    if array.dtype.kind == "c":
        return view_rule(op, operands, options)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"imag: dtype {array.dtype} is not numeric")
    return Inferred(meta(array.shape, array.dtype, array.contiguous), owned=array.nbytes)


def tril_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A triangle: `where` under a mask of the last two dimensions."""
    array = as_meta(operands[0])
    if not array.shape:
        raise TypeError(f"{op.name}: the operand needs at least one dimension")
    shape = lengths(array)
    mask = meta((shape * 2)[-2:], np.dtype(bool))
    return Inferred(meta(broadcast((mask, array)), array.dtype, array.contiguous), mask.nbytes)


def where_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Elements of the second or third operand. Weak scalars are cast without a check, as NumPy does."""
    found = by_sample_rule(op, operands, options)
    condition = as_meta(operands[0])
    return found._replace(workspace=cast_bytes(condition, np.dtype(bool)))


def _promoted_as(operand: Operand) -> Any:
    if isinstance(operand, (Meta, np.generic)):
        return operand.dtype
    return np.dtype(bool) if type(operand) is bool else type(operand)


# -- declarations ------------------------------------------------------------------------------------------------------


def _ufunc(
    name: str, doc: str, cost: Cost | None = None, *, ufunc: str = "", code: str = "", bound: Bound | None = None
) -> Op:
    """A universal function, by its name in NumPy and CuPy. `code` and `bound` are those of `ScalarCode`."""
    scalar = ScalarCode(code, bound) if code else None
    return in_place(ufunc or name, ufunc_rule, doc, cost, name=name, scalar_code=scalar)


OPS = (
    _ufunc("abs", "The magnitude, a real number.", Cost.VECTOR, ufunc="absolute", code="abs({0})"),
    _ufunc("acos", "The inverse cosine, in radians.", Cost.LONG_FUNCTION, ufunc="arccos"),
    _ufunc("acosh", "The inverse hyperbolic cosine.", Cost.LONG_FUNCTION, ufunc="arccosh"),
    _ufunc("add", "The sum x1 + x2.", Cost.VECTOR, code="{0} + {1}"),
    _ufunc("asin", "The inverse sine, in radians.", Cost.LONG_FUNCTION, ufunc="arcsin"),
    _ufunc("asinh", "The inverse hyperbolic sine.", Cost.FUNCTION, ufunc="arcsinh"),
    _ufunc("atan", "The inverse tangent, in radians.", Cost.FUNCTION, ufunc="arctan"),
    _ufunc("atan2", "The angle of the point (x2, x1), in radians.", Cost.LONG_FUNCTION, ufunc="arctan2"),
    _ufunc("atanh", "The inverse hyperbolic tangent.", Cost.LONG_FUNCTION, ufunc="arctanh"),
    _ufunc("bitwise_and", "The bits set in both.", Cost.VECTOR),
    _ufunc("bitwise_invert", "Every bit inverted; for booleans, `not`.", Cost.VECTOR, ufunc="invert"),
    _ufunc("bitwise_left_shift", "The bits of x1 moved left by x2 places.", Cost.VECTOR, ufunc="left_shift"),
    _ufunc("bitwise_or", "The bits set in either.", Cost.VECTOR),
    _ufunc("bitwise_right_shift", "The bits of x1 moved right by x2 places.", Cost.VECTOR, ufunc="right_shift"),
    _ufunc("bitwise_xor", "The bits set in one but not in both.", Cost.VECTOR),
    _ufunc("ceil", "The smallest integer not below each element, in the same dtype.", Cost.VECTOR),
    _ufunc("conj", "The complex conjugate.", Cost.VECTOR),
    _ufunc("copysign", "The magnitude of x1 with the sign of x2.", Cost.SCALAR),
    _ufunc("cos", "The cosine of angles in radians.", Cost.LONG_FUNCTION),
    _ufunc("cosh", "The hyperbolic cosine.", Cost.FUNCTION),
    _ufunc("divide", "The quotient x1 / x2; for integers in floating point.", Cost.SHORT, code="{0} / {1}"),
    _ufunc("exp", "The exponential.", Cost.FUNCTION, code="exp({0})", bound=Bound(6e-7, 1.2e-38)),
    _ufunc("expm1", "The exponential minus one, exact near zero.", Cost.FUNCTION),
    _ufunc("floor", "The largest integer not above each element, in the same dtype.", Cost.VECTOR),
    _ufunc("floor_divide", "The quotient rounded down.", Cost.LONG_FUNCTION),
    _ufunc("hypot", "The length of the hypotenuse over x1 and x2.", Cost.LONG_FUNCTION),
    _ufunc("log", "The natural logarithm.", Cost.FUNCTION),
    _ufunc("log10", "The logarithm to base 10.", Cost.FUNCTION),
    _ufunc("log1p", "The natural logarithm of 1 + x, exact near zero.", Cost.FUNCTION),
    _ufunc("log2", "The logarithm to base 2.", Cost.FUNCTION),
    _ufunc("logaddexp", "The logarithm of the sum of exponentials.", Cost.FUNCTION),
    _ufunc("maximum", "The larger of both; NaN where either is NaN.", Cost.VECTOR),
    _ufunc("minimum", "The smaller of both; NaN where either is NaN.", Cost.VECTOR),
    _ufunc("multiply", "The product x1 * x2.", Cost.VECTOR, code="{0} * {1}"),
    _ufunc("negative", "The negation.", Cost.VECTOR, code="-{0}"),
    _ufunc("nextafter", "The next number after x1 towards x2.", Cost.LONG_FUNCTION),
    _ufunc("positive", "The elements themselves, as a new tensor.", Cost.VECTOR),
    _ufunc("pow", "The power x1 ** x2.", Cost.FUNCTION, ufunc="power"),
    _ufunc("reciprocal", "One divided by each element.", Cost.SCALAR, code="one / {0}"),
    _ufunc("remainder", "The remainder of x1 / x2, with the sign of x2.", Cost.LONG_FUNCTION),
    _ufunc("sign", "-1, 0 or 1; for complex numbers x / abs(x).", Cost.SHORT),
    _ufunc("sin", "The sine of angles in radians.", Cost.LONG_FUNCTION),
    _ufunc("sinh", "The hyperbolic sine.", Cost.FUNCTION),
    _ufunc("sqrt", "The square root.", Cost.SCALAR, code="sqrt({0})"),
    _ufunc("square", "The square.", Cost.VECTOR, code="{0} * {0}"),
    _ufunc("subtract", "The difference x1 - x2.", Cost.VECTOR, code="{0} - {1}"),
    _ufunc("tan", "The tangent of angles in radians.", Cost.FUNCTION),
    _ufunc("tanh", "The hyperbolic tangent.", Cost.FUNCTION, code="tanh({0})", bound=Bound(6e-7, 0.0)),
    _ufunc("trunc", "The integer nearest to each element towards zero, in the same dtype.", Cost.VECTOR),
    in_place("equal", comparison_rule, "Whether x1 == x2.", Cost.VECTOR),
    in_place("greater", comparison_rule, "Whether x1 > x2.", Cost.VECTOR),
    in_place("greater_equal", comparison_rule, "Whether x1 >= x2.", Cost.VECTOR),
    in_place("isfinite", comparison_rule, "Whether each element is a finite number.", Cost.VECTOR),
    in_place("isinf", comparison_rule, "Whether each element is infinite.", Cost.VECTOR),
    in_place("isnan", comparison_rule, "Whether each element is not a number.", Cost.VECTOR),
    in_place("less", comparison_rule, "Whether x1 < x2.", Cost.VECTOR),
    in_place("less_equal", comparison_rule, "Whether x1 <= x2.", Cost.VECTOR),
    in_place("logical_and", comparison_rule, "Whether both are true (not zero).", Cost.SCALAR),
    in_place("logical_not", comparison_rule, "Whether each element is false (zero).", Cost.SCALAR),
    in_place("logical_or", comparison_rule, "Whether either is true (not zero).", Cost.SCALAR),
    in_place("logical_xor", comparison_rule, "Whether one is true (not zero) but not both.", Cost.SCALAR),
    in_place("not_equal", comparison_rule, "Whether x1 != x2.", Cost.VECTOR),
    in_place("signbit", comparison_rule, "Whether the sign bit is set.", Cost.SHORT),
    in_place("round", round_rule, "The nearest integer, ties to even.", Cost.SCALAR),
    in_place("clip", clip_rule, "The elements limited to a range.", Cost.SCALAR),
    elementwise(where, where_rule, "x1 where the condition is true, else x2.", Cost.SCALAR),
    elementwise(astype, astype_rule, "A copy in another dtype.", Cost.SCALAR),
    in_place(copy, copy_rule, "A copy in the same layout.", Cost.VECTOR, cut=Cut.WHOLE, fused_on_cuda=True),
    operation(real, view_rule, "The real part: a view; for real numbers the tensor itself.", view=True),
    operation("imag", imag_rule, "The imaginary part: a view; for real numbers new zeros.", view=True),
    operation("tril", tril_rule, "The lower triangle, zeros above diagonal k.", Cost.SCALAR, launches=2),
    operation("triu", tril_rule, "The upper triangle, zeros below diagonal k.", Cost.SCALAR, launches=2),
)  # fmt: skip
_BY_NAME = {op.name: op for op in OPS}


def power_op(base: Meta, exponent: Operand) -> Op:
    """The operation for `**`: for some Python exponents NumPy's operator differs from `pow`, in speed or in bits."""
    kind = base.dtype.kind
    if type(exponent) is int:
        return _BY_NAME["square" if exponent == 2 else "reciprocal" if exponent == -1 and kind in "fc" else "pow"]
    if type(exponent) is float and kind in _FAST_POWERS:
        return _BY_NAME[_FAST_POWERS[kind].get(exponent, "pow")]
    return _BY_NAME["pow"]


# Complex numbers are multiplied out for 2 and -1, but from NumPy 2.3 on not for 2.0 and -1.0. (Before, NumPy's `**`
# broke its promotion rules for an exponent that is a NumPy scalar or has no axes, and for a boolean base. Not so here.)
_FAST_POWERS: dict[str, dict[float, str]] = {"f": {2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}}
_FAST_POWERS["c"] = _FAST_POWERS["f"] if np.lib.NumpyVersion(np.__version__) < "2.3.0" else {0.5: "sqrt"}
