"""`cupy.linalg`: what CuPy 14 has of it. A function is asked for shapes with identity matrices, which suit them all."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .arrays import ndarray
from .functions import dispatch

_THERE = "cholesky cross det eig eigh eigvals eigvalsh inv matrix_power matrix_rank norm pinv qr slogdet solve svd"
_local = threading.local()


@contextlib.contextmanager
def errstate(*, linalg: str) -> Iterator[None]:
    """Whether LAPACK's errors are asked for, which waits for the device; else the results are NaN."""
    before, _local.strict = getattr(_local, "strict", False), linalg == "raise"
    try:
        yield
    finally:
        _local.strict = before


class Namespace(types.ModuleType):
    """The module."""

    LinAlgError = np.linalg.LinAlgError

    def __init__(self) -> None:
        super().__init__("cupy.linalg")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _THERE.split():
            raise AttributeError(f"module 'cupy.linalg' has no attribute {name!r}")
        return _function(name)


def _function(name: str) -> Callable[..., Any]:
    called = getattr(np.linalg, name)

    def asked(*arrays: Any, **options: Any) -> Any:
        try:
            return called(*arrays, **options)
        except np.linalg.LinAlgError as error:
            if not any("ingular" in str(error) or "definite" in str(error) for error in (error,)):
                raise
            return called(*[_regular(a) for a in arrays], **options)

    def function(*arrays: Any, **options: Any) -> Any:
        if getattr(_local, "strict", False) and name not in ("det", "slogdet"):  # of singular matrices they are known
            called(*[a.get() if isinstance(a, ndarray) else a for a in arrays], **options)  # waits, and raises
        return dispatch(f"linalg.{name}", asked, arrays, options)

    return function


def _regular(array: Any) -> Any:
    """Zeros, for which shapes are asked, with ones on the diagonal."""
    if not isinstance(array, np.ndarray) or array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.any():
        return array
    return array + np.eye(array.shape[-1], dtype=array.dtype)
