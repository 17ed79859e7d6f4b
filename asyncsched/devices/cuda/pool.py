"""The private pool of one CUDA device, whose reserved bytes are kept under the scheduler's limit."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from .. import execution

GRANULE = 512  # CuPy's pool hands out multiples of this (`ALLOCATION_UNIT_SIZE` in cupy/cuda/memory.pyx)


# CuPy's pools with their devices, held here since the garbage collector, if it found one in a cycle, would have its
# arrays forget it; and those of them that nobody allocates from any more.
_pools: dict[Any, Any] = {}
_abandoned: SimpleQueue[Any] = SimpleQueue()


def _free_abandoned() -> None:
    """Give their memory back to the device, on a thread that may wait for it.

    Arrays that outlive even the tensors keep their pool, until the next one is abandoned.
    """
    kept: list[Any] = []
    while True:
        kept.append(_abandoned.get())
        kept = [pool for pool in kept if not _emptied(pool)]


def _emptied(pool: Any) -> bool:
    with suppress(Exception), _pools[pool]:  # after a fault nothing can be freed
        pool.free_all_blocks()
        if pool.used_bytes():
            return False
    del _pools[pool]
    return True


class PrivatePool:
    """A memory pool of CuPy that nobody else allocates from. Made on the event loop's thread, where it never blocks.

    CuPy's pool keeps what is freed in an arena for each stream, so what one stream has free does not serve another.
    Left alone, the arenas together would take many times what is in use.

    Tensors and arrays may outlive their scheduler, and be dropped on whatever thread the garbage collector runs, the
    event loop's too. So the pool lives as long as they do, takes their blocks back without a call of CUDA, and leaves
    the freeing, which waits for the device, to a thread that the process has for that.
    """

    _janitor: threading.Thread | None = None

    def __init__(self, cupy: Any, number: int, max_bytes: int | None) -> None:
        self._cuda = cupy.cuda
        self._device = cupy.cuda.Device(number)
        grow = weakref.WeakMethod(self._grow)
        self._pool = cupy.cuda.MemoryPool(lambda nbytes: grow()(nbytes))  # type: ignore[misc]
        _pools[self._pool] = self._device
        self._loop_thread = threading.get_ident()
        self._limit = max_bytes or 0
        # What kernels need for themselves comes on top of what is tracked. Both numbers are guesses.
        self._most = self._limit + max(self._limit // 4, 64 << 20) if self._limit else 0
        if PrivatePool._janitor is None:
            PrivatePool._janitor = threading.Thread(target=_free_abandoned, name="cuda janitor", daemon=True)
            PrivatePool._janitor.start()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            _abandoned.put(self._pool)  # which takes no lock that this thread could hold

    def malloc(self, nbytes: int) -> Any:
        """CuPy's allocator.

        Raises:
            MustBlock: on the event loop's thread, if the pool has no block that fits.
        """
        try:
            return self._pool.malloc(nbytes)
        except self._cuda.memory.OutOfMemoryError as error:
            error.add_note("the device is full, with what others hold and what kernels need: lower max_bytes")
            raise

    def reserved(self) -> int:
        """Bytes the pool took from the device: arrays, and free blocks in the arenas of the streams."""
        with self._device:
            return int(self._pool.total_bytes())

    def trim(self) -> None:
        """Give free blocks back to the device. May block."""
        self._pool.free_all_blocks()

    def _grow(self, nbytes: int) -> Any:
        """What CuPy's pool calls for more memory, once `nbytes` are counted among its total.

        At the limit, free blocks that lie in the arenas of other streams go back to the device first. CuPy's pool has
        no limit set, since it would free those on whatever thread.
        """
        if threading.get_ident() == self._loop_thread:
            raise execution.MustBlock
        if self._limit:
            self._make_room()
            if self.reserved() > self._most:
                raise self._cuda.memory.OutOfMemoryError(nbytes, self.reserved() - nbytes, self._most)
        return self._cuda.MemoryPointer(self._cuda.Memory(nbytes), 0)

    def _make_room(self) -> None:
        """Give free blocks back while that helps: freeing waits for the device, and by then there may be more."""
        before = 0
        while (now := self.reserved()) > self._limit and now != before:
            before = now
            self._pool.free_all_blocks()
