"""`cupy.cuda.pinned_memory`: memory of the host that copies reach asynchronously, freed without a look at them."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

from .fake import current
from .launching import new_pinned

_UNIT = 512


class PinnedMemory:
    """Pinned memory straight from the runtime."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self._fake = current()
        self.block = new_pinned(max(size, 1))
        self.ptr = self.block.address

    def __del__(self) -> None:
        if hasattr(self, "block") and not self._fake.stopped:
            if self.block.used:
                self._fake.free(self.block, None)
            self._fake.space.release(self.block)


class PooledPinnedMemory:
    """A block from a pool. Dropping it gives it back, without asking whether a copy still uses it."""

    def __init__(self, mem: PinnedMemory, pool: PinnedMemoryPool) -> None:
        self.mem, self.ptr, self.size, self.block = mem, mem.ptr, mem.size, mem.block
        self._pool = weakref.ref(pool)
        self._fake = mem._fake

    def free(self) -> None:
        if self.ptr and not self._fake.stopped:
            self.ptr = 0
            self._fake.free(self.block, None)
            pool = self._pool()
            if pool is not None:
                pool.take_back(self.mem)

    __del__ = free


class PinnedMemoryPointer:
    """A place in pinned memory: an array of bytes that offers its buffer."""

    mem: Any
    ptr: int

    def size(self) -> int:
        return int(self.mem.size - (self.ptr - self.mem.block.address))

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> PinnedMemoryPointer:
        return _pointer(self.mem, self.ptr - self.mem.block.address + offset)


@functools.cache
def _array_of(size: int) -> Any:
    """Until Python 3.12 only types written in C can offer a buffer, so this is an array of `ctypes`."""
    return type("PinnedMemoryPointer", (PinnedMemoryPointer, ctypes.c_ubyte * size), {})


def _pointer(mem: Any, offset: int = 0) -> PinnedMemoryPointer:
    pointer: PinnedMemoryPointer = _array_of(mem.size - offset).from_buffer(mem.block.content, offset)
    pointer.mem, pointer.ptr = mem, mem.block.address + offset
    return pointer


def _malloc(size: int) -> PinnedMemoryPointer:
    return _pointer(PinnedMemory(size))


class PinnedMemoryPool:
    """A pool of pinned memory, with powers of two as sizes."""

    def __init__(self, allocator: Callable[[int], PinnedMemoryPointer] = _malloc) -> None:
        self._allocator = allocator
        self._free: dict[int, list[PinnedMemory]] = {}

    def malloc(self, size: int) -> PinnedMemoryPointer:
        size = max(_UNIT, 1 << (size - 1).bit_length())
        with current().lock:
            free = self._free.get(size)
            mem = free.pop() if free else self._allocator(size).mem
            mem.block.used = True
        return _pointer(PooledPinnedMemory(mem, self))

    def take_back(self, mem: PinnedMemory) -> None:
        self._free.setdefault(mem.size, []).append(mem)

    def free_all_blocks(self) -> None:
        self._free.clear()

    def n_free_blocks(self) -> int:
        return sum(map(len, self._free.values()))


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """From the default pool."""
    current().blocks("alloc_pinned_memory")
    return get_default_pinned_memory_pool().malloc(size)


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    fake = current()
    if fake.default_pinned_pool is None:
        fake.default_pinned_pool = PinnedMemoryPool()
    return fake.default_pinned_pool
