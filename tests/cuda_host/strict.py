"""A pytest plugin: CuPy's pools give each block back in the order of the stream that took it, and at once.

So whoever reads it later faults, on whatever stream. With CuPy's own pools a freed block stays mapped, and such a
reader most often gets what it hoped for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

GRANULE = 512
runtime = cupy.cuda.runtime


class Block:
    """Some memory of the device, for as long as anything refers to it."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self._pool = pool
        self._nbytes = nbytes
        self._stream = cupy.cuda.get_current_stream().ptr
        self.start = runtime.mallocAsync(nbytes, self._stream)
        pool.total += nbytes

    def __del__(self) -> None:
        self._pool.total -= self._nbytes
        runtime.freeAsync(self.start, self._stream)


class Pool:
    """As much of `cupy.cuda.MemoryPool` as is used. It keeps nothing that is free."""

    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self.total = 0

    def malloc(self, nbytes: int) -> Any:
        nbytes = -(-nbytes // GRANULE) * GRANULE
        block = Block(self, nbytes) if nbytes else None
        start = block.start if block is not None else 0
        memory = cupy.cuda.UnownedMemory(start, nbytes, block or self, runtime.getDevice())
        return cupy.cuda.MemoryPointer(memory, 0)

    def total_bytes(self) -> int:
        return self.total

    used_bytes = total_bytes

    def free_all_blocks(self, stream: Any = None) -> None:
        """None is kept."""


cupy.cuda.MemoryPool = Pool
