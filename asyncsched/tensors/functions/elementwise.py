"""Functions that work element by element, with broadcasting and NumPy's promotion of dtypes."""

from __future__ import annotations

from math import inf
from typing import Protocol, cast

import numpy as np

from ...ops.table import TABLE
from ..tensor import Tensor, apply, as_now, record, unary
from ._common import Operand


class Unary(Protocol):
    """A function of one operand."""

    def __call__(self, x: Operand, /) -> Tensor: ...


class Binary(Protocol):
    """A function of two operands."""

    def __call__(self, x1: Operand, x2: Operand, /) -> Tensor: ...


def _unary(name: str, x: str, found: str) -> Unary:
    """The function of an operation of the table, with an example of its input and output."""
    op = TABLE[name]
    function = unary(op)
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__annotations__["x"] = __name__, "Operand"
    shapes = "Returns a tensor of the shape of `x`, in the dtype NumPy gives."
    example = f">>> x = await s.put(np.array({x}))\n>>> await asc.{name}(x)\n{found}"
    function.__doc__ = f"{op.doc}\n\n{shapes}\n\n{example}\n"
    return function


def _binary(name: str, x: str, y: str, found: str) -> Binary:
    op = TABLE[name]

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        return apply(op, (x1, x2))

    shapes = "Returns a tensor of the shape that `x1` and `x2` broadcast to, in the dtype NumPy promotes them to."
    function.__name__ = function.__qualname__ = name
    given = f"{x})), await s.put(np.array({y}))" if y[0] == "[" else f"{x})), {y}"
    example = f">>> x, y = await s.put(np.array({given}\n>>> await asc.{name}(x, y)\n{found}"
    function.__doc__ = f"{op.doc}\n\n{shapes}\n\n{example}\n"
    return function


abs: Unary = _unary("abs", "[-1.5, 0.4]", "array([1.5, 0.4])")
conj: Unary = _unary("conj", "[1 + 2j, 3]", "array([1.-2.j, 3.-0.j])")
imag: Unary = _unary("imag", "[1 + 2j, 3]", "array([2., 0.])")
negative: Unary = _unary("negative", "[-1.5, 0.4]", "array([ 1.5, -0.4])")
positive: Unary = _unary("positive", "[-1.5, 0.4]", "array([-1.5,  0.4])")
real: Unary = _unary("real", "[1 + 2j, 3]", "array([1., 3.])")
sign: Unary = _unary("sign", "[-1.5, 0.4]", "array([-1.,  1.])")
acos: Unary = _unary("acos", "[0.0, 0.5]", "array([1.57079633, 1.04719755])")
acosh: Unary = _unary("acosh", "[1.0, 4.0]", "array([0.        , 2.06343707])")
asin: Unary = _unary("asin", "[0.0, 0.5]", "array([0.        , 0.52359878])")
asinh: Unary = _unary("asinh", "[0.0, 0.5]", "array([0.        , 0.48121183])")
atan: Unary = _unary("atan", "[0.0, 0.5]", "array([0.        , 0.46364761])")
atanh: Unary = _unary("atanh", "[0.0, 0.5]", "array([0.        , 0.54930614])")
cos: Unary = _unary("cos", "[0.0, 0.5]", "array([1.        , 0.87758256])")
cosh: Unary = _unary("cosh", "[0.0, 0.5]", "array([1.        , 1.12762597])")
sin: Unary = _unary("sin", "[0.0, 0.5]", "array([0.        , 0.47942554])")
sinh: Unary = _unary("sinh", "[0.0, 0.5]", "array([0.        , 0.52109531])")
tan: Unary = _unary("tan", "[0.0, 0.5]", "array([0.        , 0.54630249])")
tanh: Unary = _unary("tanh", "[0.0, 0.5]", "array([0.        , 0.46211716])")
exp: Unary = _unary("exp", "[0.0, 2.0]", "array([1.       , 7.3890561])")
expm1: Unary = _unary("expm1", "[0.0, 2.0]", "array([0.       , 6.3890561])")
log: Unary = _unary("log", "[1.0, 4.0]", "array([0.        , 1.38629436])")
log10: Unary = _unary("log10", "[1.0, 4.0]", "array([0.        , 0.60205999])")
log1p: Unary = _unary("log1p", "[0.0, 2.0]", "array([0.        , 1.09861229])")
log2: Unary = _unary("log2", "[1.0, 4.0]", "array([0., 2.])")
reciprocal: Unary = _unary("reciprocal", "[1.0, 4.0]", "array([1.  , 0.25])")
sqrt: Unary = _unary("sqrt", "[1.0, 4.0]", "array([1., 2.])")
square: Unary = _unary("square", "[0.0, 2.0]", "array([0., 4.])")
ceil: Unary = _unary("ceil", "[-1.5, 0.4]", "array([-1.,  1.])")
floor: Unary = _unary("floor", "[-1.5, 0.4]", "array([-2.,  0.])")
round: Unary = _unary("round", "[-1.5, 0.4]", "array([-2.,  0.])")
trunc: Unary = _unary("trunc", "[-1.5, 0.4]", "array([-1.,  0.])")
isfinite: Unary = _unary("isfinite", "[1.0, np.inf, np.nan]", "array([ True, False, False])")
isinf: Unary = _unary("isinf", "[1.0, np.inf, np.nan]", "array([False,  True, False])")
isnan: Unary = _unary("isnan", "[1.0, np.inf, np.nan]", "array([False, False,  True])")
signbit: Unary = _unary("signbit", "[-1.5, 0.4]", "array([ True, False])")
bitwise_invert: Unary = _unary("bitwise_invert", "[0, 5]", "array([-1, -6])")
logical_not: Unary = _unary("logical_not", "[True, False]", "array([False,  True])")

add: Binary = _binary("add", "[1.0, 5.0]", "[2.0, 3.0]", "array([3., 8.])")
subtract: Binary = _binary("subtract", "[1.0, 5.0]", "[2.0, 3.0]", "array([-1.,  2.])")
multiply: Binary = _binary("multiply", "[1.0, 5.0]", "[2.0, 3.0]", "array([ 2., 15.])")
divide: Binary = _binary("divide", "[1.0, 5.0]", "[2.0, 3.0]", "array([0.5       , 1.66666667])")
floor_divide: Binary = _binary("floor_divide", "[7, -7]", "2", "array([ 3, -4])")
remainder: Binary = _binary("remainder", "[7, -7]", "2", "array([1, 1])")
pow: Binary = _binary("pow", "[7, -7]", "2", "array([49, 49])")
atan2: Binary = _binary("atan2", "[3.0, 4.0]", "[-4.0, 3.0]", "array([2.49809154, 0.92729522])")
copysign: Binary = _binary("copysign", "[3.0, 4.0]", "[-4.0, 3.0]", "array([-3.,  4.])")
hypot: Binary = _binary("hypot", "[3.0, 4.0]", "[-4.0, 3.0]", "array([5., 5.])")
logaddexp: Binary = _binary("logaddexp", "[0.0, 1.0]", "0.0", "array([0.69314718, 1.31326169])")
nextafter: Binary = _binary("nextafter", "[1.0, 2.0]", "0.0", "array([1., 2.])")
maximum: Binary = _binary("maximum", "[1.0, 5.0]", "[2.0, 3.0]", "array([2., 5.])")
minimum: Binary = _binary("minimum", "[1.0, 5.0]", "[2.0, 3.0]", "array([1., 3.])")
equal: Binary = _binary("equal", "[1, 2, 3]", "2", "array([False,  True, False])")
not_equal: Binary = _binary("not_equal", "[1, 2, 3]", "2", "array([ True, False,  True])")
greater: Binary = _binary("greater", "[1, 2, 3]", "2", "array([False, False,  True])")
greater_equal: Binary = _binary("greater_equal", "[1, 2, 3]", "2", "array([False,  True,  True])")
less: Binary = _binary("less", "[1, 2, 3]", "2", "array([ True, False, False])")
less_equal: Binary = _binary("less_equal", "[1, 2, 3]", "2", "array([ True,  True, False])")
logical_and: Binary = _binary(
    "logical_and", "[True, True, False]", "[True, False, False]", "array([ True, False, False])"
)
logical_or: Binary = _binary(
    "logical_or", "[True, True, False]", "[True, False, False]", "array([ True,  True, False])"
)
logical_xor: Binary = _binary(
    "logical_xor", "[True, True, False]", "[True, False, False]", "array([False,  True, False])"
)
bitwise_and: Binary = _binary("bitwise_and", "[6, 5]", "3", "array([2, 1])")
bitwise_or: Binary = _binary("bitwise_or", "[6, 5]", "3", "array([7, 7])")
bitwise_xor: Binary = _binary("bitwise_xor", "[6, 5]", "3", "array([5, 6])")
bitwise_left_shift: Binary = _binary("bitwise_left_shift", "[1, 8]", "2", "array([ 4, 32])")
bitwise_right_shift: Binary = _binary("bitwise_right_shift", "[1, 8]", "2", "array([0, 2])")


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """The elements limited to between `min` and `max`; None is no limit.

    Returns a tensor of the shape that all three broadcast to. As in NumPy, a Python integer outside the range of an
    integer dtype is no limit. An element at a limit gets the gradient; the limits get none.

    >>> x = await s.put(np.array([-1.0, 0.5, 2.0]))
    >>> await asc.clip(x, 0.0, 1.0)
    array([0. , 0.5, 1. ])
    """
    low = None if _no_limit(x, min, -1) else min
    high = None if _no_limit(x, max, 1) else max
    if low is None and high is None:
        return positive(x)
    if low is not None and high is not None:
        return apply(TABLE["clip"], (x, low, high))
    x, low, high = as_now(x), as_now(low), as_now(high)
    found = minimum(x, cast(Operand, high)) if low is None else maximum(x, cast(Operand, low))
    if found._node is not None:  # not `minimum` and `maximum`, which share the gradient between equal operands
        record(TABLE["clip"], (x, -inf if low is None else low, inf if high is None else high), {}, found)
    return found


def _no_limit(x: Operand, limit: Operand | None, side: int) -> bool:
    if type(limit) is not int or not isinstance(x, (Tensor, np.generic)) or x.dtype.kind not in "iu":
        return limit is None
    info = np.iinfo(x.dtype)
    return limit <= info.min if side < 0 else limit >= info.max


__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign",
    "cos", "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot",
    "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log1p", "log2", "log10", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit",
    "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip
