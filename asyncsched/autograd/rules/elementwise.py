"""Derivatives of elementwise operations. They follow from calculus; comments name the choices at kinks.

No formula squares a number that may be large: beyond the dtype's range its gradient would be a wrong 0, in half
precision from 256 on.
"""

from __future__ import annotations

import math
from typing import Any

from ...tensors import functions as f
from ...tensors.functions._common import Operand, op
from ...tensors.tensor import Tensor
from .common import Rules, narrow, same, wide


def _zero(g: Tensor) -> Tensor:
    """Zero: the gradient of functions that are constant except at jumps."""
    return f.zeros_like(g)


def _pow_base(g: Tensor, x: Tensor, y: Any) -> Tensor:
    """y x**(y-1), and 0 if y is 0, for any x."""
    if isinstance(y, Tensor):
        y = narrow(y, g)
        return f.where(y == 0, 0, g * (y * x ** f.where(y == 0, 1, y - 1)))
    return g * (x ** (y - 1) * y) if y != 0 else _zero(g)


def _pow_exponent(g: Tensor, x: Operand, y: Tensor, out: Tensor) -> Tensor:
    """x**y log(x), and 0 if x is 0 and y is not negative; NaN if x is negative."""
    if isinstance(x, Tensor):
        return g * (out * f.log(narrow(f.where((x == 0) & (y >= 0), 1, x), out)))
    base = float(x)  # type: ignore[arg-type]  # complex results are not recorded
    if base == 0:
        return f.where(y >= 0, 0, -(g * out))
    return g * (out * (math.log(base) if base > 0 else math.nan))


def _over_hypot(x: Any, y: Any) -> Any:
    """x / hypot(x, y), by halves of both: the root of two large numbers may be too large for the dtype."""
    x, y = [(wide(part) if isinstance(part, Tensor) else part) * 0.5 for part in (x, y)]
    return x / f.hypot(x, y)


def _over_squares(x: Tensor, y: Any, g: Tensor) -> Tensor:
    """g / (x**2 + y**2), or g where that is 0, without squares: they may be too large for the dtype."""
    root = f.hypot(x, y)
    root = f.where(root == 0, 1, root)
    return g / root / root


def _chosen(g: Tensor, x: Any, y: Any) -> Tensor:
    """The gradient of x where the larger of x and y was chosen. Exchange x and y for that of y."""
    return op("choice_backward", g, x, y)


ELEMENTWISE: Rules = {
    **dict.fromkeys(("add", "astype", "conj", "full", "positive", "real"), (same,)),
    **dict.fromkeys(("ceil", "floor", "floor_divide", "imag", "round", "sign", "trunc"), (_zero,)),
    "copy": (lambda g, call: g.to(call.device),),
    "full_like": (None, same),
    "negative": (lambda g: -g,),
    "subtract": (same, lambda g: -g),
    "multiply": (lambda g, y: g * y, lambda g, x: g * x),
    "divide": (lambda g, y: g / y, lambda g, y, out: -(wide(g) * out / y)),
    "remainder": (same, lambda g, x, y: -(g * (x // y))),
    # Powers.
    "pow": (_pow_base, _pow_exponent),
    "reciprocal": (lambda g, out: -(g * out * out),),
    "sqrt": (lambda g, out: g / (out * 2),),
    "square": (lambda g, x: g * (x * 2),),
    # Exponentials and logarithms.
    "exp": (lambda g, out: g * out,),
    "expm1": (lambda g, out: g * (out + 1),),
    "erf": (lambda g, x: g * (f.exp(-(x * x)) * (2 / math.sqrt(math.pi))),),
    "erfinv": (lambda g, out: g * (f.exp(out * out) * (math.sqrt(math.pi) / 2)),),
    "log": (lambda g, x: g / x,),
    "log10": (lambda g, x: wide(g) / x / math.log(10),),
    "log1p": (lambda g, x: g / (x + 1),),
    "log2": (lambda g, x: wide(g) / x / math.log(2),),
    "logaddexp": (lambda g, x, y: g / (f.exp(y - x) + 1), lambda g, x, y: g / (f.exp(x - y) + 1)),
    # Circular and hyperbolic functions.
    "acos": (lambda g, x: -(g / f.sqrt(1 - x * x)),),
    "acosh": (lambda g, x: g / f.sqrt(x - 1) / f.sqrt(x + 1),),
    "asin": (lambda g, x: g / f.sqrt(1 - x * x),),
    "asinh": (lambda g, x: g / f.hypot(x, 1),),
    "atan": (lambda g, x: _over_squares(x, 1, g),),
    "atan2": (lambda g, x, y: g * _over_squares(x, y, y), lambda g, x, y: -(g * _over_squares(x, y, x))),  # 0 at 0
    "atanh": (lambda g, x: g / (1 - x * x),),
    "cos": (lambda g, x: -(g * f.sin(x)),),
    "cosh": (lambda g, x: g * f.sinh(x),),
    "hypot": (lambda g, x, y: g * _over_hypot(x, y), lambda g, x, y: g * _over_hypot(y, x)),
    "sin": (lambda g, x: g * f.cos(x),),
    "sinh": (lambda g, x: g * f.cosh(x),),
    "tan": (lambda g, out: g * (out * out + 1),),
    "tanh": (lambda g, out: g * (1 - out * out),),
    # Choices. At a tie each operand gets half of the gradient; if one is NaN, each gets all of it. As in PyTorch.
    "maximum": (lambda g, x, y: _chosen(g, x, y), lambda g, x, y: _chosen(g, y, x)),
    "minimum": (lambda g, x, y: _chosen(g, y, x), lambda g, x, y: _chosen(g, x, y)),
    "choice_backward": (lambda g, y, z: _chosen(g, y, z), None, None),
    "abs": (lambda g, x: g * f.where(f.isnan(x), 0, f.sign(x)),),  # 0 at 0 and at NaN
    "copysign": (lambda g, x, out: g * (f.sign(x) * f.sign(out)), _zero),
    "clip": (
        lambda g, x, y, z: f.where((x >= y) & (x <= z), g, 0),
        lambda g, x, y, z: f.where((x < y) & (y <= z), g, 0),
        lambda g, x, y, z: f.where((x > z) | (y > z), g, 0),
    ),
    "where": (None, lambda g, x: f.where(x, g, 0), lambda g, x: f.where(x, 0, g)),
}
