"""The table of operations: one row each, by name.

To add an operation, add a row, in one of the functions below or, for derivatives and neural networks, in
`table_gradients` or `table_nn`. A row is made of

- a *kernel*, which computes the result: the name of a function that NumPy and CuPy both have, or a function
  `kernel(xp, *arrays, **options)` in `kernels/<theme>.py`, written in terms of the namespace `xp`;
- a *rule*, in `rules/<theme>.py`, which says at once, from the operands' shapes and dtypes, what shape, dtype and
  layout the result will have, and how many bytes of temporary memory the kernel takes; it raises what NumPy would;
- what the scheduler may do with it: `out=True` if the kernel takes `out=`, `inplace=True` if that may be an operand,
  `view=True` if the result is a view. See `Row`.

If the kernel is a universal function of NumPy and CuPy, all of this follows from its name, and a line is enough::

    _UFUNCS = (..., ("cbrt", "cbrt", "The cube root."), ...)

Any other takes three pieces::

    def ptp(xp, x, *, axis=None):                                           # kernels/basic.py
        return xp.max(x, axis=axis) - xp.min(x, axis=axis)

    def ptp(row, operands, options):                                        # rules/reduce.py
        found = reduction(row, operands, options)
        return found._replace(workspace=2 * found.meta.nbytes)              # both before they are subtracted

    yield Row("ptp", k.ptp, r.ptp, doc="The largest less the smallest.")    # _along_axes, below

What users call goes to `tensors/functions/`, the derivative to `autograd/rules/`. `tests/gpu/cases.py` wants operands
for each row, and `tests/ops/` compares them with eager NumPy.

Below, `k` and `r` are the kernels and the rules of a theme.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, rules
from .meta import Meta
from .row import Operand, Row
from .table_gradients import gradient_rows
from .table_nn import network_rows

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

# The same, for results in bool.
_COMPARISONS = (
    ("equal", "equal", "Whether x1 == x2."),
    ("greater", "greater", "Whether x1 > x2."),
    ("greater_equal", "greater_equal", "Whether x1 >= x2."),
    ("isfinite", "isfinite", "Whether each element is a finite number."),
    ("isinf", "isinf", "Whether each element is infinite."),
    ("isnan", "isnan", "Whether each element is not a number."),
    ("less", "less", "Whether x1 < x2."),
    ("less_equal", "less_equal", "Whether x1 <= x2."),
    ("logical_and", "logical_and", "Whether both are true (not zero)."),
    ("logical_not", "logical_not", "Whether each element is false (zero)."),
    ("logical_or", "logical_or", "Whether either is true (not zero)."),
    ("logical_xor", "logical_xor", "Whether one is true (not zero) but not both."),
    ("not_equal", "not_equal", "Whether x1 != x2."),
    ("signbit", "signbit", "Whether the sign bit is set."),
)

_REDUCTIONS = (
    ("all", "Whether all elements along the axes are true (not zero)."),
    ("any", "Whether any element along the axes is true (not zero)."),
    ("max", "The largest element along the axes."),
    ("min", "The smallest element along the axes."),
    ("prod", "The product along the axes."),
    ("sum", "The sum along the axes."),
)

_VIEWS = (
    ("broadcast_to", "broadcast_to", "A read-only view in a larger shape, with strides of zero."),
    ("expand_dims", "expand_dims", "A view with a new axis of length one."),
    ("flip", kernels.basic.flip, "A view with the elements along the axes in reverse."),
    ("matrix_transpose", kernels.basic.matrix_transpose, "A view with the last two axes exchanged."),
    ("permute_dims", kernels.basic.permute_dims, "A view with the axes in another order."),
    ("real", kernels.basic.real, "The real part: a view; of real numbers the tensor itself."),
    ("squeeze", "squeeze", "A view without axes of length one."),
)


def _rows() -> Iterator[Row]:
    yield from _elementwise()
    yield from _along_axes()
    yield from _products()
    yield from _shapes()
    yield from _indexing()
    yield from _creation()
    yield from gradient_rows()
    yield from network_rows()


def _elementwise() -> Iterator[Row]:
    r, k = rules.elementwise, kernels.basic
    for name, ufunc, doc in _UFUNCS:
        yield Row(name, ufunc, r.ufunc, out=True, inplace=True, doc=doc)
    for name, ufunc, doc in _COMPARISONS:
        yield Row(name, ufunc, r.comparison, out=True, inplace=True, doc=doc)
    yield Row("round", "round", r.by_sample, out=True, inplace=True, doc="The nearest integer, ties to even.")
    yield Row("clip", "clip", r.clip, out=True, inplace=True, doc="The elements limited to between two others.")
    yield Row("where", k.where, r.where, out=True, doc="Elements of x1 where the condition is true, else of x2.")
    yield Row("astype", k.astype, r.astype, out=True, doc="A copy in another dtype.")
    yield Row("copy", k.copy, r.copy, out=True, inplace=True, doc="A copy in the same layout.")
    yield Row("imag", k.imag, r.imag, view=True, doc="The imaginary part: a view; of real numbers new zeros.")
    yield Row("tril", "tril", r.tril, doc="The lower triangle, zeros above diagonal k.")
    yield Row("triu", "triu", r.tril, doc="The upper triangle, zeros below diagonal k.")


def _along_axes() -> Iterator[Row]:
    r, k = rules.reduce, kernels.basic
    for name, doc in _REDUCTIONS:
        yield Row(name, name, r.reduction, out=True, doc=doc)
    yield Row("mean", k.averaging("mean"), r.mean, out=True, doc="The mean along the axes.")
    yield Row("std", k.averaging("std"), r.variance, out=True, doc="The standard deviation along the axes.")
    yield Row("var", k.averaging("var"), r.variance, out=True, doc="The variance along the axes.")
    yield Row("count_nonzero", k.count_nonzero, r.count_nonzero, out=True, doc="How many elements are not zero.")
    yield Row("argmax", "argmax", r.arg_reduction, out=True, doc="Where the first largest element is.")
    yield Row("argmin", "argmin", r.arg_reduction, out=True, doc="Where the first smallest element is.")
    yield Row("cumulative_sum", k.cumulative("cumsum"), r.cumulative, out=True, doc="Running sums.")
    yield Row("cumulative_prod", k.cumulative("cumprod"), r.cumulative, out=True, doc="Running products.")
    yield Row("diff", "diff", r.diff, doc="The n-th difference of neighbours along an axis.")
    yield Row("sort", k.sort, r.sort, out=True, inplace=True, doc="The elements in order along an axis.")
    yield Row("argsort", k.argsort, r.argsort, doc="The indices that sort along an axis.")


def _products() -> Iterator[Row]:
    r, k = rules.linalg, kernels.basic
    yield Row("matmul", "matmul", r.matmul, out=True, doc="The matrix product.")
    yield Row("vecdot", k.vecdot, r.vecdot, out=True, doc="The product of vectors along an axis.")
    yield Row("tensordot", "tensordot", r.tensordot, doc="The sum of products over several axes.")


def _shapes() -> Iterator[Row]:
    r, k = rules.shape, kernels.basic
    for name, kernel, doc in _VIEWS:
        yield Row(name, kernel, rules.common.view_rule, view=True, doc=doc)
    yield Row("reshape", k.reshape, r.reshape, view=True, doc="Another shape, in C order: a view if possible.")
    yield Row("concat", k.concat, r.concat, out=True, doc="Tensors joined along an axis they have.")
    yield Row("stack", k.stack, r.stack, out=True, doc="Tensors joined along a new axis.")
    yield Row("repeat", "repeat", r.repeat, doc="Each element several times.")
    yield Row("tile", k.tile, r.tile, doc="The tensor laid side by side.")
    yield Row("roll", "roll", r.roll, doc="The elements moved round along the axes.")


def _indexing() -> Iterator[Row]:
    r, k = rules.index, kernels.index
    yield Row("getitem", k.getitem, r.getitem, view=True, doc="A basic index: a view.")
    yield Row("getitem_advanced", k.getitem_advanced, r.getitem_advanced, doc="An index with tensors: a copy.")
    yield Row("setitem", k.setitem, r.setitem, out=True, inplace=True, doc="A new version with a part assigned.")
    yield Row("take", k.take, r.take, out=True, doc="Slices along an axis, by index.")
    yield Row("take_along_axis", k.take_along_axis, r.take_along_axis, doc="An element for each index on an axis.")
    yield Row("argwhere", k.argwhere, r.argwhere, doc="The indices of elements not zero, a row for each.")
    yield Row("searchsorted", k.searchsorted, r.searchsorted, doc="Where to insert into a sorted tensor.")


def _creation() -> Iterator[Row]:
    r, k = rules.create, kernels.basic
    yield Row("zeros", k.constant(0), r.filled, out=True, doc="Zeros.")
    yield Row("ones", k.constant(1), r.filled, out=True, doc="Ones.")
    yield Row("full", k.full, r.filled, out=True, doc="One value throughout.")
    yield Row("full_like", k.full_like, r.filled_like, out=True, doc="One value throughout, in a tensor's layout.")
    yield Row("arange", k.arange, r.arange, doc="Evenly spaced by a step.")
    yield Row("linspace", k.linspace, r.linspace, doc="A number of evenly spaced values.")
    yield Row("eye", k.eye, r.eye, doc="Ones on a diagonal.")


TABLE: dict[str, Row] = {row.name: row for row in _rows()}


def power_row(base: Meta, exponent: Operand) -> Row:
    """The row for the operator `**`: for some Python exponents NumPy's differs from `pow`, in speed or in bits."""
    kind = base.dtype.kind
    if type(exponent) is int:
        return TABLE["square" if exponent == 2 else "reciprocal" if exponent == -1 and kind in "fc" else "pow"]
    if type(exponent) is float and (kind == "f" or (kind == "c" and exponent == 0.5)):
        return TABLE[_FAST_POWERS.get(exponent, "pow")]
    return TABLE["pow"]


# Of complex numbers only the root: NumPy multiplies those out for 2 and -1, but not for 2.0 and -1.0.
_FAST_POWERS = {2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}
