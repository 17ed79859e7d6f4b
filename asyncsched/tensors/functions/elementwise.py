"""Functions that work element by element, with broadcasting and NumPy's promotion of dtypes."""

from __future__ import annotations

from math import inf
from typing import Protocol, cast

import numpy as np

from ...ops.table import TABLE
from ..tensor import Tensor, apply
from ._common import Operand


class Unary(Protocol):
    """A function of one operand."""

    def __call__(self, x: Operand, /) -> Tensor: ...


class Binary(Protocol):
    """A function of two operands."""

    def __call__(self, x1: Operand, x2: Operand, /) -> Tensor: ...


def _unary(name: str) -> Unary:
    op = TABLE[name]

    def function(x: Operand, /) -> Tensor:
        return apply(op, (x,))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.doc}\n\nReturns a tensor of the shape of `x`, in the dtype NumPy gives.\n"
    return function


def _binary(name: str) -> Binary:
    op = TABLE[name]

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        return apply(op, (x1, x2))

    shapes = "Returns a tensor of the shape that `x1` and `x2` broadcast to, in the dtype NumPy promotes them to."
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.doc}\n\n{shapes}\n"
    return function


abs = _unary("abs")
acos = _unary("acos")
acosh = _unary("acosh")
asin = _unary("asin")
asinh = _unary("asinh")
atan = _unary("atan")
atanh = _unary("atanh")
bitwise_invert = _unary("bitwise_invert")
ceil = _unary("ceil")
conj = _unary("conj")
cos = _unary("cos")
cosh = _unary("cosh")
exp = _unary("exp")
expm1 = _unary("expm1")
floor = _unary("floor")
imag = _unary("imag")
isfinite = _unary("isfinite")
isinf = _unary("isinf")
isnan = _unary("isnan")
log = _unary("log")
log10 = _unary("log10")
log1p = _unary("log1p")
log2 = _unary("log2")
logical_not = _unary("logical_not")
negative = _unary("negative")
positive = _unary("positive")
real = _unary("real")
reciprocal = _unary("reciprocal")
round = _unary("round")
sign = _unary("sign")
signbit = _unary("signbit")
sin = _unary("sin")
sinh = _unary("sinh")
sqrt = _unary("sqrt")
square = _unary("square")
tan = _unary("tan")
tanh = _unary("tanh")
trunc = _unary("trunc")

add = _binary("add")
atan2 = _binary("atan2")
bitwise_and = _binary("bitwise_and")
bitwise_left_shift = _binary("bitwise_left_shift")
bitwise_or = _binary("bitwise_or")
bitwise_right_shift = _binary("bitwise_right_shift")
bitwise_xor = _binary("bitwise_xor")
copysign = _binary("copysign")
divide = _binary("divide")
equal = _binary("equal")
floor_divide = _binary("floor_divide")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
hypot = _binary("hypot")
less = _binary("less")
less_equal = _binary("less_equal")
logaddexp = _binary("logaddexp")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
maximum = _binary("maximum")
minimum = _binary("minimum")
multiply = _binary("multiply")
nextafter = _binary("nextafter")
not_equal = _binary("not_equal")
pow = _binary("pow")
remainder = _binary("remainder")
subtract = _binary("subtract")


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """The elements limited to between `min` and `max`; None is no limit.

    Returns a tensor of the shape all three broadcast to. As in NumPy, a Python integer beyond what an integer dtype
    holds is no limit either. An element at a limit has the gradient, and the limit none.
    """
    low = None if _no_limit(x, min, -1) else min
    high = None if _no_limit(x, max, 1) else max
    if low is None and high is None:
        return positive(x)
    if low is not None and high is not None:
        return apply(TABLE["clip"], (x, low, high))
    found = minimum(x, cast(Operand, high)) if low is None else maximum(x, low)
    if found._node is not None:  # of `minimum` and `maximum`, where equal operands share the gradient
        found._node.record(TABLE["clip"], (x, -inf if low is None else low, inf if high is None else high), {}, found)
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
