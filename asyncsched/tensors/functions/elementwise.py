"""Functions that work element by element, with broadcasting and NumPy's promotion of dtypes."""

from __future__ import annotations

from collections.abc import Iterator
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


def _unary(*names: str) -> Iterator[Unary]:
    return map(_one_unary, names)


def _binary(*names: str) -> Iterator[Binary]:
    return map(_one_binary, names)


def _one_unary(name: str) -> Unary:
    op = TABLE[name]

    def function(x: Operand, /) -> Tensor:
        return apply(op, (x,))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.doc}\n\nReturns a tensor of the shape of `x`, in the dtype NumPy gives.\n"
    return function


def _one_binary(name: str) -> Binary:
    op = TABLE[name]

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        return apply(op, (x1, x2))

    shapes = "Returns a tensor of the shape that `x1` and `x2` broadcast to, in the dtype NumPy promotes them to."
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.doc}\n\n{shapes}\n"
    return function


abs, conj, imag, negative, positive, real, sign = _unary("abs", "conj", "imag", "negative", "positive", "real", "sign")
acos, acosh, asin, asinh, atan, atanh = _unary("acos", "acosh", "asin", "asinh", "atan", "atanh")
cos, cosh, sin, sinh, tan, tanh = _unary("cos", "cosh", "sin", "sinh", "tan", "tanh")
exp, expm1, log, log10, log1p, log2 = _unary("exp", "expm1", "log", "log10", "log1p", "log2")
reciprocal, sqrt, square = _unary("reciprocal", "sqrt", "square")
ceil, floor, round, trunc = _unary("ceil", "floor", "round", "trunc")
isfinite, isinf, isnan, signbit = _unary("isfinite", "isinf", "isnan", "signbit")
bitwise_invert, logical_not = _unary("bitwise_invert", "logical_not")

add, subtract, multiply = _binary("add", "subtract", "multiply")
divide, floor_divide, remainder, pow = _binary("divide", "floor_divide", "remainder", "pow")
atan2, copysign, hypot, logaddexp, nextafter = _binary("atan2", "copysign", "hypot", "logaddexp", "nextafter")
maximum, minimum = _binary("maximum", "minimum")
equal, not_equal = _binary("equal", "not_equal")
greater, greater_equal, less, less_equal = _binary("greater", "greater_equal", "less", "less_equal")
logical_and, logical_or, logical_xor = _binary("logical_and", "logical_or", "logical_xor")
bitwise_and, bitwise_or, bitwise_xor = _binary("bitwise_and", "bitwise_or", "bitwise_xor")
bitwise_left_shift, bitwise_right_shift = _binary("bitwise_left_shift", "bitwise_right_shift")


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
