"""A pool that hands out one block for each allocation.

Each block goes back in the order of the stream that took it, and at once. So whoever reads it later faults, on whatever
stream, or is found by a tool that watches memory. What a pool has free stays mapped, and such a reader most often gets
what it hoped for. Each block is full of 0xff, and some streams are held up at random: who reads too early, or what was
not written, gets NaN or -1.
"""

from __future__ import annotations

import random
from typing import Any, Final

from .._interrupts import finaliser
from ..devices.cuda import requirements
from ..devices.cuda.pool import PrivatePool, Spare, untracked
from ..ops.op import CARD_GRANULE
from .entries import NotHere

_DELAY: Final = """
extern "C" __global__ void delay(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles; ) { }
}
"""
_LONGEST: Final = 400_000  # cycles: some tenths of a millisecond
_HELD_UP: Final = 0.1  # of the allocations


class Block:
    """Some memory of the device, for as long as anything refers to it."""

    made: int = 0

    def __init__(self, cuda: Any, nbytes: int) -> None:
        self._free, self._stream = cuda.runtime.freeAsync, cuda.get_current_stream().ptr
        self.start: Any = cuda.runtime.mallocAsync(nbytes, self._stream)
        cuda.runtime.memsetAsync(self.start, 0xFF, nbytes, self._stream)
        Block.made += 1

    @finaliser(lambda *_: None)  # with its one line the block is free
    def __del__(self) -> None:
        self._free(self.start, self._stream)


def one_for_each() -> None:
    """Have the pools of this process hand out such blocks.

    Raises:
        NotHere: if CuPy is a fake.
    """
    cupy = requirements.cupy()
    if not hasattr(cupy, "RawKernel"):
        raise NotHere("this CuPy takes no kernels of one's own")
    delay, rng = cupy.RawKernel(_DELAY, "delay"), random.Random(1)
    delay.compile()

    def malloc(self: PrivatePool, nbytes: int) -> Any:
        nbytes, device = -(-nbytes // CARD_GRANULE) * CARD_GRANULE, cupy.cuda.runtime.getDevice()
        if not nbytes:
            return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, device), 0)
        if rng.random() < _HELD_UP:
            delay((1,), (1,), (rng.randrange(_LONGEST),))
        block = Block(cupy.cuda, nbytes)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.start, nbytes, untracked(block), device), 0)

    def drop(self: Spare, array: Any) -> None:
        """Keep no array: the next one has a block of its own, too."""

    PrivatePool.malloc = malloc  # type: ignore[method-assign]
    Spare.keep = drop  # type: ignore[method-assign]
