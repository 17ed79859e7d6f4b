"""Dtypes, facts about them, and constants, all NumPy's; and the capabilities of the namespace.

A program asks for these by `asc.__array_namespace_info__()`.
"""

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

from ...runtime.context import find
from ..arguments import dtype_of
from ..tensor import Scalar, Tensor
from ._common import op


def astype(x: Tensor, dtype: DTypeLike, /, *, copy: builtins.bool = True, device: object = None) -> Tensor:
    """`x` in another dtype: a tensor of its shape. With `copy=False`, `x` itself if it has that dtype.

    >>> await asc.astype(asc.arange(3), asc.float32)
    array([0., 1., 2.], dtype=float32)
    """
    wanted = dtype_of(dtype)
    result = x if x.dtype == wanted and not copy else op("astype", x, dtype=wanted)
    return result if device is None else result.to(device)


def can_cast(from_: DTypeLike | Tensor, to: DTypeLike, /) -> builtins.bool:
    """Whether a dtype, or that of a tensor, can be cast to another without loss.

    >>> asc.can_cast(asc.int64, asc.float64)
    True
    """
    return np.can_cast(_dtype(from_), np.dtype(to))


def finfo(type: DTypeLike | Tensor, /) -> np.finfo[Any]:
    """The limits of a floating-point dtype, or that of a tensor.

    >>> asc.finfo(asc.float32).max
    np.float32(3.4028235e+38)
    """
    return np.finfo(_dtype(type))


def iinfo(type: DTypeLike | Tensor, /) -> np.iinfo[Any]:
    """The limits of an integer dtype, or that of a tensor.

    >>> asc.iinfo(asc.int8).max
    127
    """
    return np.iinfo(_dtype(type))


def isdtype(dtype: DTypeLike, kind: DTypeLike | str | tuple[DTypeLike | str, ...]) -> builtins.bool:
    """Whether a dtype is of a kind ("bool", "integral", "real floating", "numeric", ...), a dtype, or one of several.

    >>> asc.isdtype(asc.float32, "real floating")
    True
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return np.isdtype(np.dtype(dtype), tuple([one if isinstance(one, str) else np.dtype(one) for one in kinds]))


def result_type(*arrays_and_dtypes: DTypeLike | Tensor | Scalar) -> np.dtype[Any]:
    """The dtype to which NumPy promotes all arguments; Python numbers adapt to the others.

    >>> asc.result_type(asc.float32, asc.int64)
    dtype('float64')
    """
    return np.result_type(*[a.dtype if isinstance(a, Tensor) else a for a in arrays_and_dtypes])


_NUMPY: Any = np.__array_namespace_info__()


def _dtype(dtype: DTypeLike | Tensor) -> np.dtype[Any]:
    return dtype.dtype if isinstance(dtype, Tensor) else np.dtype(dtype)


class Info:
    """The capabilities of the namespace, by the standard's names. Dtypes are the same on every device."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and data-dependent shapes (None until awaited) are supported; at most 64 dimensions."""
        return dict(_NUMPY.capabilities())

    def default_device(self) -> Any:
        """The first device of the ambient scheduler, on which tensors are made by default."""
        return find().devices[0]

    def devices(self) -> tuple[Any, ...]:
        """All devices of the ambient scheduler."""
        return tuple(find().devices)

    def default_dtypes(self, *, device: object = None) -> dict[str, np.dtype[Any]]:
        """The dtypes that Python's numbers get: float64, complex128, int64."""
        return dict(_NUMPY.default_dtypes())

    def dtypes(self, *, device: object = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of a kind, or of several kinds, by name; by default all."""
        return dict(_NUMPY.dtypes(kind=kind))


def __array_namespace_info__() -> Info:
    """The capabilities of the namespace, as the standard asks for them."""
    return Info()


__array_api_version__ = "2025.12"

__all__ = [
    "astype", "bool", "can_cast", "complex64", "complex128", "e", "finfo", "float16", "float32", "float64", "iinfo",
    "inf", "int8", "int16", "int32", "int64", "isdtype", "nan", "newaxis", "pi", "result_type", "uint8", "uint16",
    "uint32", "uint64",
]  # fmt: skip
