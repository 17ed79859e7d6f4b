"""The rates at which a scheduler works off tasks and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Final, Protocol

TIME_CONSTANT: Final = 1.0  # seconds
_FOLD: Final = 0.05  # seconds of work that make one sample


class Rate:
    """Items per second of busy time: an exponentially weighted mean, which idle time does not lower.

    The weights are exp(-(now - t) / tau), where t counts only busy time. The rate is the weighted sum of the items over
    the integral of the weights, so it is right from the first sample on. A sample of `d` seconds is taken as even: the
    old sums shrink by exp(-d / tau), and the sample adds its mean rate times tau * (1 - exp(-d / tau)).
    """

    __slots__ = ("_count", "_weight")

    def __init__(self) -> None:
        self._count = 0.0
        self._weight = 0.0

    def add(self, count: float, seconds: float) -> None:
        """Count `count` items for the last `seconds` of busy time."""
        kept = math.exp(-seconds / TIME_CONSTANT)
        weight = TIME_CONSTANT * (1 - kept)
        self._count = self._count * kept + count * (weight / seconds if seconds else 1.0)
        self._weight = self._weight * kept + weight

    @property
    def per_second(self) -> float:
        """The rate; 0 before anything was measured."""
        return self._count / self._weight if self._weight else 0.0

    def seconds_for(self, count: float) -> float | None:
        """The seconds that `count` items will take; None before anything was measured."""
        return count * self._weight / self._count if self._count else None


class Counts(Protocol):
    """Counts since the beginning."""

    ended_tasks: int
    ended_bytes: int


class Meter:
    """The rates of tasks and bytes, over the time with unfinished work.

    Args:
        source: counts `ended_tasks` and `ended_bytes`, since the beginning.
        clock: gives seconds.
    """

    def __init__(self, source: Counts, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.since: float | None = None  # when the work began that is not counted yet; None at rest
        self._source = source
        self._time = 0.0  # seconds of work not folded yet
        self._counted = (0, 0)  # tasks and bytes of folded work
        self._tasks, self._bytes = Rate(), Rate()

    def sample(self, busy: bool) -> None:
        """Count the work since the last call. `busy`: is anything left to do?"""
        if self.since is not None:
            now = self.clock()
            self._time += now - self.since
            self.since = now if busy else None
            if self._time >= _FOLD:
                self._fold()

    def rates(self) -> tuple[float, float]:
        """Tasks and bytes per second; 0 until a task has ended. They sink while none ends."""
        self._fold()
        tasks, nbytes = self._tasks.per_second, self._bytes.per_second
        slower = max(1.0, tasks * self._time)
        return tasks / slower, nbytes / slower

    def _fold(self) -> None:
        """Take in the work so far, if a task has ended. Otherwise the rates would sink to 0 while a long task runs."""
        tasks, nbytes = self._source.ended_tasks, self._source.ended_bytes
        if self._time <= 0 or tasks == self._counted[0]:
            return
        self._tasks.add(tasks - self._counted[0], self._time)
        self._bytes.add(nbytes - self._counted[1], self._time)
        self._counted = tasks, nbytes
        self._time = 0.0
