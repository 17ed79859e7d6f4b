"""gelu, which is x times the normal distribution function of x, and its derivative, in blocks as in `blocks`."""

from __future__ import annotations

from functools import cache
from math import pi, sqrt
from typing import Any

import numpy as np

from ..declare import bounded, elementwise
from ..rules import blockwise_rule
from . import compiled
from .activation import relu
from .blocks import blocks, flat, long_blocks
from .scratch import scratch

# (1 + 2z) exp(z^2) erfc(z) as a Chebyshev series in (z - 3) / (z + 3), for z >= 0: the form of M. M. Shepherd and
# J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < oo", Math. Comp. 36 (1981).
# The coefficients were computed anew with 50 digits for their method with k = 3. Error of erfc below 1e-15.
_ERFC_SERIES = (
    1.17756257419656, 0.005353904539615676, -0.09377550342284209, 0.05436652555744322, -0.018976596707845208,
    0.004453426061462712, -0.0006335531710553147, 1.7661719523171593e-05, 1.2841532864056671e-05,
    -2.0072285659059913e-06, -1.807522790414837e-07, 7.549828343825093e-08, 1.885668523838603e-09,
    -2.699519049798364e-09, -1.460079119939105e-11, 1.0361607445969489e-10, 1.475715976623473e-12,
    -4.277340064396911e-12, -2.07922492859799e-13, 1.8134502003176963e-13, 1.973425574544739e-14,
    -7.287943737592673e-15, -1.5169878690228116e-15,
)  # fmt: skip
# P of `_single_factor`, P(s) = A s + B + C / (s + D / (s + E)): Phi is a logistic function of an odd one. Fitted to the
# error of x Phi(x) on [-6, 6], where that is 2e-7 before rounding; beyond, x P(x^2) is above 10 and tanh 1, and so Phi
# 0 or 1. A polynomial as good has seven coefficients and takes five passes more; a quotient costs 1.5 of them.
_LOGISTIC = (0.01659121649187677, 1.2919115738578064, -6.226264396373312, 319.80730027472623, 25.37510156077624)
# As arrays: a Python number costs half a microsecond more, with the GIL held.
_SINGLE_LOGISTIC = [np.array(c, np.float32) for c in _LOGISTIC]
_HALF = np.array(0.5, np.float32)
_FAR = 100  # where Phi(-x) is 0, as it is at infinity
_SINGLE_TERMS = 11  # of the series for single precision, where the next is below the rounding


def gelu(xp: Any, x: Any, *, out: Any = None) -> Any:
    """x Phi(x), in single precision on the host by a compiled loop, or by quotients and tanh."""
    run = compiled.loop("gelu", xp, x)
    if run is None and (xp is not np or x.dtype != np.float32):
        return gelu_exact(xp, x, out=out)
    out, result, values = flat(xp, out, x)
    if run is not None:
        run(values, result)
        return out
    over = np.may_share_memory(out, x)
    for block in long_blocks(xp, x.size, alive=16):
        v, y = values[block], result[block]
        np.multiply(v, _single_factor(v, scratch(np, 0, v.shape, v.dtype) if over else y), y)
    return out


def gelu_exact(xp: Any, x: Any, *, out: Any = None) -> Any:
    """The same to rounding, in the tails too: max(x, 0) - |x| Phi(-|x|)."""
    out, result, values = flat(xp, out, x)
    for block in blocks(xp, x.size):
        v, y = values[block], result[block]
        near = xp.clip(v, -_FAR, _FAR)
        tail = _normal_tail(xp, near)[0]
        tail *= xp.abs(near, out=near)
        relu(xp, v, out=y)
        y -= tail
    return out


def gelu_backward(xp: Any, grad: Any, x: Any, *, out: Any = None) -> Any:
    """grad (Phi(x) + x phi(x)), with Phi as in `gelu`."""
    if xp is not np or x.dtype != np.float32:
        return gelu_backward_exact(xp, grad, x, out=out)
    out, result, grads, values = flat(xp, out, grad, x)
    for block in long_blocks(xp, x.size, alive=20):
        np.multiply(grads[block], _single_slope(values[block]), out=result[block])
    return out


def gelu_backward_exact(xp: Any, grad: Any, x: Any, *, out: Any = None) -> Any:
    """The gradient of gelu to rounding."""
    out, result, grads, values = flat(xp, out, grad, x)
    for block in blocks(xp, x.size, alive=12):
        xp.multiply(grads[block], _normal_slope(xp, values[block]), out=result[block])
    return out


@cache
def _erfc_polynomial(single: bool) -> list[float]:
    """The series as coefficients of powers, highest first."""
    from numpy.polynomial.chebyshev import cheb2poly

    powers: list[float] = cheb2poly(_ERFC_SERIES[: _SINGLE_TERMS if single else None]).tolist()
    return powers[::-1]


def _normal_tail(xp: Any, x: Any) -> Any:
    """Phi(-|x|) = erfc(|x| / sqrt(2)) / 2, and exp(-x^2 / 2)."""
    z = xp.abs(x)
    z *= sqrt(0.5)
    bell = xp.exp(-xp.square(z))
    t = z - 3
    t /= z + 3
    first, *rest = _erfc_polynomial(x.dtype.itemsize < 8)
    tail = xp.full_like(t, first)
    for coefficient in rest:
        tail *= t
        tail += coefficient
    tail *= bell
    z *= 4
    z += 2
    tail /= z
    return tail, bell


def _normal_slope(xp: Any, x: Any) -> Any:
    tail, bell = _normal_tail(xp, x)
    xp.subtract(0.5, tail, out=tail)
    slope = xp.copysign(tail, x)
    slope += 0.5
    bell *= x
    bell *= 1 / sqrt(2 * pi)
    slope += bell
    return slope


def _single_factor(x: Any, square: Any) -> Any:
    """Phi(x) = (1 + tanh(x P(x^2))) / 2, off by less than 6e-7: NumPy's tanh is the fastest of its functions."""
    factor = scratch(np, 1, x.shape, x.dtype)
    a, b, c, d, e = _SINGLE_LOGISTIC
    np.square(x, square)
    np.add(square, e, factor)
    np.divide(d, factor, factor)
    np.add(factor, square, factor)
    np.divide(c, factor, factor)
    np.multiply(square, a, square)
    np.add(factor, square, factor)
    np.add(factor, b, factor)
    np.multiply(factor, x, factor)
    np.tanh(factor, factor)
    np.multiply(factor, _HALF, factor)
    return np.add(factor, _HALF, factor)


def _single_slope(x: Any) -> Any:
    bell = scratch(np, 0, x.shape, x.dtype)
    slope = _single_factor(x, bell)
    np.square(x, bell)
    bell *= -0.5
    np.exp(bell, out=bell)
    bell *= x
    bell *= 1 / sqrt(2 * pi)
    slope += bell
    return slope


_GELU = elementwise(gelu, blockwise_rule, "x times the normal distribution function of x.", compiled_as="gelu")
_GELU_BACKWARD = elementwise(gelu_backward, blockwise_rule, "The gradient of gelu.")
OPS = (bounded(_GELU, gelu_exact, 1e-6, 1e-6), bounded(_GELU_BACKWARD, gelu_backward_exact, 1e-6, 2e-6))
