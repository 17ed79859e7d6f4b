"""What numba compiles: operations of networks in single precision as one loop each. Imported by `compiled` alone.

NaN goes through all of them, which is why `fastmath` allows some liberties alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from . import attention_loops, image_loops, tile_loops
from .elementary import exp, exp_near, exp_to_infinity, less, part, tanh
from .exponentials import LEAST, LEAST_LOG, MOST, MOST_LOG

_f = np.float32
_LIBERTIES = {"reassoc", "contract", "arcp", "nsz"}  # sums in any order; not: that nothing is NaN or infinite
_IN = [types.Array(types.float32, ndim, "C", readonly=True) for ndim in range(3)]
_OUT = [types.Array(types.float32, ndim, "C") for ndim in range(3)]
_TARGETS = types.Array(types.int64, 1, "C", readonly=True)


def _loop(*signature: Any) -> Any:
    return njit(types.void(*signature), nogil=True, cache=True, fastmath=_LIBERTIES, error_model="numpy")


_sum = njit(fastmath=_LIBERTIES, error_model="numpy")

# Phi(-a) = p(a)^-8, as in Abramowitz and Stegun 7.1.28: p, highest power first, fitted anew to the error of a Phi(-a)
# for a >= 0, which is 5e-8 before rounding; gelu is off by less than 3e-7.
_TAIL = (
    3.2473172854802805e-06, -1.8940562932737742e-05, 0.00011020852691438418, 0.00011019509211960838,
    0.0010884406358028093, 0.009350653518210808, 0.048852570896540104, 0.10875639619174501, 1.090507986454959,
)  # fmt: skip
_G8, _G7, _G6, _G5, _G4, _G3, _G2, _G1, _G0 = [_f(c) for c in _TAIL]
_FAR = _f(13)  # where a Phi(-a) is 0 in single precision


@part
def _normal_tail(a: Any) -> Any:
    """a Phi(-a) for a >= 0."""
    p = (((((((_G8 * a + _G7) * a + _G6) * a + _G5) * a + _G4) * a + _G3) * a + _G2) * a + _G1) * a + _G0
    p *= p
    p *= p
    p *= p
    y = a / p
    return _f(0) if a > _FAR else y


@_loop(_IN[1], _OUT[1])
def gelu(x: Any, out: Any) -> None:
    for i in range(x.size):
        v = x[i]
        y = (v if v > _f(0) else _f(0)) - _normal_tail(abs(v))
        out[i] = y


_TANH1, _TANH3 = _f(-2 * math.sqrt(2 / math.pi)), _f(-2 * math.sqrt(2 / math.pi) * 0.044715)


@_loop(_IN[1], _OUT[1])
def gelu_tanh(x: Any, out: Any) -> None:
    for i in range(x.size):
        v = x[i]
        z = _f(-10) if v < _f(-10) else v
        z = _f(10) if z > _f(10) else z
        y = v / (_f(1) + exp_near(z * (_TANH1 + _TANH3 * z * z)))
        out[i] = _f(0) if v < _f(-10) else y


_FIRST = 64  # elements of a row, whose mean is near enough that of all


@_loop(_IN[2], _IN[1], _IN[1], types.float64, _OUT[2])
def layer_norm(x: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    """Mean and variance in one pass, of what is left of a row after a first guess of its mean; another pass where the
    guess was so far off that squares would cancel."""
    count, width = x.shape
    first = min(width, _FIRST)
    of_all, of_first = _f(1) / _f(width), _f(1) / _f(first)
    for i in range(count):
        guess = _f(0)
        for j in range(first):
            guess += x[i, j]
        guess *= of_first
        total = squares = _f(0)
        for j in range(width):
            rest = x[i, j] - guess
            total += rest
            squares += rest * rest
        off = total * of_all
        mean = guess + off
        variance = squares * of_all - off * off
        if not off * off <= _f(4) * variance:  # NaN too
            squares = _f(0)
            for j in range(width):
                squares += (x[i, j] - mean) * (x[i, j] - mean)
            variance = squares * of_all
        scale = _f(1) / _f(math.sqrt(variance + _f(eps)))
        for j in range(width):
            out[i, j] = (x[i, j] - mean) * scale * weight[j] + bias[j]


@_sum
def _peak(x: Any, i: Any) -> Any:
    peak = x[i, 0]
    for j in range(x.shape[1]):
        v = x[i, j]
        peak = v if v > peak or v != v else peak
    return peak


@_sum
def _exponentials(x: Any, i: Any, shift: Any, row: Any) -> Any:
    total = _f(0)
    for j in range(row.size):
        e = exp(less(x[i, j], shift))
        row[j] = e
        total += e
    return total


@_loop(_IN[2], _OUT[2])
def softmax(x: Any, out: Any) -> None:
    count, width = x.shape
    row = np.empty(width, np.float32)  # not in `out`, which may be `x`
    for i in range(count):
        total = _exponentials(x, i, _f(0), row)
        if not (total >= _f(LEAST) and total <= _f(MOST)):
            total = _exponentials(x, i, _peak(x, i), row)
        scale = _f(1) / total
        for j in range(width):
            out[i, j] = row[j] * scale


@_sum
def _sum_of_exponentials(x: Any, i: Any, shift: Any) -> Any:
    total = _f(0)
    for j in range(x.shape[1]):
        total += exp(less(x[i, j], shift))
    return total


@_sum
def _shifted_sum(x: Any, i: Any) -> Any:
    """What was subtracted from a row, and the sum of its exponentials then."""
    shift = _f(0)
    total = _sum_of_exponentials(x, i, shift)
    if not (total >= _f(LEAST_LOG) and total <= _f(MOST_LOG)):
        shift = _peak(x, i)
        total = _sum_of_exponentials(x, i, shift)
    return shift, total


@_loop(_IN[2], _OUT[2])
def log_softmax(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        shift, total = _shifted_sum(x, i)
        log = _f(math.log(total))
        for j in range(x.shape[1]):
            out[i, j] = less(less(x[i, j], shift), log)


@_loop(_IN[2], _TARGETS, _OUT[1])
def cross_entropy(x: Any, target: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        shift, total = _shifted_sum(x, i)
        out[i] = less(_f(math.log(total)), less(x[i, target[i]], shift))


LOOPS = {one.__name__: one for one in (gelu, gelu_tanh, layer_norm, softmax, log_softmax, cross_entropy)}
LOOPS |= attention_loops.LOOPS | image_loops.LOOPS | tile_loops.LOOPS


def compiled_run(source: str, constants: dict[str, Any], dimensions: list[int], results: int) -> Any:
    """A run of a captured step, as `run_loop` writes it."""
    space = {**constants, "one": _f(1), "exp": exp_to_infinity, "tanh": tanh, "sqrt": np.sqrt}
    exec(source, space)
    arrays = [*[_IN[ndim] for ndim in dimensions], *[_OUT[1]] * results]
    return njit(types.void(types.int64, *arrays), nogil=True, error_model="numpy")(space["run"])
