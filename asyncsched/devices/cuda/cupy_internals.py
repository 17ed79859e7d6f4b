"""What is used of CuPy that is not its public interface: the CUDA C++ of its universal functions.

A universal function has several loops, one for each list of dtypes, and CuPy chooses among them as NumPy does. Where a
version of CuPy has none of this under these names, AttributeError is raised, or TypeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

DTYPES = "?bBhHiIlLqQefd"  # those that are told as expressions: no complex numbers
# NVRTC would contract these to multiply-adds within CuPy's kernel, and is told not to in one of many operations.
_CONTRACTED = ("cupy_remainder",)


class NotElementwise(Exception):
    """The operation cannot be told as an expression."""


class Loop(NamedTuple):
    """What a universal function does to elements of certain dtypes.

    Attributes:
        reads: the dtypes that its operands are cast to.
        writes: that of its result.
        routine: a statement in C++ that reads `in0`, `in1`, ... and assigns to `out0`.
        preamble: what stands before the kernel.
    """

    reads: Sequence[Any]
    writes: np.dtype[Any]
    routine: str
    preamble: str


class Operand(NamedTuple):
    """An operand's dtype and, of a Python number, the type by which this gives way to others' dtypes."""

    dtype: np.dtype[Any]
    weak: type[int] | type[float] | None = None


def loop_of(ufunc: Any, operands: Sequence[Operand], dtype: Any) -> Loop:
    """CuPy's choice among a function's loops.

    Args:
        dtype: of the result, if one was asked for.

    Raises:
        NotElementwise: if there is no loop, or it is more than an expression.
    """
    if ufunc.nin != len(operands) or ufunc.nout != 1 or ufunc._loop_prep:
        raise NotElementwise(ufunc.name)
    if dtype is not None:
        op = (ufunc._out_ops or ufunc._ops)._guess_routine_from_dtype(np.dtype(dtype))
    else:
        weak, strong = ([_rank(o.dtype) for o in operands if (o.weak is not None) is want] for want in (True, False))
        gives_way = bool(strong) and max(strong) >= max(weak, default=-1)
        weaks = tuple([(o.weak or False) if gives_way else False for o in operands])
        op = ufunc._ops._guess_routine_from_in_types(tuple([o.dtype for o in operands]), weaks)
    if op is None or not isinstance(op.routine, str) or op._resolution_func is not None:
        raise NotElementwise(ufunc.name)
    if ufunc.name in _CONTRACTED and np.dtype(op.in_types[0]).kind == "f":
        raise NotElementwise(ufunc.name)
    return Loop(op.in_types, np.dtype(op.out_types[0]), op.routine, ufunc._preamble)


def typename(cupy: Any, dtype: Any) -> str:
    """The name of a dtype in CuPy's C++."""
    found: str = cupy._core._scalar.get_typename(np.dtype(dtype))
    return found


def where(cupy: Any) -> Any:
    """The universal function behind `cupy.where`."""
    return cupy._sorting.search._where_ufunc


def clip(cupy: Any) -> Any:
    """The universal function behind `cupy.clip`."""
    return cupy._core._routines_math.clip


def _rank(dtype: np.dtype[Any]) -> int:
    """Booleans, integers, floats: a Python number gives way to a dtype of its own rank or a higher one."""
    return "biuf".index(dtype.kind) if dtype.kind in "bi" else 1 if dtype.kind == "u" else 2
