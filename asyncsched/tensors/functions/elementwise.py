"""Functions that work element by element, with broadcasting and NumPy's promotion of dtypes."""

from __future__ import annotations

from math import inf
from typing import Protocol, cast

import numpy as np

from ...ops.table import TABLE
from ..tensor import Tensor, apply, as_now, record
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


abs: Unary = _unary("abs")
conj: Unary = _unary("conj")
imag: Unary = _unary("imag")
negative: Unary = _unary("negative")
positive: Unary = _unary("positive")
real: Unary = _unary("real")
sign: Unary = _unary("sign")
acos: Unary = _unary("acos")
acosh: Unary = _unary("acosh")
asin: Unary = _unary("asin")
asinh: Unary = _unary("asinh")
atan: Unary = _unary("atan")
atanh: Unary = _unary("atanh")
cos: Unary = _unary("cos")
cosh: Unary = _unary("cosh")
sin: Unary = _unary("sin")
sinh: Unary = _unary("sinh")
tan: Unary = _unary("tan")
tanh: Unary = _unary("tanh")
exp: Unary = _unary("exp")
expm1: Unary = _unary("expm1")
log: Unary = _unary("log")
log10: Unary = _unary("log10")
log1p: Unary = _unary("log1p")
log2: Unary = _unary("log2")
reciprocal: Unary = _unary("reciprocal")
sqrt: Unary = _unary("sqrt")
square: Unary = _unary("square")
ceil: Unary = _unary("ceil")
floor: Unary = _unary("floor")
round: Unary = _unary("round")
trunc: Unary = _unary("trunc")
isfinite: Unary = _unary("isfinite")
isinf: Unary = _unary("isinf")
isnan: Unary = _unary("isnan")
signbit: Unary = _unary("signbit")
bitwise_invert: Unary = _unary("bitwise_invert")
logical_not: Unary = _unary("logical_not")

add: Binary = _binary("add")
subtract: Binary = _binary("subtract")
multiply: Binary = _binary("multiply")
divide: Binary = _binary("divide")
floor_divide: Binary = _binary("floor_divide")
remainder: Binary = _binary("remainder")
pow: Binary = _binary("pow")
atan2: Binary = _binary("atan2")
copysign: Binary = _binary("copysign")
hypot: Binary = _binary("hypot")
logaddexp: Binary = _binary("logaddexp")
nextafter: Binary = _binary("nextafter")
maximum: Binary = _binary("maximum")
minimum: Binary = _binary("minimum")
equal: Binary = _binary("equal")
not_equal: Binary = _binary("not_equal")
greater: Binary = _binary("greater")
greater_equal: Binary = _binary("greater_equal")
less: Binary = _binary("less")
less_equal: Binary = _binary("less_equal")
logical_and: Binary = _binary("logical_and")
logical_or: Binary = _binary("logical_or")
logical_xor: Binary = _binary("logical_xor")
bitwise_and: Binary = _binary("bitwise_and")
bitwise_or: Binary = _binary("bitwise_or")
bitwise_xor: Binary = _binary("bitwise_xor")
bitwise_left_shift: Binary = _binary("bitwise_left_shift")
bitwise_right_shift: Binary = _binary("bitwise_right_shift")


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
    x, low, high = as_now(x), as_now(low), as_now(high)
    found = minimum(x, cast(Operand, high)) if low is None else maximum(x, cast(Operand, low))
    if found._node is not None:  # of `minimum` and `maximum`, where equal operands share the gradient
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
