"""Counts that threads wait for, and events made of them: the one means by which host threads wait for a stream.

Theory of operation. A stream counts the tasks it has finished, so the event of its `n`-th launch is the number `n`: to
be done is a comparison, and a launch makes no lock, no condition and no event of the operating system. Most events are
never waited for by a thread, and those that are mostly lie in the past.

`step` and `reach` share no lock on their quick paths. What keeps a wake-up from being lost is their order:

- who counts adds to the count first and reads the number of waiters second;
- who waits adds itself to the waiters first and reads the count second, with the condition's lock held.

So whichever comes later sees the other: either the waiter finds the count reached, or the counter finds a waiter and
takes the lock to notify, which it gets no sooner than the waiter sleeps. This leans on the GIL: both threads see the
two writes in one order. On a build without it, where a store and a later load may change places, `step` would have to
take the lock always.

Not taken: a `threading.Event` for each launch, and a condition notified at each step. Few launches are waited for, and
a step takes 0.1 us as it is, 1 us with the lock; making an event takes 7 us (CPython 3.11, two busy processors).
"""

from __future__ import annotations

import threading


class Counter:
    """A count that one thread at a time increases, and any thread waits for."""

    def __init__(self) -> None:
        self.count = 0
        self.waiters = 0  # threads in `reach` that found the count too low
        self._changed = threading.Condition()

    def step(self) -> None:
        """One more."""
        self.count += 1
        if self.waiters:
            with self._changed:
                self._changed.notify_all()

    def reach(self, count: int) -> None:
        """Block until the count is at least `count`."""
        if self.count >= count:
            return
        with self._changed:
            self.waiters += 1
            while self.count < count:
                self._changed.wait()
            self.waiters -= 1


class StreamEvent:
    """A point in a stream: just after the `number`-th of its launches."""

    __slots__ = ("finished", "number")

    def __init__(self, finished: Counter, number: int) -> None:
        self.finished = finished  # the stream's count of what it has finished
        self.number = number

    def done(self) -> bool:
        """Whether the stream has passed it. Never blocks."""
        return self.finished.count >= self.number

    def wait(self) -> None:
        """Block the calling thread until the stream has passed it."""
        self.finished.reach(self.number)
