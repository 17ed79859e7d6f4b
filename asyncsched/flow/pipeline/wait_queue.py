"""Coroutines that wait for something to change, and are woken one at a time.

Theory of operation. Each waiter has a future of its own, in a deque. A wake-up takes the first one out and gives it its
result, so a future in the deque is a waiter that nobody has woken yet, or one that was cancelled and has not run since:
that one is passed over. A waiter that was woken, and cancelled before it ran, has taken a wake-up that it has no use
for, and hands it on. So no wake-up is lost, and none is sent to nobody.

A wake-up is a hint, not a gift: between it and the step in which the waiter runs, somebody else may have taken what it
was for. So whoever waits looks again, in a loop.

Alternatives. `asyncio.Condition` has a lock to be taken, which nothing here needs on one thread. `asyncio.Semaphore`
counts, and would say again what the deque in front of it says already. A memory object stream of anyio, into which a
None is sent per wake-up, was used before: it delivers to waiters that were cancelled, which then needed counters beside
it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter


class WaitQueue:
    """Who waits, by when they came. Whoever wakes looks again at what it waited for."""

    __slots__ = ("_inside", "_seconds", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[asyncio.Future[None]] = deque()  # those that nobody has woken yet
        self._inside = 0  # with those that were woken and have not run yet
        self._seconds = 0.0  # that they have waited, added up, less `_inside` times the present time

    async def wait(self) -> None:
        """Until it is woken. Always passes through the event loop."""
        future = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        self._inside += 1
        self._seconds -= perf_counter()
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.wake()  # it was for this one, which has no use for it now
            elif future in self.waiters:
                self.waiters.remove(future)
            raise
        finally:
            self._inside -= 1
            self._seconds += perf_counter()

    def wake(self) -> None:
        """Wake the first, if anybody waits."""
        while self.waiters:
            future = self.waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake everyone."""
        while self.waiters:
            self.wake()

    def seconds(self, now: float) -> float:
        """How long coroutines have waited here, added up."""
        return self._seconds + self._inside * now
