"""Activations and their derivatives, in blocks as in `blocks`. gelu is x times the normal distribution function."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Op, Operand, Options, UfuncCall, bounded, in_place
from ..rules import alike, blockwise_rule, same_as
from . import compiled
from .blocks import blocks, flat, long_blocks, scratch
from .elementwise import kept
from .erf import half_erfc

_ZEROS = 1 << 14  # in a row; a longer row than NumPy would copy into its buffer


def relu(xp: Any, x: Any, *, out: Any = None) -> Any:
    """The larger of x and 0.

    With rows of zeros NumPy takes a third of the time that it takes with the number 0, for the same bits.
    """
    if xp is not np or x.size < _ZEROS or not x.flags.c_contiguous:
        return xp.maximum(x, 0, out=out)
    out, result, values = flat(xp, out, x)
    zeros = scratch(xp, 0, (_ZEROS,), x.dtype)
    zeros[...] = 0
    whole, rows = x.size - x.size % _ZEROS, (-1, _ZEROS)
    np.maximum(values[:whole].reshape(rows), zeros, out=result[:whole].reshape(rows))
    np.maximum(values[whole:], zeros[: x.size - whole], out=result[whole:])
    return out


def relu_backward(xp: Any, grad: Any, y: Any, *, out: Any = None) -> Any:
    """The gradient where the result was positive, and 0 elsewhere, even where the gradient is infinite."""
    out, result, grads, values = flat(xp, out, grad, y)
    for block in long_blocks(xp, y.size):
        v = values[block]
        lost = xp.less_equal(v, 0, out=scratch(xp, 0, v.shape, xp.bool_))
        kept(xp, grads[block], xp.logical_not(lost, out=lost), out=result[block])
    return out


def sigmoid(xp: Any, x: Any, *, out: Any = None) -> Any:
    """1 / (1 + exp(-x)). If exp overflows, the result is 0."""
    out, result, values = flat(xp, out, x)
    for block in blocks(xp, x.size, alive=2):
        y = xp.negative(values[block], out=result[block])
        xp.exp(y, out=y)
        y += 1
        xp.divide(1, y, out=y)  # NumPy's reciprocal takes longer, for the same bits
    return out


def leaky_relu(xp: Any, x: Any, *, negative_slope: float, out: Any = None) -> Any:
    """max(x, 0) + negative_slope min(x, 0). Choosing by a mask takes ten times as long."""
    out, result, values = flat(xp, out, x)
    for block in blocks(xp, x.size, alive=3):
        low = xp.minimum(values[block], 0)
        low *= negative_slope
        y = xp.maximum(values[block], 0, out=result[block])
        y += low
    return out


def softplus(xp: Any, x: Any, *, beta: float, threshold: float, out: Any = None) -> Any:
    """(max(z, 0) + log(1 + exp(-|z|))) / beta with z = beta x, or x where z is above the threshold."""
    out, result, values = flat(xp, out, x)
    for block in blocks(xp, x.size):
        z = values[block] * beta
        tail = xp.exp(-xp.abs(z))
        xp.log1p(tail, out=tail)
        tail *= z <= threshold
        if threshold < 0:  # what is above it stays x, too
            z = xp.where(z > threshold, z, 0)
        else:
            xp.maximum(z, 0, out=z)
        z += tail
        xp.divide(z, beta, out=result[block])
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def relu_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`relu`, in the layout of its operand."""
    alike(op, operands)
    return same_as(operands[0])


# P of `_single_odds`, P(s) = A s + B + C / (s + D / (s + E)): Phi(x) is the logistic function of an odd function of x.
# Fitted to the error of x Phi(x) on [-6, 6], which is 2e-7 before rounding; beyond, x P(x^2) is below -20, and so Phi
# is 0 or 1. An equally good polynomial has seven coefficients and takes five passes more; a quotient costs 1.5 passes.
_LOGISTIC = (-0.03318243298375354, -2.5838231477156128, 12.452528792746625, 319.80730027472623, 25.37510156077624)
# As arrays: a Python number costs half a microsecond more, with the GIL held.
_SINGLE_LOGISTIC = [np.array(c, np.float32) for c in _LOGISTIC]
_ONE = np.array(1, np.float32)
_FAR = 100  # beyond it, Phi(-x) counts as 0


def gelu(xp: Any, x: Any, *, approximate: str, out: Any = None) -> Any:
    """x Phi(x). In single precision on the host by a compiled loop, or by quotients and an exponential."""
    run = compiled.loop("gelu" if approximate == "none" else "gelu_tanh", xp, x)
    if run is None and (xp is not np or x.dtype != np.float32 or approximate == "tanh"):
        return gelu_exact(xp, x, approximate=approximate, out=out)
    out, result, values = flat(xp, out, x)
    if run is not None:
        run(values, result)
        return out
    over = np.may_share_memory(out, x)
    for block in long_blocks(xp, x.size, alive=16):
        v, y = values[block], result[block]
        np.divide(v, _single_odds(v, scratch(np, 0, v.shape, v.dtype) if over else y), y)
    return out


def gelu_exact(xp: Any, x: Any, *, approximate: str, out: Any = None) -> Any:
    """x Phi(x), accurate to rounding also in the tails: max(x, 0) - |x| Phi(-|x|)."""
    out, result, values = flat(xp, out, x)
    for block in blocks(xp, x.size):
        v, y = values[block], result[block]
        if approximate == "tanh":
            square = xp.square(v, out=scratch(xp, 0, v.shape, v.dtype))
            xp.multiply(v, _tanh_factor(xp, square, v, square), out=y)
        else:
            near = xp.clip(v, -_FAR, _FAR)
            tail = _normal_tail(xp, near)[0]
            tail *= xp.abs(near, out=near)
            relu(xp, v, out=y)
            y -= tail
    return out


def gelu_backward(xp: Any, grad: Any, x: Any, *, approximate: str, out: Any = None) -> Any:
    """grad (Phi(x) + x phi(x)), with Phi as in gelu."""
    if xp is not np or x.dtype != np.float32 or approximate == "tanh":
        return gelu_backward_exact(xp, grad, x, approximate=approximate, out=out)
    out, result, grads, values = flat(xp, out, grad, x)
    for block in long_blocks(xp, x.size, alive=20):
        np.multiply(grads[block], _single_slope(values[block]), out=result[block])
    return out


def gelu_backward_exact(xp: Any, grad: Any, x: Any, *, approximate: str, out: Any = None) -> Any:
    """The gradient of gelu, accurate to rounding."""
    out, result, grads, values = flat(xp, out, grad, x)
    for block in blocks(xp, x.size, alive=12):
        v = values[block]
        slope = _tanh_slope(xp, v) if approximate == "tanh" else _normal_slope(xp, v)
        xp.multiply(grads[block], slope, out=result[block])
    return out


def _normal_tail(xp: Any, x: Any) -> Any:
    """Phi(-|x|) = erfc(|x| / sqrt(2)) / 2, and exp(-x^2 / 2)."""
    z = xp.abs(x)
    z *= sqrt(0.5)
    return half_erfc(xp, z)


def _normal_slope(xp: Any, x: Any) -> Any:
    tail, bell = _normal_tail(xp, x)
    xp.subtract(0.5, tail, out=tail)
    slope = xp.copysign(tail, x)
    slope += 0.5
    bell *= x
    bell *= 1 / sqrt(2 * pi)
    slope += bell
    return slope


def _single_odds(x: Any, square: Any) -> Any:
    """1 / Phi(x) = 1 + exp(x P(x^2)); x divided by it has an error of less than 6e-7 of x.

    NumPy's tanh takes twice as long as its exp with vectors of 8 numbers, and as long with 16.
    """
    odds = scratch(np, 1, x.shape, x.dtype)
    a, b, c, d, e = _SINGLE_LOGISTIC
    np.square(x, square)
    np.add(square, e, odds)
    np.divide(d, odds, odds)
    np.add(odds, square, odds)
    np.divide(c, odds, odds)
    np.multiply(square, a, square)
    np.add(odds, square, odds)
    np.add(odds, b, odds)
    np.multiply(odds, x, odds)
    np.exp(odds, odds)
    return np.add(odds, _ONE, odds)


def _single_slope(x: Any) -> Any:
    bell = scratch(np, 0, x.shape, x.dtype)
    slope = _single_odds(x, bell)
    np.divide(_ONE, slope, slope)
    np.square(x, bell)
    bell *= -0.5
    np.exp(bell, out=bell)
    bell *= x
    bell *= 1 / sqrt(2 * pi)
    slope += bell
    return slope


def _tanh_factor(xp: Any, square: Any, x: Any, out: Any) -> Any:
    """(1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), given x^2."""
    factor = xp.multiply(square, -2 * 0.044715 * sqrt(2 / pi), out=out)
    factor += -2 * sqrt(2 / pi)
    factor *= x
    xp.exp(factor, out=factor)
    factor += 1
    return xp.divide(1, factor, out=factor)


def _tanh_slope(xp: Any, x: Any) -> Any:
    """f + 2 x f (1 - f) u' for the factor f."""
    # x^2, but at most 100: beyond it the factor is 0 or 1, and a larger square may overflow
    slope = xp.clip(x, -10, 10, out=scratch(xp, 0, x.shape, x.dtype))
    xp.square(slope, out=slope)
    factor = _tanh_factor(xp, slope, x, scratch(xp, 1, x.shape, x.dtype))
    slope *= 6 * 0.044715 * sqrt(2 / pi)
    slope += 2 * sqrt(2 / pi)
    slope *= xp.clip(x, -10, 10, out=scratch(xp, 2, x.shape, x.dtype))  # the product may overflow, too
    slope *= xp.subtract(1, factor, out=scratch(xp, 2, x.shape, x.dtype))
    slope += 1
    slope *= factor
    return slope


# Of double precision without an approximation an element takes 9 ns.
_GELU = in_place(gelu, blockwise_rule, "x times the normal distribution of x.", Cost.FUNCTION, compiled_as="gelu")
_GELU_BACKWARD = in_place(gelu_backward, blockwise_rule, "The gradient of gelu.", Cost.FUNCTION)


OPS = (
    # In a captured step `maximum` gives the same bits on short blocks, without rows of zeros.
    in_place(relu, relu_rule, "The larger of each element and 0.", Cost.SCALAR, ufunc=UfuncCall("maximum", (0,))),
    in_place(relu_backward, blockwise_rule, "The gradient of relu.", Cost.SCALAR),
    in_place(sigmoid, blockwise_rule, "1 / (1 + exp(-x)).", Cost.FUNCTION),
    in_place(leaky_relu, blockwise_rule, "max(x, 0) + negative_slope min(x, 0).", Cost.SCALAR),
    in_place(softplus, blockwise_rule, "log(1 + exp(beta x)) / beta.", Cost.FUNCTION),
    bounded(_GELU, gelu_exact, 1e-6, 1e-6),
    bounded(_GELU_BACKWARD, gelu_backward_exact, 1e-6, 2e-6),
)
