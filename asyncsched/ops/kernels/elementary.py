"""Functions of one number that the loops of numba call, in single precision. Imported by those loops alone.

They are written out as polynomials: numba has none for the processor's vectors, and calls for each element what NumPy
does for sixteen at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_f = np.float32
part = njit(fastmath={"contract"}, error_model="numpy")  # in the order written


@part
def less(a: Any, b: Any) -> Any:
    """a - b, as it stands: a loop whose sums may be in any order could put it off until both are large."""
    return a - b


_LOG2E, _LN2_HIGH, _LN2_LOW = _f(1.4426950408889634), _f(0.693359375), _f(-2.12194440e-4)
_LEAST_EXP, _MOST_EXP = _f(-87.33), _f(88.0)
_POLYNOMIAL = (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
_E2, _E3, _E4, _E5, _E6, _E7 = [_f(c) for c in _POLYNOMIAL]


@part
def exp_near(v: Any) -> Any:
    """e^v for -87.3 < v < 88.3, as in Cephes: 2^n times a polynomial of what is left."""
    n = np.floor(v * _LOG2E + _f(0.5))
    r = (v - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_E7 * r + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * (r * r) + r + _f(1)) * power


@part
def exp(x: Any) -> Any:
    """e^x; 0 where it would be less than 1e-38, and 1.7e38 where it would be more."""
    v = _LEAST_EXP if x < _LEAST_EXP else x
    y = exp_near(_MOST_EXP if v > _MOST_EXP else v)
    return _f(0) if x < _LEAST_EXP else y


@part
def exp_to_infinity(x: Any) -> Any:
    """e^x, also where that is more: as a square."""
    half = x > _f(80)
    y = exp(x * _f(0.5) if half else x)
    return y * y if half else y


_TANH_OVER = (-5.6416762410444755e-14, 4.087417207402143e-11, -1.7583789182401143e-08, 1.0467499187504161e-05)
_T0, _T1, _T2, _T3 = [_f(c) for c in _TANH_OVER]
_T4, _T5, _T6 = _f(0.0030360983153184112), _f(0.1302255336823433), _f(0.9999998719479379)
_TANH_UNDER = (2.4486609330362513e-4, 0.024222763997786688, 0.46355838509634517)
_U0, _U1, _U2 = [_f(c) for c in _TANH_UNDER]
_TANH_END = _f(7.90531110763549805)  # where the quotient is 1


@part
def tanh(x: Any) -> Any:
    """As a quotient of polynomials, which Eigen has for single precision; off by some units in the last place.

    Over a common factor, so that the last coefficients are about 1: what is tiny passes through unharmed.
    """
    z = -_TANH_END if x < -_TANH_END else x
    z = _TANH_END if z > _TANH_END else z
    s = z * z
    p = z * ((((((_T0 * s + _T1) * s + _T2) * s + _T3) * s + _T4) * s + _T5) * s + _T6)
    return p / (((_U0 * s + _U1) * s + _U2) * s + _f(1))
