"""The private pool of one CUDA device, whose reserved bytes are kept under the scheduler's limit.

Theory of operation. CuPy's pool keeps what is freed in an arena for each stream, so what one stream has free does not
serve another. Left alone, the arenas together would take many times what is in use. So where the limit binds, free
blocks of other arenas go back to the device, one arena after the other, until there is room.

Giving a block back waits for the device, and CuPy would do it where the block dies: in whatever thread drops the last
array of a pool that is gone, and, while an arena is emptied, with the lock held for which every allocation waits. So
what CuPy's pool has is blocks whose death only says that they may go. Who emptied the arena gives them back, with no
lock held, and after the close the janitor does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import execution

GRANULE = 512  # CuPy's pool hands out multiples of this (`ALLOCATION_UNIT_SIZE` in cupy/cuda/memory.pyx)


class Freed:
    """Memory that may go back to the device; `tell` is called when there is more. On any thread."""

    def __init__(self) -> None:
        self.memory: deque[Any] = deque()
        self.tell: Callable[[], None] | None = None

    def add(self, memory: Any) -> None:
        self.memory.append(memory)
        if self.tell is not None:
            self.tell()


class Block:
    """Keeps memory of the device for CuPy's pool."""

    __slots__ = ("_freed", "_memory")

    def __init__(self, memory: Any, freed: Freed) -> None:
        self._memory, self._freed = memory, freed

    def __del__(self) -> None:
        self._freed.add(self._memory)


class PrivatePool:
    """A memory pool of CuPy that nobody else allocates from. Made on the event loop's thread, where it never blocks."""

    def __init__(self, cupy: Any, number: int, max_bytes: int | None) -> None:
        self._cuda = cupy.cuda
        self._number = number
        self._pool = cupy.cuda.MemoryPool(self._grow)
        self._loop_thread = threading.get_ident()
        self._freed = Freed()
        self._arenas: dict[int, Any] = {}  # the streams that have one, by pointer, the last to grow last
        self._reserved = 0
        self._counting = threading.Lock()  # never held over a call of CUDA
        self._limit = max_bytes or 0
        # What kernels need for themselves comes on top of what is tracked. Both numbers are guesses.
        self._most = self._limit + max(self._limit // 4, 64 << 20) if self._limit else 0

    def malloc(self, nbytes: int) -> Any:
        """CuPy's allocator. Once the pool is closed, straight from the device and back.

        Raises:
            MustBlock: on the event loop's thread, if the pool has no block that fits.
        """
        pool = self._pool
        try:
            return pool.malloc(nbytes) if pool is not None else self._cuda.MemoryPointer(self._cuda.Memory(nbytes), 0)
        except self._cuda.memory.OutOfMemoryError as error:
            error.add_note("the device is full, with what others hold and what kernels need: lower max_bytes")
            raise

    def reserved(self) -> int:
        """Bytes the pool took from the device: arrays, and free blocks in the arenas of the streams."""
        return self._reserved

    def free(self) -> None:
        """Give back what CuPy's pool has let go. May block."""
        while self._freed.memory:
            nbytes = self._free_one()
            with self._counting:
                self._reserved -= nbytes

    def _free_one(self) -> int:
        try:
            memory = self._freed.memory.popleft()
        except IndexError:  # another thread took it
            return 0
        return int(memory.size)  # and by now it is gone

    def close(self, tell: Callable[[], None]) -> None:
        """Let go of all that is free, now and when what is in use comes free: `free` is to follow each `tell`."""
        pool, self._pool = self._pool, None
        pool.free_all_blocks()
        self._freed.tell = tell

    def abandon(self) -> None:
        """The device is lost, with all that is reserved on it."""
        self._reserved = 0

    def _grow(self, nbytes: int) -> Any:
        """What CuPy's pool calls for more memory.

        At the limit, free blocks that lie in the arenas of other streams go back to the device first. CuPy's pool has
        no limit set, since it would free those on whatever thread.
        """
        if threading.get_ident() == self._loop_thread:
            raise execution.MustBlock
        stream = self._cuda.get_current_stream()
        if self._limit:
            self._make_room(nbytes, stream)
            if self._reserved + nbytes > self._most:
                raise self._cuda.memory.OutOfMemoryError(nbytes, self._reserved, self._most)
        memory = self._cuda.Memory(nbytes)
        with self._counting:
            self._reserved += nbytes
            self._arenas.pop(stream.ptr, None)
            self._arenas[stream.ptr] = stream
        block = Block(memory, self._freed)
        return self._cuda.MemoryPointer(self._cuda.UnownedMemory(memory.ptr, nbytes, block, self._number), 0)

    def _make_room(self, nbytes: int, mine: Any) -> None:
        """Give free blocks back until there is room: of one arena after the other, this stream's own last."""
        self.free()
        with self._counting:
            arenas = [stream for stream in self._arenas.values() if stream.ptr != mine.ptr]
        for stream in (*arenas, mine):
            if self._reserved + nbytes <= self._limit:
                return
            self._pool.free_all_blocks(stream)
            self.free()
