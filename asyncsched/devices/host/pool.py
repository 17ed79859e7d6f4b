"""Recycled host buffers.

Allocating large arrays in a worker thread costs a page fault for every 4 KiB, many times the cost of the arithmetic. So
outputs go into buffers that were just given back, last in first out. Few of them cycle, and stay in cache.

Theory of operation. Streams take buffers on their threads. Buffers come back on any thread, perhaps from a garbage
collection that begins inside `take`, which holds the lock. So `give` takes no lock: it appends to a deque. The next
`take` gives out the last of them, if that has the size, or sorts all into the stacks. Until then their bytes count as
live, so the bound holds.
"""

from __future__ import annotations

from collections import deque
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ..._core.free_threading import merged_at_birth
from ..._core.ownership import POOLED_BYTES as POOLED_BYTES
from ..._interrupts import Lock

Block = NDArray[np.uint8]

# Most free bytes kept when the scheduler has no byte limit. A guess: a few large batches.
UNBOUNDED_FREE = 256 * 2**20
_LINE = 64
_POISON = 0xA5
_new_array, _ndarray = merged_at_birth(np.empty), np.ndarray


class Pool:
    """Buffers keyed by size (rounded up to a cache line). The oldest free ones are dropped first.

    Live and free bytes together stay under `limit`; without a limit, free bytes stay under 256 MiB. With `poison`,
    returned buffers are overwritten at once, so that late reads are found out.
    """

    def __init__(self, limit: int | None, *, poison: bool = False) -> None:
        self.live: int = 0
        self.free: int = 0
        self._limit = limit
        self._poison = poison
        self._stacks: dict[int, deque[tuple[int, Block]]] = {}
        self._clock = count()
        self._lock = Lock()
        self._returned: deque[Block | int] = deque()
        if not poison:  # in C: a signal's exception comes before, and the caller tries again, or after
            self.give = self._returned.append  # type: ignore[assignment, method-assign]

    def take(self, nbytes: int) -> Block:
        """A buffer of at least `nbytes`, its contents undefined."""
        size = -(-nbytes // _LINE) * _LINE
        with self._lock:
            if self._returned:
                last = self._returned.pop()
                if type(last) is _ndarray and last.nbytes == size:  # mostly, in a chain of operations
                    return last
                self._returned.append(last)
                self._collect()
            self.live += size
            try:
                stack = self._stacks.get(size)
                if stack:
                    self.free -= size
                    return stack.pop()[1]
                if self.free:
                    self._trim()
            except BaseException:  # a signal came
                self.live -= size
                raise
        try:
            return _new_array(size, np.uint8)
        except BaseException:  # there is no memory, or a signal came
            self.give(size)
            with self._lock:
                self._collect()
            raise

    def adopt(self, nbytes: int) -> None:
        """Count live memory that was not taken from here. Give it back with `give(nbytes)`."""
        with self._lock:
            self._collect()
            self.live += nbytes
            self._trim()

    def give(self, item: Block | int) -> None:
        """Return a buffer, or the number of bytes of one that is gone for good. Never blocks."""
        if self._poison and not isinstance(item, int):
            item.fill(_POISON)
        self._returned.append(item)

    def _collect(self) -> None:
        while self._returned:
            item = self._returned.popleft()
            if isinstance(item, int):
                self.live -= item
                continue
            self._stacks.setdefault(item.nbytes, deque()).append((next(self._clock), item))
            self.live -= item.nbytes
            self.free += item.nbytes
        self._trim()

    def _trim(self) -> None:
        allowed = UNBOUNDED_FREE if self._limit is None else self._limit - self.live
        while self.free and self.free > allowed:
            size = min((s for s, stack in self._stacks.items() if stack), key=self._age)
            self._stacks[size].popleft()
            self.free -= size
            if not self._stacks[size]:
                del self._stacks[size]

    def _age(self, size: int) -> int:
        return self._stacks[size][0][0]
