"""A pytest plugin: each block of a device's memory goes back in the order of the stream that took it, and at once.

So whoever reads it later faults, on whatever stream. What a pool has free stays mapped, and such a reader most often
gets what it hoped for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import pytest

from asyncsched.devices.cuda.pool import GRANULE, PrivatePool
from asyncsched.devices.untracked import untracked

runtime = cupy.cuda.runtime


class Block:
    """Some memory of the device, for as long as anything refers to it."""

    made = 0

    def __init__(self, nbytes: int) -> None:
        self._stream = cupy.cuda.get_current_stream().ptr
        self.start = runtime.mallocAsync(nbytes, self._stream)
        Block.made += 1

    def __del__(self) -> None:
        runtime.freeAsync(self.start, self._stream)


def malloc(self: PrivatePool, nbytes: int) -> Any:
    nbytes = -(-nbytes // GRANULE) * GRANULE
    if not nbytes:
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, runtime.getDevice()), 0)
    block = Block(nbytes)
    memory = cupy.cuda.UnownedMemory(block.start, nbytes, untracked(block), runtime.getDevice())
    return cupy.cuda.MemoryPointer(memory, 0)


PrivatePool.malloc = malloc  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def in_use() -> Iterator[None]:
    before = Block.made
    yield
    assert Block.made > before, "no memory came from here"
