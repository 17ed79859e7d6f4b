"""Parts of one operation on several threads: what the calling thread may share its work with.

Who runs operations on several threads says so once in each of them (`share_by`). Kernels cut their work by its shape
and the number of threads alone, and never by who has time. Elsewhere parts are called one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from .cost_model import PASSES

Part = Callable[[], Any]

# A part takes at least this long, by estimate: it takes some tens of microseconds until another thread has begun.
PART_SECONDS: Final = 1e-4
# A part takes about so long at most, where shorter parts cost nothing: a helper looks after its own tasks in between.
LONGEST_SECONDS: Final = 1e-3
# Work of less than so many `PART_SECONDS` stays whole: to wake a thread costs what two threads would gain.
_WHOLE: Final = 4


class _Here(threading.local):
    threads = 1
    run: Callable[[Sequence[Part]], None] | None = None


_here = _Here()


def share_by(run: Callable[[Sequence[Part]], None], threads: int) -> None:
    """Have the calling thread's parts run by `run` from now on, which has so many threads for them."""
    _here.run, _here.threads = run, threads


def threads() -> int:
    """How many threads the calling one shares its work with, itself among them."""
    return _here.threads


def run(parts: Sequence[Part]) -> None:
    """Call all parts, in any order, perhaps at the same time. Raises what one of them raised."""
    if _here.run is None or len(parts) < 2:
        for part in parts:
            part()
    else:
        _here.run(parts)


def each(items: Sequence[Any], seconds: float, call: Callable[[Any], None]) -> None:
    """Call a function for all items, in parts for the threads there are. On one thread they take so long, by estimate.

    At least four parts for each thread: with three, two threads would get five and three of the eight tiles of a small
    batch.
    """

    def some(part: slice) -> None:
        for item in items[part]:
            call(item)

    run([partial(some, part) for part in ranges(len(items), number(seconds, max(4, rounds(seconds))))])


def number(seconds: float, each: int = 1, least: int = 1) -> int:
    """How many parts of what takes so long on one thread: `each` for a thread, 1 where that is not worth its while.

    Args:
        least: so many `PART_SECONDS` each takes at least.
    """
    if _here.threads < 2 or seconds < _WHOLE * PART_SECONDS:
        return 1
    return max(1, min(each * _here.threads, int(seconds / (least * PART_SECONDS))))


def ranges(places: int, number: int, unit: int = 1) -> list[slice]:
    """About so many ranges of places, which begin at multiples of a unit: so many that none is twice as long as another
    but the last."""
    if number > 1 and places // unit < 2 * number:
        number = places // unit
    return equal(places, number, unit)


def equal(places: int, number: int, unit: int = 1) -> list[slice]:
    """Exactly so many, but one at least."""
    starts = [places * i // number // unit * unit for i in range(number)] or [0]
    return [slice(low, high) for low, high in pairwise([*starts, places])]


def rounds(seconds: float) -> int:
    """How many parts of `LONGEST_SECONDS` each thread has of so much work."""
    return max(1, int(seconds / (LONGEST_SECONDS * threads())))


def seconds_of(elements: int, itemsize: int, element_seconds: float | None = None) -> float:
    """What an operation takes on one thread, by estimate. None for an element: it passes over them several times."""
    return (PASSES if element_seconds is None else element_seconds) * elements * max(1, itemsize / 4)
