"""From threads to the event loop, with one wake-up per burst."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Whatever any thread posts is delivered on the loop's thread, in order. Made on that thread."""

    def __init__(self, deliver: Callable[[T], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._things: deque[T] = deque()
        self._awake = False  # a turn of the loop that empties this is on its way

    def post(self, thing: T) -> None:
        """From any thread. The thing first, a look at the flag second: `empty` does it the other way round."""
        self._things.append(thing)
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self.empty)

    def empty(self) -> None:
        """Deliver what is there, now."""
        self._awake = False
        while self._things:
            self._deliver(self._things.popleft())
