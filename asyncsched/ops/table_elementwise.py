"""The rows of operations that work element by element, most of them one universal function."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, rules
from .op import Op

# Name, the ufunc in NumPy and CuPy, one line of doc.
_UFUNCS = (
    ("abs", "absolute", "The magnitude of each element; of complex numbers a real one."),
    ("acos", "arccos", "The inverse cosine, in radians."),
    ("acosh", "arccosh", "The inverse hyperbolic cosine."),
    ("add", "add", "The sum x1 + x2."),
    ("asin", "arcsin", "The inverse sine, in radians."),
    ("asinh", "arcsinh", "The inverse hyperbolic sine."),
    ("atan", "arctan", "The inverse tangent, in radians."),
    ("atan2", "arctan2", "The angle of the point (x2, x1), in radians, with its quadrant."),
    ("atanh", "arctanh", "The inverse hyperbolic tangent."),
    ("bitwise_and", "bitwise_and", "The bits set in both."),
    ("bitwise_invert", "invert", "Every bit inverted; of booleans, not."),
    ("bitwise_left_shift", "left_shift", "The bits of x1 moved left by x2 places."),
    ("bitwise_or", "bitwise_or", "The bits set in either."),
    ("bitwise_right_shift", "right_shift", "The bits of x1 moved right by x2 places."),
    ("bitwise_xor", "bitwise_xor", "The bits set in one but not in both."),
    ("ceil", "ceil", "The smallest integer not below each element, in the same dtype."),
    ("conj", "conj", "The complex conjugate."),
    ("copysign", "copysign", "The magnitude of x1 with the sign of x2."),
    ("cos", "cos", "The cosine of angles in radians."),
    ("cosh", "cosh", "The hyperbolic cosine."),
    ("divide", "divide", "The quotient x1 / x2; of integers a floating-point one."),
    ("exp", "exp", "The exponential."),
    ("expm1", "expm1", "The exponential minus one, exact near zero."),
    ("floor", "floor", "The largest integer not above each element, in the same dtype."),
    ("floor_divide", "floor_divide", "The quotient rounded down."),
    ("hypot", "hypot", "The length of the hypotenuse over x1 and x2."),
    ("log", "log", "The natural logarithm."),
    ("log10", "log10", "The logarithm to base 10."),
    ("log1p", "log1p", "The natural logarithm of 1 + x, exact near zero."),
    ("log2", "log2", "The logarithm to base 2."),
    ("logaddexp", "logaddexp", "The logarithm of the sum of exponentials."),
    ("maximum", "maximum", "The larger of both; NaN where either is."),
    ("minimum", "minimum", "The smaller of both; NaN where either is."),
    ("multiply", "multiply", "The product x1 * x2."),
    ("negative", "negative", "The negation."),
    ("nextafter", "nextafter", "The next number after x1 towards x2."),
    ("positive", "positive", "The elements themselves, as a new tensor."),
    ("pow", "power", "The power x1 ** x2."),
    ("reciprocal", "reciprocal", "One divided by each element."),
    ("remainder", "remainder", "The remainder of x1 / x2, with the sign of x2."),
    ("sign", "sign", "-1, 0 or 1; of complex numbers x / abs(x)."),
    ("sin", "sin", "The sine of angles in radians."),
    ("sinh", "sinh", "The hyperbolic sine."),
    ("sqrt", "sqrt", "The square root."),
    ("square", "square", "The square."),
    ("subtract", "subtract", "The difference x1 - x2."),
    ("tan", "tan", "The tangent of angles in radians."),
    ("tanh", "tanh", "The hyperbolic tangent."),
    ("trunc", "trunc", "The integer nearest to each element towards zero, in the same dtype."),
)

# The same for results in bool, where all have one name.
_COMPARISONS = (
    ("equal", "Whether x1 == x2."),
    ("greater", "Whether x1 > x2."),
    ("greater_equal", "Whether x1 >= x2."),
    ("isfinite", "Whether each element is a finite number."),
    ("isinf", "Whether each element is infinite."),
    ("isnan", "Whether each element is not a number."),
    ("less", "Whether x1 < x2."),
    ("less_equal", "Whether x1 <= x2."),
    ("logical_and", "Whether both are true (not zero)."),
    ("logical_not", "Whether each element is false (zero)."),
    ("logical_or", "Whether either is true (not zero)."),
    ("logical_xor", "Whether one is true (not zero) but not both."),
    ("not_equal", "Whether x1 != x2."),
    ("signbit", "Whether the sign bit is set."),
)


def elementwise_ops() -> Iterator[Op]:
    """All rows that work element by element."""
    r, k = rules.elementwise, kernels.basic
    for name, ufunc, doc in _UFUNCS:
        yield Op(name, ufunc, r.ufunc, out=True, inplace=True, doc=doc)
    for name, doc in _COMPARISONS:
        yield Op(name, name, r.comparison, out=True, inplace=True, doc=doc)
    yield Op("round", "round", r.by_sample, out=True, inplace=True, doc="The nearest integer, ties to even.")
    yield Op("clip", "clip", r.clip, out=True, inplace=True, doc="The elements limited to between two others.")
    yield Op("where", k.where, r.where, out=True, doc="Elements of x1 where the condition is true, else of x2.")
    yield Op("astype", k.astype, r.astype, out=True, doc="A copy in another dtype.")
    yield Op("copy", k.copy, r.copy, out=True, inplace=True, doc="A copy in the same layout.")
    yield Op("imag", k.imag, r.imag, view=True, doc="The imaginary part: a view; of real numbers new zeros.")
    yield Op("tril", "tril", r.tril, doc="The lower triangle, zeros above diagonal k.")
    yield Op("triu", "triu", r.tril, doc="The upper triangle, zeros below diagonal k.")
