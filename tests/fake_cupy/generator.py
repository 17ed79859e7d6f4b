"""`cupy.random.Generator`: what is drawn comes to the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import asarray_host, ndarray


class Generator:
    """NumPy's numbers, where CuPy would draw others of the same distribution."""

    def __init__(self, seed: int | None) -> None:
        self._numpy = np.random.default_rng(seed)

    def random(self, size: Any = None, dtype: Any = np.float64) -> ndarray:
        return asarray_host(self._numpy.random(size, dtype))

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> ndarray:
        return asarray_host(self._numpy.standard_normal(size, dtype))
