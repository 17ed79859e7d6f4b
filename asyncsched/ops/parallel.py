"""Sharing the parts of one operation with other threads.

A thread whose operations may run on several threads calls `share_by` once. Kernels cut their work only by its shape and
the number of threads, never by who is idle. On other threads, parts are called one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from .cost_model import PASSES

Part = Callable[[], Any]

# The least time of a part, by estimate: another thread takes some tens of microseconds to begin.
PART_SECONDS: Final = 1e-4
# The most time of a part, if shorter parts cost nothing: a helper looks after its own tasks in between.
LONGEST_SECONDS: Final = 1e-3
# Work of fewer `PART_SECONDS` stays whole: waking a thread costs as much as two threads would gain.
WHOLE: Final = 4


class _Here(threading.local):
    threads = 1
    run: Callable[[Sequence[Part]], None] | None = None


here: Final = _Here()  # `threads`: how many share the calling thread's work, with itself


def share_by(run: Callable[[Sequence[Part]], None], threads: int) -> None:
    """Let `run`, which has this number of threads, run the calling thread's parts from now on."""
    here.run, here.threads = run, threads


def run(parts: Sequence[Part]) -> None:
    """Call all parts, in any order, perhaps at the same time. Raises an exception of one of them."""
    if here.run is None or len(parts) < 2:
        for part in parts:
            part()
    else:
        here.run(parts)


def each(items: Sequence[Any], seconds: float, call: Callable[[Any], None]) -> None:
    """Call a function for all items, in parts for several threads. `seconds` is the estimate for one thread.

    At least four parts for each thread: with three, two threads would get five and three of the eight tiles of a small
    batch.
    """

    def some(part: slice) -> None:
        for item in items[part]:
            call(item)

    run([partial(some, part) for part in ranges(len(items), number(seconds, max(4, rounds(seconds))))])


def number(seconds: float, each: int = 1, least: int = 1) -> int:
    """The number of parts for work that takes one thread `seconds`: `each` per thread; 1 if cutting is not worth it.

    Args:
        least: each part takes at least this many `PART_SECONDS`.
    """
    if here.threads < 2 or seconds < WHOLE * PART_SECONDS:
        return 1
    return max(1, min(each * here.threads, int(seconds / (least * PART_SECONDS))))


def ranges(places: int, number: int, unit: int = 1) -> list[slice]:
    """About `number` ranges of places, which begin at multiples of `unit`.

    The number is reduced so that, except for the last, none is twice as long as another.
    """
    if number > 1 and places // unit < 2 * number:
        number = places // unit
    return equal(places, number, unit)


def equal(places: int, number: int, unit: int = 1) -> list[slice]:
    """Exactly `number` ranges, but at least one."""
    starts = [places * i // number // unit * unit for i in range(number)] or [0]
    return [slice(low, high) for low, high in pairwise([*starts, places])]


def rounds(seconds: float) -> int:
    """The number of parts of `LONGEST_SECONDS` for each thread."""
    return max(1, int(seconds / (LONGEST_SECONDS * here.threads)))


def seconds_of(elements: int, itemsize: int, element_seconds: float | None = None) -> float:
    """Estimated seconds for an operation on one thread. With None it passes over each element several times."""
    return (PASSES if element_seconds is None else element_seconds) * elements * max(1, itemsize / 4)
