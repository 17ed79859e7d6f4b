"""Half precision on CUDA: sums that CuPy would compute in halves are computed in single precision and rounded once.

CuPy leaves sums and products over the last axes to CUB, which adds halves up in halves. CuPy itself does so with the
squares of a variance or a norm, and with the products of two vectors. A half cannot count in ones beyond 2,048, and
ends at 65,504. NumPy adds halves up in single precision, too, except in sums along other axes than the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[..., Any]


def reduction(function: Function, x: Any, *, dtype: Any = None, **options: Any) -> Any:
    """CuPy's `sum` or `prod`. With halves it asks for single precision, which is not left to CUB."""
    if x.dtype != np.float16 or (dtype is not None and dtype != np.float16):
        return function(x, dtype=dtype, **options)
    return function(x, dtype=np.float32, **options).astype(np.float16, copy=False)


def matmul(function: Function, x: Any, y: Any, **options: Any) -> Any:
    """CuPy's `matmul`."""
    return product(function, x, y, x.shape[-1], **options)


def product(function: Function, x: Any, y: Any, inner: int, **options: Any) -> Any:
    """A product of CuPy's that sums over `inner` elements.

    cuBLAS adds up in single precision, but CuPy does not use it for a result of one number.
    """
    if getattr(x, "size", 1) == getattr(y, "size", 1) == inner:  # not `np.size`, which takes longer
        return in_single(function, x, y, **options)
    return function(x, y, **options)


def in_single(function: Function, *arrays: Any, **options: Any) -> Any:
    """Apply a function of CuPy's; to halves, by way of copies in single precision."""
    found = [array for array in arrays if hasattr(array, "dtype")]  # others are Python numbers
    if not found or np.result_type(*[array.dtype for array in found]) != np.float16:
        return function(*arrays, **options)
    singles = [array.astype(np.float32) if hasattr(array, "dtype") else array for array in arrays]
    return function(*singles, **options).astype(np.float16, copy=False)
