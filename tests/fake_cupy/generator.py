"""`cupy.random.Generator`: what is drawn comes to the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import ndarray
from .functions import filled


def Philox4x3210(seed: int | None = None, *, size: int = -1) -> np.random.BitGenerator:
    """`size` is how many numbers are drawn at once: one for each thread."""
    assert size < 0 or size % 256 == 0, "CuPy launches 256 threads at a time, and checks no bounds"
    return np.random.Philox(seed)


class Generator:
    """NumPy's numbers, where CuPy would draw others of the same distribution."""

    def __init__(self, bit_generator: np.random.BitGenerator) -> None:
        self._numpy = np.random.Generator(bit_generator)

    def random(self, size: Any = None, dtype: Any = np.float64) -> ndarray:
        return filled(self._numpy.random(size, dtype))

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> ndarray:
        return filled(self._numpy.standard_normal(size, dtype))

    def integers(
        self, low: int, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False
    ) -> Any:
        return filled(self._numpy.integers(low, high, size, dtype, endpoint))

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None, dtype: Any = np.float64) -> ndarray:
        return filled(self._numpy.uniform(low, high, size).astype(dtype))
