"""What the library's own pool is given back is poisoned, as CuPy's own would be: whoever reads it later reads that."""

from __future__ import annotations

from typing import Any

from asyncsched.devices.cuda.janitor import kept_for
from asyncsched.devices.cuda.pool import Block, PrivatePool, Spare

from .memory import Memory

_take_back, _keep = PrivatePool.take_back, Spare.keep


def poison() -> None:
    """From here on."""
    PrivatePool.take_back = _taken_back  # type: ignore[method-assign]
    Spare.keep = _kept  # type: ignore[method-assign]


def _taken_back(self: PrivatePool, block: Block) -> None:
    _poison(block)
    _take_back(self, block)


def _kept(self: Spare, array: Any) -> None:
    if not self.over:
        _poison(kept_for(array.data.mem))
    _keep(self, array)


def _poison(block: Block) -> None:
    if (piece := block.piece) is not None:
        memory = block.pool._slabs.get(piece.slab)
        if isinstance(memory, Memory) and memory.block is not None and not memory._fake.stopped:
            memory._fake.poison(memory.block, piece.start, piece.nbytes, piece.bin[0])
