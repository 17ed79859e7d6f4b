"""Dtypes, what is known about them, and the constants. Names and objects are NumPy's."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
from numpy import (
    bool,
    complex64,
    complex128,
    e,
    float16,
    float32,
    float64,
    inf,
    int8,
    int16,
    int32,
    int64,
    nan,
    newaxis,
    pi,
    uint8,
    uint16,
    uint32,
    uint64,
)
from numpy.typing import DTypeLike

from ...ops.table import TABLE
from ..options import dtype_of
from ..tensor import Scalar, Tensor, apply


def astype(x: Tensor, dtype: DTypeLike, /, *, copy: builtins.bool = True, device: object = None) -> Tensor:
    """`x` in another dtype: a tensor of its shape. With `copy=False` `x` itself, if it has that dtype."""
    wanted = dtype_of(dtype)
    result = x if x.dtype == wanted and not copy else apply(TABLE["astype"], (x,), {"dtype": wanted})
    return result if device is None else result.to(device)


def can_cast(from_: DTypeLike | Tensor, to: DTypeLike, /) -> builtins.bool:
    """Whether a dtype, or that of a tensor, can be cast to another without loss."""
    return np.can_cast(_dtype(from_), np.dtype(to))


def finfo(type: DTypeLike | Tensor, /) -> np.finfo[Any]:
    """The limits of a floating-point dtype, or that of a tensor."""
    return np.finfo(_dtype(type))


def iinfo(type: DTypeLike | Tensor, /) -> np.iinfo[Any]:
    """The limits of an integer dtype, or that of a tensor."""
    return np.iinfo(_dtype(type))


def isdtype(dtype: DTypeLike, kind: DTypeLike | str | tuple[DTypeLike | str, ...]) -> builtins.bool:
    """Whether a dtype is of a kind: "bool", "integral", "real floating", "numeric", ..., a dtype, or one of several."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return np.isdtype(np.dtype(dtype), tuple([one if isinstance(one, str) else np.dtype(one) for one in kinds]))


def result_type(*arrays_and_dtypes: DTypeLike | Tensor | Scalar) -> np.dtype[Any]:
    """The dtype NumPy promotes all to; Python numbers give way."""
    return np.result_type(*[a.dtype if isinstance(a, Tensor) else a for a in arrays_and_dtypes])


def _dtype(dtype: DTypeLike | Tensor) -> np.dtype[Any]:
    return dtype.dtype if isinstance(dtype, Tensor) else np.dtype(dtype)


__all__ = [
    "astype", "bool", "can_cast", "complex64", "complex128", "e", "finfo", "float16", "float32", "float64", "iinfo",
    "inf", "int8", "int16", "int32", "int64", "isdtype", "nan", "newaxis", "pi", "result_type", "uint8", "uint16",
    "uint32", "uint64",
]  # fmt: skip
