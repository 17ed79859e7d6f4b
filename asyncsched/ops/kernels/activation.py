"""Activations and their derivatives, in blocks as in `blocks`. gelu is in `gelu`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Op, Operand, Options, UfuncCall, elementwise
from ..rules import alike, blockwise_rule, same_as
from .blocks import blocks, flat, long_blocks
from .elementwise import kept
from .scratch import scratch

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


def softplus_backward(xp: Any, grad: Any, x: Any, *, beta: float, threshold: float, out: Any = None) -> Any:
    """grad / (1 + exp(-beta x)), or grad where beta x is above the threshold."""
    out, result, grads, values = flat(xp, out, grad, x)
    for block in blocks(xp, x.size):
        z = values[block] * beta
        above = z > threshold
        xp.exp(xp.negative(z, out=z), out=z)
        z += 1
        xp.divide(1, z, out=z)
        xp.maximum(z, above, out=z)
        xp.multiply(grads[block], z, out=result[block])
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def relu_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`relu`, in the layout of its operand."""
    alike(op, operands)
    return same_as(operands[0])


OPS = (
    # In a captured step `maximum` gives the same bits on short blocks, without rows of zeros.
    elementwise(relu, relu_rule, "The larger of each element and 0.", Cost.SCALAR, ufunc=UfuncCall("maximum", (0,))),
    elementwise(relu_backward, blockwise_rule, "The gradient of relu."),
    elementwise(sigmoid, blockwise_rule, "1 / (1 + exp(-x))."),
    elementwise(leaky_relu, blockwise_rule, "The larger of each element and 0, and a slope times the smaller."),
    elementwise(softplus, blockwise_rule, "log(1 + exp(beta x)) / beta."),
    elementwise(softplus_backward, blockwise_rule, "The gradient of softplus."),
)
