"""A count that threads can wait for: the only way in which host threads wait for a stream.

Theory of operation. A stream counts its finished tasks, so the point after its `n`-th task is the number `n`. Whether
the stream has passed it is a comparison, and a launch makes no object. Threads wait for few points, and most of these
are in the past.

`step` and `reach` share no lock on their quick paths. Their order keeps wake-ups from being lost:

- `step` adds to the count first and reads the number of waiters second;
- `reach` adds to the waiters first and reads the count second, with the condition's lock held.

So the later one sees the other. Either the waiter finds the count reached. Or the counter finds a waiter and takes the
lock to notify it; it gets the lock only when the waiter sleeps. This relies on the GIL: both threads see the two writes
in one order. On a free-threaded build a store and a later load may change places. There `step` always takes the lock.

Alternatives: a `threading.Event` for each launch, or a condition notified at each step. Both cost many times a `step`,
and few launches are waited for: `python -m timeit -s 'import threading' 'threading.Event()'`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from .._core.free_threading import FREE_THREADED
from .._interrupts import Lock


class Counter:
    """A count that one thread at a time increases, and for which any thread may wait."""

    def __init__(self) -> None:
        self.count: int = 0
        self.waiters: int = 0  # threads in `reach` that found the count too low
        self._lock = Lock()  # entered itself: a signal may come inside of the condition's `__enter__`
        self._changed = threading.Condition(self._lock)

    def step(self, by: int = 1) -> None:
        """Count so many more."""
        if FREE_THREADED:
            with self._lock:
                self.count += by
        else:
            self.count += by
        if self.waiters:
            self.wake()

    def give_up(self) -> None:
        """Nothing more will be counted: all waiters go on."""
        self.count = sys.maxsize
        self.wake()

    def reach(self, count: int, unless: Callable[[], object] = bool) -> None:
        """Block until the count is at least `count`, or `unless()` is true. It is called again after each `wake`."""
        if self.count >= count:
            return
        with self._lock:
            self.waiters += 1
            while self.count < count and not unless():
                self._changed.wait()
            self.waiters -= 1

    def wake(self) -> None:
        """Have all waiters look again."""
        with self._lock:
            self._changed.notify_all()
