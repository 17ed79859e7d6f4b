"""Loops that numba compiles: operations of networks in single precision, one loop each. Only `compiled` imports this.

NaN passes through all of them, so `fastmath` is limited to some liberties.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from .blocks import ORDINARY, ORDINARY_LOG

_f = np.float32
(_LEAST, _MOST), (_LEAST_LOG, _MOST_LOG) = map(_f, ORDINARY), map(_f, ORDINARY_LOG)
_LIBERTIES = {"reassoc", "contract", "arcp", "nsz"}  # sums in any order; NaN and infinity stay possible
_IN = [types.Array(types.float32, ndim, "C", readonly=True) for ndim in range(4)]
_OUT = [types.Array(types.float32, ndim, "C") for ndim in range(4)]
_TARGETS = types.Array(types.int64, 1, "C", readonly=True)
_PAIR = types.UniTuple(types.int64, 2)


def _loop(*signature: Any) -> Any:
    return njit(types.void(*signature), nogil=True, cache=True, fastmath=_LIBERTIES, error_model="numpy")


_sum = njit(fastmath=_LIBERTIES, error_model="numpy")

# -- functions of one number ---------------------------------------------------------------------------------------

# Written out as polynomials: numba has no vector versions, and calls a function for each element where NumPy does
# sixteen at a time.
_part = njit(fastmath={"contract"}, error_model="numpy")  # in the written order


@_part
def less(a: Any, b: Any) -> Any:
    """a - b in this order: a loop whose sums may be in any order could defer it until both are large."""
    return a - b


_LOG2E, _LN2_HIGH, _LN2_LOW = _f(1.4426950408889634), _f(0.693359375), _f(-2.12194440e-4)
_LEAST_EXP, _MOST_EXP = _f(-87.33), _f(88.0)
_POLYNOMIAL = (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
_E2, _E3, _E4, _E5, _E6, _E7 = [_f(c) for c in _POLYNOMIAL]


@_part
def exp_near(v: Any) -> Any:
    """e^v for -87.3 < v < 88.3, as in Cephes: 2^n times a polynomial of the remainder."""
    n = np.floor(v * _LOG2E + _f(0.5))
    r = (v - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_E7 * r + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * (r * r) + r + _f(1)) * power


@_part
def exp(x: Any) -> Any:
    """e^x, limited: 0 instead of results below 1e-38, and 1.7e38 instead of larger ones."""
    v = _LEAST_EXP if x < _LEAST_EXP else x
    y = exp_near(_MOST_EXP if v > _MOST_EXP else v)
    return _f(0) if x < _LEAST_EXP else y


@_part
def exp_to_infinity(x: Any) -> Any:
    """e^x without the upper limit: computed as a square."""
    half = x > _f(80)
    y = exp(x * _f(0.5) if half else x)
    return y * y if half else y


_TANH_OVER = (-5.6416762410444755e-14, 4.087417207402143e-11, -1.7583789182401143e-08, 1.0467499187504161e-05)
_T0, _T1, _T2, _T3 = [_f(c) for c in _TANH_OVER]
_T4, _T5, _T6 = _f(0.0030360983153184112), _f(0.1302255336823433), _f(0.9999998719479379)
_TANH_UNDER = (2.4486609330362513e-4, 0.024222763997786688, 0.46355838509634517)
_U0, _U1, _U2 = [_f(c) for c in _TANH_UNDER]
_TANH_END = _f(7.90531110763549805)  # from here on the quotient is 1


@_part
def tanh(x: Any) -> Any:
    """tanh as a quotient of polynomials, Eigen's for single precision. The error is some units in the last place.

    Both are divided by a common factor, so that the last coefficients are about 1: tiny numbers pass unchanged.
    """
    z = -_TANH_END if x < -_TANH_END else x
    z = _TANH_END if z > _TANH_END else z
    s = z * z
    p = z * ((((((_T0 * s + _T1) * s + _T2) * s + _T3) * s + _T4) * s + _T5) * s + _T6)
    return p / (((_U0 * s + _U1) * s + _U2) * s + _f(1))


# -- operations ----------------------------------------------------------------------------------------------------

# Phi(-a) = p(a)^-8, as in Abramowitz and Stegun 7.1.28: p, highest power first, fitted anew to the error of a Phi(-a)
# for a >= 0, which is 5e-8 before rounding; gelu is off by less than 3e-7.
_TAIL = (
    3.2473172854802805e-06, -1.8940562932737742e-05, 0.00011020852691438418, 0.00011019509211960838,
    0.0010884406358028093, 0.009350653518210808, 0.048852570896540104, 0.10875639619174501, 1.090507986454959,
)  # fmt: skip
_G8, _G7, _G6, _G5, _G4, _G3, _G2, _G1, _G0 = [_f(c) for c in _TAIL]
_FAR = _f(13)  # from here on a Phi(-a) is 0 in single precision


@_part
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


_FIRST = 64  # elements of a row, whose mean is close enough to that of all


@_loop(_IN[2], _IN[1], _IN[1], types.float64, _OUT[2])
def layer_norm(x: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    """Mean and variance in one pass, after a first guess of the mean is subtracted from the row.

    Another pass follows if the guess was so far off that squares would cancel.
    """
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
        if not off * off <= _f(4) * variance:  # also true for NaN
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


@_loop(_OUT[2], _OUT[1])
def exponentials(x: Any, totals: Any) -> None:
    """Each number becomes its exponential; and the sum of each row."""
    for i in range(x.shape[0]):
        total = _f(0)
        for j in range(x.shape[1]):
            e = exp(x[i, j])
            x[i, j] = e
            total += e
        totals[i] = total


@_loop(_IN[2], _OUT[2])
def softmax(x: Any, out: Any) -> None:
    count, width = x.shape
    row = np.empty(width, np.float32)  # not `out`, which may be `x`
    for i in range(count):
        total = _exponentials(x, i, _f(0), row)
        if not (total >= _LEAST and total <= _MOST):
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
    """The number subtracted from a row, and the sum of exponentials after that."""
    shift = _f(0)
    total = _sum_of_exponentials(x, i, shift)
    if not (total >= _LEAST_LOG and total <= _MOST_LOG):
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


@_part
def _larger(a: Any, b: Any) -> Any:
    """The larger of two, or NaN."""
    return b if b > a or b != b else a


_LANES = 8  # numbers in a vector; some processors have 16, but rows are short


@_loop(_IN[3], _OUT[3])
def max_pool2d(x: Any, out: Any) -> None:
    """Windows of two by two, side by side: first the maximum over columns, as in the plain kernel.

    Two columns are read as one complex number: LLVM makes vectors if neighbours have one index. The rest of a row would
    be done one by one, so vectors go on past the row's end. The elements written there are written again with the next
    row.
    """
    pairs, (planes, rows, columns) = x.view(np.complex64), out.shape
    vectors = -(-columns // _LANES) * _LANES if columns > _LANES else columns  # less than a row past the end
    for p in range(planes):
        for i in range(rows):
            last = p + 1 == planes and i + 1 == rows
            for j in range(columns if last else vectors):
                above, below = pairs[p, 2 * i, j], pairs[p, 2 * i + 1, j]
                out[p, i, j] = _larger(_larger(above.real, below.real), _larger(above.imag, below.imag))


@_part
def _max(a: Any, b: Any) -> Any:
    return b if b > a else a


@_part
def _shared(a: Any, b: Any, given: Any) -> Any:
    """The gradient for the larger of two, or the first of equals: for both of them, as a complex number.

    It compares and masks: a branch would be mispredicted half of the time.
    """
    return complex(given if a >= b else _f(0), given if b > a else _f(0))


@_part
def _is_nan(v: Any) -> Any:
    return v != v


@_part
def _last_nan(x: Any, p: Any, top: Any, bottom: Any, left: Any, right: Any) -> Any:
    for r in range(bottom - 1, top - 1, -1):
        for c in range(right - 1, left - 1, -1):
            if _is_nan(x[p, r, c]):
                return r, c
    return top, left


@_loop(_IN[3], _IN[3], _IN[3], _OUT[3])
def max_pool2d_backward(x: Any, y: Any, grad: Any, out: Any) -> None:
    """Windows of two by two, side by side: gradients go to the first of the largest elements, but to the last NaN."""
    pairs, given = x.view(np.complex64), out.view(np.complex64)
    out[:, 2 * y.shape[1] :] = 0
    for p in range(y.shape[0]):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                above, below = pairs[p, 2 * i, j], pairs[p, 2 * i + 1, j]
                rows = _shared(_max(above.real, above.imag), _max(below.real, below.imag), grad[p, i, j])
                given[p, 2 * i, j] = _shared(above.real, above.imag, rows.real)
                given[p, 2 * i + 1, j] = _shared(below.real, below.imag, rows.imag)
                if _is_nan(y[p, i, j]):
                    given[p, 2 * i, j] = given[p, 2 * i + 1, j] = 0
                    row, column = _last_nan(x, p, 2 * i, 2 * i + 2, 2 * j, 2 * j + 2)
                    out[p, row, column] = grad[p, i, j]


@_part
def _if_larger(a: Any, b: Any, place: Any, at: Any) -> Any:
    return place if b > a else at


@_loop(_PAIR, _PAIR, _PAIR, _IN[3], _IN[3], _IN[3], _OUT[3])
def max_pool2d_backward_any(kernel: Any, stride: Any, padding: Any, x: Any, y: Any, grad: Any, out: Any) -> None:
    """The same for any windows, the last first: so where they overlap, sums are the plain kernel's, except with NaN."""
    out[:] = 0
    height, width = x.shape[1:]
    for p in range(y.shape[0]):
        plane, given = x[p].reshape(-1), out[p].reshape(-1)
        for i in range(y.shape[1] - 1, -1, -1):
            top = i * stride[0] - padding[0]
            first, last = max(top, 0), min(top + kernel[0], height)
            for j in range(y.shape[2] - 1, -1, -1):
                left = j * stride[1] - padding[1]
                start, stop = max(left, 0), min(left + kernel[1], width)
                at = np.uint64(first * width + start)
                peak = plane[at]
                for r in range(first, last):
                    for c in range(start, stop):
                        place = np.uint64(r * width + c)
                        at = _if_larger(peak, plane[place], place, at)
                        peak = _max(peak, plane[place])
                if _is_nan(y[p, i, j]):
                    r, c = _last_nan(x, p, first, last, start, stop)
                    at = np.uint64(r * width + c)
                given[at] += grad[p, i, j]


_ALL = (
    gelu, gelu_tanh, layer_norm, exponentials, softmax, log_softmax, cross_entropy,
    max_pool2d, max_pool2d_backward, max_pool2d_backward_any,
)  # fmt: skip
LOOPS = {one.__name__: one for one in _ALL}


def compiled_run(source: str, constants: dict[str, Any], dimensions: list[int], results: int) -> Any:
    """Compile a run of a captured step from the source that `ops.fused` writes."""
    space = {**constants, "one": _f(1), "exp": exp_to_infinity, "tanh": tanh, "sqrt": np.sqrt}
    exec(source, space)
    arrays = [*[_IN[ndim] for ndim in dimensions], *[_OUT[1]] * results]
    return njit(types.void(types.int64, *arrays), nogil=True, error_model="numpy")(space["run"])
