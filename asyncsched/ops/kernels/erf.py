"""The error function, its inverse, and the tail of it that gelu uses.

On the host they are computed in float64, in blocks as in `blocks`, and rounded once to the result's dtype; on CUDA they
are CuPy's.
"""

from __future__ import annotations

from importlib import import_module
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from ..declare import Inferred, Op, Operand, Options, in_place, meta
from ..rules import as_meta, copies
from .blocks import BLOCK, blocks

# (1 + 2z) exp(z^2) erfc(z) as a Chebyshev series in (z - 3) / (z + 3), for z >= 0: the form of M. M. Shepherd and
# J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < oo", Math. Comp. 36 (1981).
# The 23 coefficients were computed anew with 50 digits for their method with k = 3. Error of erfc below 1e-15. Here
# they are those of powers, highest first.
_ERFC_SERIES = (
    -3.1813541434969274e-09, -7.641962892589975e-09, 2.784388126550223e-08, 8.765881411730562e-08,
    -1.205414228648938e-07, -5.96398362552274e-07, 3.366979080640759e-07, 3.454294770277738e-06, -7.187883834404266e-07,
    -2.0089997833284272e-05, 4.944124342223659e-06, 0.00012509531076254532, -0.00010515831297813128,
    -0.0007798312797290158, 0.0018886900977441495, 0.0025293916672051724, -0.023770514891530075, 0.06830802735638396,
    -0.11927366341676, 0.1296451587022835, -0.04756229435342038, -0.13562110612457576, 1.2530080582697296,
)  # fmt: skip
# The same of the first 11 terms, for single precision: the next one is below the rounding.
_ERFC_SINGLE = (
    -9.254516686923966e-05, -0.0005138505128719338, 0.001875079123772354, 0.002286513703444833, -0.023763576439495043,
    0.06840958165633679, -0.1192752752822409, 0.129627504721725, -0.047562156927520055, -0.13562023891915578,
    1.2530080563677553,
)  # fmt: skip
_NEAR = 0.75  # below, erf(x) / x is a polynomial in x^2, since 1 - erfc(x) would lose the digits of small numbers
_FAR = 6.0  # beyond, erf rounds to 1
# That polynomial: the Chebyshev interpolant on [0, 0.75^2], computed with 50 digits. Highest power first.
_NEAR_SERIES = (
    1.1472499701094691e-08, -1.5940066854661717e-07, 1.643068417974155e-06, -1.4924196305569617e-05,
    0.00012055289567541706, -0.0008548326188759752, 0.005223977615420539, -0.026866170644428485, 0.11283791670952596,
    -0.37612638903183715, 1.1283791670955126,
)  # fmt: skip
_ALIVE = 8  # arrays of a block in use at once


def erf(xp: Any, x: Any, *, out: Any = None) -> Any:
    """The error function."""
    return _each(xp, "erf", _erf, x, out)


def erfinv(xp: Any, x: Any, *, out: Any = None) -> Any:
    """The inverse error function: infinite at -1 and 1, NaN beyond."""
    return _each(xp, "erfinv", _erfinv, x, out)


def half_erfc(xp: Any, z: Any) -> Any:
    """erfc(z) / 2 and exp(-z^2), for z >= 0; overwrites `z`."""
    bell = xp.exp(-xp.square(z))
    t = z - 3
    t /= z + 3
    tail = _horner(xp, t, _ERFC_SINGLE if z.dtype.itemsize < 8 else _ERFC_SERIES)
    tail *= bell
    z *= 4
    z += 2
    tail /= z
    return tail, bell


def _each(xp: Any, name: str, function: Any, x: Any, out: Any) -> Any:
    """Apply a function in blocks of float64, or CuPy's function of this name, in the layout of the operand.

    CuPy's computes in the dtype of its operand, half precision in single.
    """
    x = x if hasattr(x, "dtype") else xp.asarray(x)
    out = xp.empty_like(x, dtype=_dtype(name, x.dtype)) if out is None else out
    if xp is not np:
        function = getattr(import_module("cupyx.scipy.special"), name)
        noted = getattr(xp, "call", None)  # of a namespace that records the operations on one element
        if noted is not None:
            return noted(function, x.astype(out.dtype), out=out)
        if x.dtype == out.dtype:
            return function(x, out=out)
    order = sorted(range(x.ndim), key=lambda axis: -out.strides[axis])
    values, result = [array.transpose(order).reshape(-1) for array in (x, out)]
    for block in blocks(xp, x.size, alive=_ALIVE):
        result[block] = function(values[block].astype(np.float64))
    return out


def _erf(x: Any) -> Any:
    z = np.abs(x)
    near = z < _NEAR
    np.minimum(z, _FAR, out=z)
    series = _horner(np, np.square(z), _NEAR_SERIES)
    series *= x
    found, _ = half_erfc(np, z)
    found *= -2
    found += 1
    np.copysign(found, x, out=found)
    np.copyto(found, series, where=near)
    return found


# The quantiles of the normal distribution: M. J. Wichura, "Algorithm AS 241: The Percentage Points of the Normal
# Distribution", Applied Statistics 37 (1988), PPND16: three quotients of polynomials with an error of about 1e-16 of
# the result. Numerators and denominators, highest power first.
_MIDDLE = (  # in 0.425^2 - (x / 2)^2, while that is not negative
    (
        2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
        13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608,
    ),
    (
        5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
        5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0,
    ),
)  # fmt: skip
_TAIL = (  # in r - 1.6, where r = sqrt(-log((1 - |x|) / 2)) is at most 5
    (
        7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
        3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
        0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0,
    ),
)  # fmt: skip
_FAR_TAIL = (  # in r - 5
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
        0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772,
    ),
    (
        2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
        0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0,
    ),
)  # fmt: skip


def _erfinv(x: Any) -> Any:
    """The quantile of (1 + x) / 2, over the square root of two. Neither 1 - |x| nor x loses a digit."""
    r = np.abs(x)
    middle, ends = r <= 0.85, r == 1
    np.subtract(1, r, out=r)
    r *= 0.5
    np.sqrt(np.negative(np.log(r, out=r), out=r), out=r)
    found = _quotient(r - 1.6, _TAIL)
    if (r > 5).any():
        np.copyto(found, _quotient(r - 5, _FAR_TAIL), where=r > 5)
    found[ends] = inf
    np.copysign(found, x, out=found)
    np.multiply(x, 0.5, out=r)
    square = np.subtract(0.425**2, np.square(r))
    np.copyto(found, np.multiply(_quotient(square, _MIDDLE), r, out=r), where=middle)
    found *= sqrt(0.5)
    return found


def _quotient(x: Any, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    above, below = [_horner(np, x, coefficients) for coefficients in polynomials]
    above /= below
    return above


def _horner(xp: Any, x: Any, coefficients: Any) -> Any:
    """The polynomial with these coefficients, highest power first."""
    first, *rest = coefficients
    value = xp.full_like(x, first)
    for coefficient in rest:
        value *= x
        value += coefficient
    return value


# -- rules -------------------------------------------------------------------------------------------------------------


def erf_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """In the dtype of SciPy's result, computed in blocks of float64."""
    array = as_meta(operands[0])
    result = meta(array.shape, _dtype(op.name, array.dtype), array.contiguous)
    return Inferred(result, copies(operands) + 8 * min(prod(array.bound) * _ALIVE, 8 * BLOCK))


def _dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the first of SciPy's loops that takes such numbers without loss.

    Before SciPy 1.18 the loop of `erf` in single precision took no other dtype; here it never does.
    """
    for wide in (np.float32, np.float64):
        if np.can_cast(dtype, wide) and not (name == "erf" and wide is np.float32 and dtype != wide):
            return np.dtype(wide)
    raise TypeError(f"{name}: dtype {dtype} is not supported: use real numbers of at most 64 bits")


OPS = (
    in_place(erf, erf_rule, "The error function."),
    in_place(erfinv, erf_rule, "The inverse of the error function."),
)
