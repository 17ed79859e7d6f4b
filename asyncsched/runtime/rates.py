"""The rates at which a scheduler works off tasks and bytes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final, Protocol

TIME_CONSTANT: Final = 1.0  # seconds
_LATELY: Final = 2.0  # seconds
_MANY: Final = 1024
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


class Took:
    """How long something takes: an exponentially weighted mean of the last times, and how far they lie from it.

    Args:
        weight: of the last time, where it is shorter than the mean. The first few have more.
        longer: of one that is longer. By default more, since work that is not known to be slow is begun in vain. But
            the first that is far beyond all others counts no more than twice the mean: mostly it is a single stall.
            After a second one in a row, the mean is at least the shorter of both.
    """

    __slots__ = ("_count", "_last", "_longer", "_off", "_weight", "mean")

    def __init__(self, weight: float = 1 / 8, longer: float = 1 / 2) -> None:
        self._weight, self._longer = weight, longer
        self._count = 0
        self.mean: float = 0.0  # 0 before the first
        self._off = 0.0
        self._last = 0.0  # the last time, if it was far beyond all others

    def add(self, seconds: float) -> bool:
        """It took so long. Returns whether it takes longer from now on: this was the second far beyond all others."""
        self._count += 1
        if not self.mean:
            self.mean = seconds
            return False
        weight, off = max(self._weight, 1 / self._count), seconds - self.mean
        far = max(self.mean, 4 * self._off)
        self.mean += min(off, far) * max(self._longer, weight) if off > 0 else off * weight
        self._off += (abs(off) - self._off) * weight
        again, self._last = min(seconds, self._last), seconds if off > far else 0.0
        slower = again > self.mean
        self.mean = max(self.mean, again)
        return slower

    def at_least(self, seconds: float) -> None:
        """It was cut short after so long, so it takes longer."""
        self.mean = max(self.mean, seconds)

    @property
    def likely(self) -> float:
        """What most take at most."""
        return self.mean + 2 * self._off


class Spent:
    """The seconds that each of many has spent lately, per second: exponentially weighted means."""

    def __init__(self) -> None:
        self._sums: OrderedDict[Hashable, float] = OrderedDict()  # as if all had been spent at `_at`
        self._all = self._began = self._at = 0.0

    def add(self, who: Hashable, seconds: float, now: float) -> None:
        """Somebody has spent so much."""
        if not self._sums:
            self._began = now
        if not self._sums or now - self._at > 50 * _LATELY:  # before the numbers become too large
            kept = math.exp((self._at - now) / _LATELY)
            self._sums = OrderedDict({one: amount * kept for one, amount in self._sums.items()})
            self._all, self._at = self._all * kept, now
        amount = seconds * math.exp((now - self._at) / _LATELY)
        self._sums[who] = self._sums.pop(who, 0.0) + amount
        self._all += amount
        if len(self._sums) > _MANY:
            self._all -= self._sums.popitem(last=False)[1]

    def by_others(self, who: Hashable, now: float) -> float:
        """What all others spend per second."""
        span = _LATELY * (1 - math.exp((self._began - now) / _LATELY))
        return (self._all - self._sums.get(who, 0.0)) * math.exp((self._at - now) / _LATELY) / span if span else 0.0


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
