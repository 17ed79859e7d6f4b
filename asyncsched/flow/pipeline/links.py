"""What joins two stages of a pipeline: a bounded row of items, with a bell on either side.

Theory of operation. A stage takes room in the link behind it *before* it takes an item from the link in front of it,
and a source does so before it is asked for anything. So an item has a place from the moment it is read, and a pipeline
never holds more than the sum of its links. The items lie in a deque, and nothing is sent per item: a bell rings only
for someone who sleeps. A burst costs one turn of the event loop; a single item never waits for others to join it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from math import inf
from time import perf_counter
from typing import Any, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

# Which items of the source something was made of: one's number, or those of a whole batch, which may be nested.
Where: TypeAlias = "int | tuple[Where, ...]"


def flat(where: Where) -> list[int]:
    """The numbers of these items."""
    return [where] if isinstance(where, int) else [number for part in where for number in flat(part)]


class Bell:
    """Wakes coroutines. A ring wakes one sleeper, and may be early: whoever wakes looks again at what it waited for."""

    __slots__ = ("_asleep", "_seconds", "_streams", "sleepers")

    def __init__(self) -> None:
        self._streams: tuple[MemoryObjectSendStream[None], MemoryObjectReceiveStream[None]] | None = None
        self._asleep = 0
        self._seconds = 0.0
        self.sleepers = 0  # those for whom nobody has rung yet

    async def sleep(self) -> None:
        """Until it rings. Always passes through the event loop."""
        if self._streams is None:
            self._streams = anyio.create_memory_object_stream[None](inf)
        self.sleepers += 1
        self._asleep += 1
        self._seconds -= perf_counter()
        try:
            await self._streams[1].receive()
        except BaseException:
            self.sleepers = max(0, self.sleepers - 1)
            raise
        finally:
            self._asleep -= 1
            self._seconds += perf_counter()

    def ring(self) -> None:
        """Wake one sleeper; there must be one."""
        assert self._streams is not None
        self.sleepers -= 1
        self._streams[0].send_nowait(None)

    def ring_for_all(self) -> None:
        """Wake everyone."""
        while self.sleepers:
            self.ring()

    def seconds(self, now: float) -> float:
        """How long coroutines have slept here, added up."""
        return self._seconds + self._asleep * now

    def close(self) -> None:
        for stream in self._streams or ():
            stream.close()


class Link:
    """A row of at most `capacity` items: made, being made, or about to be. One side puts, the other takes."""

    __slots__ = ("arrival", "capacity", "count", "ended", "entries", "error", "room", "space", "taker")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.room = capacity
        self.entries: deque[tuple[Where, Any]] = deque()
        self.count = 0  # items ever put
        self.ended = False
        self.error: BaseException | None = None  # why it ended
        self.arrival = Bell()
        self.space = Bell()
        self.taker: asyncio.Task[Any] | None = None  # who last waited for an item

    async def reserve(self) -> None:
        """Wait for room, and take it."""
        while self.room <= 0:
            await self.space.sleep()
        self.room -= 1

    def release(self) -> None:
        """Let go whoever waits for room, now or later, to put nothing: the stage has failed."""
        self.room = sys.maxsize
        self.space.ring_for_all()

    def put(self, where: Where, item: Any) -> None:
        """Add an item whose room was reserved."""
        self.entries.append((where, item))
        self.count += 1
        if self.arrival.sleepers:
            self.arrival.ring()

    def end(self, error: BaseException | None = None) -> None:
        """No more items will be put, because of an error or since there are none."""
        self.ended, self.error = True, error
        self.arrival.ring_for_all()

    async def arrived(self) -> bool:
        """Wait for an item; False if there will be none."""
        while not self.entries:
            if self.ended:
                return False
            for _ in range(min(self.room, self.space.sleepers)):
                self.space.ring()
            self.taker = asyncio.current_task()
            await self.arrival.sleep()
        return True

    def take(self) -> tuple[Where, Any]:
        """The first item; there must be one.

        Whoever waits for room is woken when half is free, for then it is worth a turn of the event loop.
        """
        self.room += 1
        if self.space.sleepers and self.room * 2 >= self.capacity:
            self.space.ring()
        return self.entries.popleft()

    def close(self) -> None:
        """Drop what is left."""
        self.entries.clear()
        self.error = None
        self.taker = None
        self.arrival.close()
        self.space.close()
