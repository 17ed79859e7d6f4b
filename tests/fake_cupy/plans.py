"""`cupy.fft.config`: the plans that CuPy keeps, which hold memory."""

from __future__ import annotations

import threading

_here = threading.local()


class PlanCache:
    """One for each thread. What its plans hold is not modelled: a test says so."""

    def __init__(self) -> None:
        self.held = 0
        self._size = 16

    def get_curr_memsize(self) -> int:
        return self.held

    def get_curr_size(self) -> int:
        return int(self.held > 0)

    def clear(self) -> None:
        self.held = 0

    def get_size(self) -> int:
        return self._size

    def set_size(self, size: int) -> None:
        self._size = size
        if not size:
            self.clear()


def get_plan_cache() -> PlanCache:
    if not hasattr(_here, "cache"):
        _here.cache = PlanCache()
    cache: PlanCache = _here.cache
    return cache
