"""Timing tasks that are issued first and finished later.

A clock around lines that only issue tasks measures Python. To measure the tasks takes a barrier on either side: one
before, so that no older task counts, and one after, so that none is left out. Both times are worth knowing, so both are
kept: until the last task was issued, and until all were finished.

All times are seconds, by `time.perf_counter`. A barrier goes through the event loop, also if there is nothing to wait
for. So each time until the finish has some microseconds of that; times until the issue have none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from inspect import iscoroutine
from math import isnan, nan
from time import perf_counter
from typing import Any, Self

import numpy as np

from .._arguments import check_int, format_seconds, label_of
from .._instead import OnlyAsync
from ..flow.scope import Submitter
from ..pictures.record import Record, Seconds
from ..runtime.context import find


class Timer(OnlyAsync):
    """Times a block: until all its tasks were issued, and until all were finished.

    It is `await s.barrier()`, the block, and the barrier again. So inside a scope or a window it waits for that one's
    tasks. Other tasks of the scheduler that run meanwhile are timed with it.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones((300, 300)))
    ...         async with asc.Timer("a product") as t:
    ...             y = x @ x
    ...         print(y.done(), t.issue < t.seconds)
    ...         print(t)
    >>> asc.run(main)
    True True
    a product: ... issued in ...

    If the block raises, its exception leaves at once, and both times stay `nan`. So they do if a barrier is cancelled:
    the tasks of the block go on.

    Args:
        name: for the line that it prints.
        scheduler: a scheduler or a scope; default the ambient one.

    Raises:
        SchedulerClosed: when entered, if no scheduler is open.
        ExceptionGroup: by each barrier, of failures that nobody has seen.
    """

    issue: float = nan
    """Seconds until the block was left."""
    seconds: float = nan
    """Seconds until all tasks of the block were finished."""

    def __init__(self, name: str = "", *, scheduler: Submitter | None = None) -> None:
        self.name = name
        self._scheduler = scheduler
        self._on: Submitter | None = None
        self._started = nan

    async def __aenter__(self) -> Self:
        if self._on is not None:
            raise RuntimeError("a timer times one block at a time: make another with `asc.Timer()`")
        on = self._scheduler or Submitter(find())
        self.issue = self.seconds = nan
        await on.barrier()
        self._on, self._started = on, perf_counter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        issue = perf_counter() - self._started
        on, self._on = self._on, None
        if error is not None or on is None:
            return
        await on.barrier()
        self.issue, self.seconds = issue, perf_counter() - self._started

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        if self._on is not None:
            return f"{name}running"
        if isnan(self.seconds):
            return f"{name}nothing timed"
        return f"{name}{format_seconds(self.seconds)}, issued in {format_seconds(self.issue)}"


@dataclass(frozen=True, repr=False)
class Times(Record):
    """The same thing, timed several times.

    Attributes:
        seconds: of each round, in their order.
    """

    seconds: tuple[Seconds, ...]

    @property
    def median(self) -> float:
        """Half of the rounds took less."""
        return float(np.median(self.seconds))

    @property
    def best(self) -> float:
        """The shortest, since other work on the machine can only add time."""
        return min(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The middle half of the rounds is between these."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float(low), float(high)


@dataclass(frozen=True, repr=False)
class Measurement(Record):
    """The result of `measure`. Prints one line: the median to the finish, with quartiles, and to the issue.

    Attributes:
        issue: until the tasks of the round were issued.
        finish: until they were finished.
    """

    name: str
    issue: Times
    finish: Times

    def __str__(self) -> str:
        low, high = self.finish.quartiles
        return (
            f"{self.name}: {format_seconds(self.finish.median)} ({format_seconds(low)} to {format_seconds(high)}),"
            f" issued in {format_seconds(self.issue.median)}; {len(self.finish.seconds)} rounds"
        )


async def measure(
    fn: Callable[[], Any], n: int = 10, *, warm_up: int = 2, name: str | None = None, scheduler: Submitter | None = None
) -> Measurement:
    """Call a function `n` times, with a barrier before and after each call. Some rounds to warm up come first.

    The function runs on the event loop's thread; a coroutine function runs as part of this asyncio task. A tensor that
    it returns is not awaited, since the barrier waits for it. The function is called without arguments (use
    `functools.partial`), and its result is dropped. If this is cancelled, it ends at an `await` of the function or at a
    barrier. Issued tasks go on.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones((300, 300)))
    ...         found = await asc.measure(lambda: x @ x, 5, name="a product")
    ...         low, high = found.finish.quartiles
    ...         print(low <= found.finish.median <= high, len(found.issue.seconds))
    ...         print(found)
    >>> asc.run(main)
    True 5
    a product: ... (... to ...), issued in ...; 5 rounds

    Args:
        n: how many rounds count.
        warm_up: how many rounds come first and do not count.
        name: for the line that it prints; default the function's.
        scheduler: as of `Timer`.

    Raises:
        SchedulerClosed: if no scheduler is open.
        ExceptionGroup: of the failures of a round that nobody has seen. Exceptions of the function itself leave
            unchanged.
    """
    check_int("n", n)
    check_int("warm_up", warm_up, 0)
    timer, rounds = Timer(scheduler=scheduler), []
    for number in range(warm_up + n):
        async with timer:
            made = fn()
            if iscoroutine(made):
                await made
            elif isinstance(made, Generator | AsyncGenerator):
                raise TypeError(f"{label_of(fn)} gives a generator, of which nothing has run: measure what reads it")
            del made  # before the barrier: it may be the last holder of the result
        if number >= warm_up:
            rounds.append((timer.issue, timer.seconds))
    issue, finish = zip(*rounds, strict=True)
    return Measurement(name or str(getattr(fn, "__name__", fn)), Times(issue), Times(finish))
