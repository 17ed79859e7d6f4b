"""What the library's own pool is given back is poisoned, as CuPy's own would be: whoever reads it later reads that."""

from __future__ import annotations

from asyncsched.devices.cuda.pool import Block, PrivatePool

from .memory import Memory

_take_back = PrivatePool.take_back


def poison() -> None:
    """From here on."""
    PrivatePool.take_back = _poisoning  # type: ignore[method-assign]


def _poisoning(self: PrivatePool, block: Block) -> None:
    if (piece := block.piece) is not None:
        memory = self._slabs.get(piece.slab)
        if isinstance(memory, Memory) and memory.block is not None and not memory._fake.stopped:
            memory._fake.poison(memory.block, piece.start, piece.nbytes, piece.bin[0])
    _take_back(self, block)
