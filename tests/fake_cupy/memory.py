"""`cupy.cuda.memory`: pointers, and pools whose freed blocks belong to the stream that allocated them, at once."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import errors, runtime
from .blocks import Block
from .devices import Device
from .errors import CUDARuntimeError, OutOfMemoryError
from .fake import Fake, current, gpu_works
from .launching import drop_block, new_block
from .streams import get_current_stream

_UNIT = 512


class BaseMemory:
    """Memory with a pointer, a size and a device."""

    ptr: int
    size: int
    device_id: int

    @property
    def device(self) -> Device:
        return Device(self.device_id)


class Memory(BaseMemory):
    """Memory straight from the driver."""

    def __init__(self, size: int) -> None:
        self.size, self.device_id = size, current().device()
        self._fake = current()
        self.block = new_block(size) if size else None
        self.ptr = self.block.address if self.block else 0

    def __del__(self) -> None:
        if getattr(self, "block", None) is not None and not self._fake.stopped:
            drop_block(self.block)


class UnownedMemory(BaseMemory):
    """Memory that another object keeps."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = current().device() if device_id < 0 else device_id


class PooledMemory(BaseMemory):
    """A block from a pool. Dropping it gives it back, without asking whether a stream still uses it."""

    def __init__(self, block: Block, size: int, pool: _DevicePool, arena: int) -> None:
        self.ptr, self.size, self.device_id = block.address, size, block.device
        self._block, self._pool, self._arena = block, weakref.ref(pool), arena
        self._source = pool.source(block)  # memory outlives its pool
        self._fake = pool.fake

    def free(self) -> None:
        if self.ptr and not self._fake.stopped:
            self.ptr = 0
            self._fake.free(self._block, self._arena)
            pool = self._pool()
            if pool is not None:
                pool.take_back(self._block, self._arena)

    __del__ = free


class MemoryPointer:
    """A place in some memory, which it keeps alive."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy(self.ptr, _address(mem), size, runtime.memcpyHostToDevice, stream)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy(_address(mem), self.ptr, size, runtime.memcpyDeviceToHost, stream)

    @staticmethod
    def _copy(dst: int, src: int, size: int, kind: int, stream: Any) -> None:
        if size:
            runtime.memcpyAsync(dst, src, size, kind, _pointer(stream))


def _pointer(stream: Any) -> int:
    return int((stream or get_current_stream()).ptr)


def _address(mem: Any) -> int:
    return int(getattr(mem, "value", None) or mem)


class _DevicePool:
    """The blocks of a pool on one device."""

    def __init__(self) -> None:
        self.fake: Fake = current()
        self.used = self.total = 0
        self._free: dict[tuple[int, int], list[Block]] = {}
        self._memory: dict[int, Memory] = {}  # what the driver gave, by address

    def malloc(self, size: int) -> MemoryPointer:
        gpu_works(self.fake.gpu())
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        size = -(-size // _UNIT) * _UNIT
        arena = get_current_stream().ptr
        with self.fake.lock:
            free = self._free.get((arena, size))
            block = free.pop() if free else self._grow(size) or self._grow(size, last=True)
            block.used = True
            block.handed_out += 1
            self.used += size
            self.fake.statistics["allocations"] += 1
        return MemoryPointer(PooledMemory(block, size, self, arena), 0)

    def source(self, block: Block) -> Memory:
        """What the driver gave for a block."""
        return self._memory[block.address]

    def take_back(self, block: Block, arena: int) -> None:
        with self.fake.lock:
            self.used -= block.size
            self._free.setdefault((arena, block.size), []).append(block)

    def free_all(self, arena: int | None) -> None:
        with self.fake.lock:
            for key in list(self._free):
                if arena is None or key[0] == arena:
                    for block in self._free.pop(key, ()):  # giving one back may wait, and let another thread in here
                        self.total -= block.size
                        self._memory.pop(block.address)

    def _grow(self, size: int, *, last: bool = False) -> Block | None:
        """More from the driver. Where that fails, free blocks go back to it, and it is asked once more."""
        try:
            memory = Memory(size)
        except CUDARuntimeError as error:
            if error.status != errors.MEMORY_ALLOCATION:
                raise
            if last:
                raise OutOfMemoryError(size, self.total, 0) from None
            self.free_all(None)
            return None
        self.total += size
        self._memory[memory.ptr] = memory
        return memory.block


class MemoryPool:
    """A pool of memory, with an arena for each pointer of a stream."""

    def __init__(self) -> None:
        self._pools = [_DevicePool() for _ in current().gpus]

    def _pool(self) -> _DevicePool:
        return self._pools[current().device()]

    def malloc(self, size: int) -> MemoryPointer:
        return self._pool().malloc(size)

    def free_all_blocks(self, stream: Any = None) -> None:
        self._pool().free_all(None if stream is None else stream.ptr)

    def used_bytes(self) -> int:
        return self._pool().used

    def total_bytes(self) -> int:
        return self._pool().total

    def free_bytes(self) -> int:
        return self.total_bytes() - self.used_bytes()


def alloc(size: int) -> MemoryPointer:
    return get_allocator()(size)


def get_allocator() -> Callable[[int], MemoryPointer]:
    fake = current()
    chosen = getattr(fake.local, "allocator", None)
    if chosen is None:
        fake.statistics["default_pool"] += 1  # nobody chose a pool on this thread
        return get_default_memory_pool().malloc
    return chosen


@contextlib.contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer]) -> Iterator[None]:
    """Another allocator, on this thread."""
    local = current().local
    previous, local.allocator = getattr(local, "allocator", None), allocator
    try:
        yield
    finally:
        local.allocator = previous


def get_default_memory_pool() -> MemoryPool:
    fake = current()
    if fake.default_pool is None:
        fake.default_pool = MemoryPool()
    return fake.default_pool
