"""From threads to the event loop, with one wake-up per burst.

Theory of operation. `call_soon_threadsafe` costs a system call, and the loop a step, each time; so threads append to a
deque, and wake the loop only if no step that drains it is on its way. No lock is needed: `deque.append` and `popleft`
are each one step to other threads, and the order of two steps does the rest. A thread appends first and looks at the
flag second; `drain` takes the flag down first and looks at the deque second. So whatever a thread appended while the
flag was up is seen by the `drain` that will take it down. Two threads may both see it down, and wake the loop twice:
the second `drain` finds nothing. Who appends and does not wake the loop answers for that somebody will. (trio's
`EntryQueue` is the same for functions to be called.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class EntryQueue(Generic[T]):
    """Delivers what any thread posts on the loop's thread, in order. Made on that thread."""

    def __init__(self, deliver: Callable[[T], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._things: deque[T] = deque()
        self._awake = False  # a step of the loop that drains this is on its way

    def __len__(self) -> int:
        return len(self._things)

    def append(self, thing: T) -> None:
        """Have `thing` delivered with what comes next. From any thread."""
        self._things.append(thing)

    def wake(self) -> None:
        """Have all that was appended delivered soon. From any thread."""
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Deliver what is there, now."""
        self._awake = False
        while self._things:
            self._deliver(self._things.popleft())
