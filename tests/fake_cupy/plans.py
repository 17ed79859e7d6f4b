"""`cupy.fft.config`: the plans that CuPy keeps, which hold memory."""

from __future__ import annotations

import threading

_here = threading.local()


class PlanCache:
    """One for each thread. What its plans hold is not modelled: a test says so."""

    def __init__(self) -> None:
        self.held = 0

    def get_curr_memsize(self) -> int:
        return self.held

    def clear(self) -> None:
        self.held = 0


def get_plan_cache() -> PlanCache:
    if not hasattr(_here, "cache"):
        _here.cache = PlanCache()
    cache: PlanCache = _here.cache
    return cache
