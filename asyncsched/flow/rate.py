"""How fast something drains while it is busy."""

from __future__ import annotations

from math import exp


class Rate:
    """Things done per second of busy time: an exponentially weighted mean, so that idle time does not lower it.

    What was done t busy seconds ago counts exp(-t / horizon) of what is done now.
    """

    __slots__ = ("_count", "_horizon", "_seconds")

    def __init__(self, horizon: float = 1.0) -> None:
        self._horizon = horizon
        self._count = 0.0
        self._seconds = 0.0

    def add(self, count: float, seconds: float) -> None:
        """`count` things were done in the last `seconds` busy ones."""
        keep = exp(-seconds / self._horizon)
        self._count = self._count * keep + count
        self._seconds = self._seconds * keep + seconds

    def seconds_for(self, count: float) -> float | None:
        """How long `count` things will take; None before anything was measured."""
        return count * self._seconds / self._count if self._count else None
