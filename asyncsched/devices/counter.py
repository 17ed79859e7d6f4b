"""A count that threads can wait for: the only way in which host threads wait for a stream.

Theory of operation. A stream counts the tasks it has finished, so the point after its `n`-th task is the number `n`: to
be past it is a comparison, and a launch makes no object at all. Most points are never waited for by a thread, and those
that are mostly lie in the past.

`step` and `reach` share no lock on their quick paths. What keeps a wake-up from being lost is their order:

- `step` adds to the count first and reads the number of waiters second;
- `reach` adds to the waiters first and reads the count second, with the condition's lock held.

So whichever comes later sees the other: either the waiter finds the count reached, or the counter finds a waiter and
takes the lock to notify, which it gets no sooner than the waiter sleeps. This leans on the GIL: both threads see the
two writes in one order. On a build without it, where a store and a later load may change places, `step` would have to
take the lock always.

Alternatives: a `threading.Event` for each launch, or a condition notified at each step. Both cost many times a `step`,
and few launches are waited for: `python -m timeit -s 'import threading' 'threading.Event()'`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from .._locks import Lock


class Counter:
    """A count that one thread at a time increases, and any thread waits for."""

    def __init__(self) -> None:
        self.count: int = 0
        self.waiters: int = 0  # threads in `reach` that found the count too low
        self._lock = Lock()  # entered as itself: a signal may come inside of the condition's `__enter__` and `__exit__`
        self._changed = threading.Condition(self._lock)

    def step(self) -> None:
        """Count one more."""
        self.count += 1
        if self.waiters:
            self.wake()

    def give_up(self) -> None:
        """Nothing more will be counted: whoever waits goes on."""
        self.count = sys.maxsize
        self.wake()

    def reach(self, count: int, unless: Callable[[], object] = bool) -> None:
        """Block until the count is at least `count`, or `unless` says so: it is asked again after each `wake`."""
        if self.count >= count:
            return
        with self._lock:
            self.waiters += 1
            while self.count < count and not unless():
                self._changed.wait()
            self.waiters -= 1

    def wake(self) -> None:
        """Have those that wait look again."""
        with self._lock:
            self._changed.notify_all()
