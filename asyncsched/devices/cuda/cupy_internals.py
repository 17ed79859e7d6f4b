"""The use of CuPy beyond its public interface: the CUDA C++ of its universal functions.

A universal function has several loops, one for each list of dtypes, and CuPy chooses among them as NumPy does. If a
version of CuPy does not have the names of `PRIVATE`, AttributeError or TypeError is raised. Then operations run one by
one, by CuPy's public functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

# All private names, as paths from CuPy, from one of its universal functions, or from a loop. Tested with CuPy 14.2.
PRIVATE: Final = {
    "typename": "_core._scalar.get_typename",
    "scalar": "_core._scalar.CScalar",
    "where": "_sorting.search._where_ufunc",
    "clip": "_core._routines_math.clip",
    "loops": "_ops",
    "loops by result": "_out_ops",
    "preparation": "_loop_prep",
    "preamble": "_preamble",
    "choose by result": "_guess_routine_from_dtype",
    "choose by operands": "_guess_routine_from_in_types",
    "resolution": "_resolution_func",
}
DTYPES = "?bBhHiIlLqQefd"  # dtypes of expressions: no complex numbers
# In CuPy's kernels NVRTC contracts these to multiply-adds. In a kernel of many operations it is told not to, so their
# bits may differ there. By the dtypes of their operands. `tests/devices/test_machine_code.py` finds them, and names
# others for which no bit was seen to differ.
_CONTRACTED: Final = {
    "cupy_remainder": "efd",
    "cupy_power": "d",
    "cupy_float_power": "d",
    "cupy_logaddexp": "d",
    "cupy_logaddexp2": "efd",
    "cupy_i0": "efd",
}


class NotElementwise(Exception):
    """The operation is not a single expression."""


class Loop(NamedTuple):
    """The loop of a universal function for elements of certain dtypes.

    Attributes:
        reads: the dtypes to which its operands are cast.
        writes: the dtype of its result.
        routine: a statement in C++ that reads `in0`, `in1`, ... and assigns to `out0`.
        preamble: code in front of the kernel.
    """

    reads: Sequence[Any]
    writes: np.dtype[Any]
    routine: str
    preamble: str


class Operand(NamedTuple):
    """An operand's dtype. For a Python number also its type, by which the dtype gives way to others."""

    dtype: np.dtype[Any]
    weak: type[int] | type[float] | None = None


def loop_of(ufunc: Any, operands: Sequence[Operand], dtype: Any) -> Loop:
    """CuPy's choice among a function's loops.

    Args:
        dtype: of the result, if one was asked for.

    Raises:
        NotElementwise: if there is no loop, or it is more than an expression.
    """
    if ufunc.nin != len(operands) or ufunc.nout != 1 or private(ufunc, "preparation"):
        raise NotElementwise(ufunc.name)
    if dtype is not None:
        loops = private(ufunc, "loops by result") or private(ufunc, "loops")
        op = private(loops, "choose by result")(np.dtype(dtype))
    else:
        weak, strong = ([_rank(o.dtype) for o in operands if (o.weak is not None) is want] for want in (True, False))
        gives_way = bool(strong) and max(strong) >= max(weak, default=-1)
        weaks = tuple([(o.weak or False) if gives_way else False for o in operands])
        op = private(private(ufunc, "loops"), "choose by operands")(tuple([o.dtype for o in operands]), weaks)
    if op is None or not isinstance(op.routine, str) or private(op, "resolution") is not None:
        raise NotElementwise(ufunc.name)
    if np.dtype(op.in_types[0]).char in _CONTRACTED.get(ufunc.name, ""):
        raise NotElementwise(ufunc.name)
    return Loop(op.in_types, np.dtype(op.out_types[0]), op.routine, private(ufunc, "preamble"))


def private(thing: Any, name: str) -> Any:
    """CuPy's object with a private name."""
    return attrgetter(PRIVATE[name])(thing)


def _rank(dtype: np.dtype[Any]) -> int:
    """Booleans, integers, floats: a Python number gives way to a dtype of its own rank or a higher one."""
    return "biuf".index(dtype.kind) if dtype.kind in "bi" else 1 if dtype.kind == "u" else 2
