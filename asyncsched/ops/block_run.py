"""A run of elementwise operations, done block by block: see `fused`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from . import parallel
from .kernels.scratch import scratch
from .meta import Meta

_LEAST_BLOCK = 16_384  # elements: fewer are done before the next call is made
BLOCK_BYTES = 786_432  # of all arrays that a block of a run is in: most of what is a processor's own


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what it reads and writes, and the function that does it."""

    call: Any
    form: Meta
    rows: bool  # blocks are of whole rows
    reads: tuple[tuple[int, str], ...]  # slots, and how each meets blocks
    writes: tuple[tuple[int, Meta], ...]
    tiles: tuple[tuple[int | None, Any, np.dtype[Any]], ...]  # a slot, or else a number, and its dtype
    registers: tuple[np.dtype[Any], ...]
    seconds: float  # on one thread, by estimate
    loop: list[Any]  # what numba compiled, if it did

    def apply(self, slots: list[Any], place: Callable[[int], Any]) -> bool:
        """Do it, unless an array does not lie as was thought when it was captured, or a step raises."""
        if not all(slots[slot].flags.c_contiguous for slot, _ in self.reads):
            return False
        shape: tuple[int, ...] = self.form.bound
        width = shape[-1] if self.rows else 1
        count = prod(shape) // width
        lines = (-1, width) if self.rows else (-1,)
        ways = {"whole": lines, "number": (), "column": (-1, 1)}
        kept: dict[int, Any] = {}
        for slot, form in self.writes:
            out = place(slot)
            kept[slot] = np.empty(form.bound, form.dtype) if out is None else out
        arrays = [slots[slot].reshape(ways[way]) for slot, way in self.reads]
        arrays += [array.reshape(lines) for array in kept.values()]
        # Parts of whole blocks: with shorter ones the GIL would be taken more often. What stays in a processor's cache
        # from one operation to the next takes half of what the estimates say.
        block = self._block(width)
        each = max(1, min(parallel.rounds(self.seconds / 2), count // (block * parallel.threads())))
        parts = [
            partial(self._part, slots, [array[part] if array.ndim else array for array in arrays], width)
            for part in parallel.ranges(count, parallel.number(self.seconds, each), block if each > 1 else 1)
        ]
        try:
            parallel.run(parts)
        except Exception:  # once more step by step, which says which of them it was
            return False
        for slot, array in kept.items():
            slots[slot] = array
        return True

    def _part(self, slots: list[Any], arrays: list[Any], width: int) -> None:
        """Some of the rows, or elements, on one thread."""
        count = len(arrays[-1])
        if self.loop:
            self.loop[0](count, *arrays)
            return
        block = self._block(width)
        room = (min(block, count), *arrays[-1].shape[1:])
        dtypes = [*self.registers, *[dtype for _, _, dtype in self.tiles]]
        registers = [scratch(np, place, room, dtype) for place, dtype in enumerate(dtypes)]
        for tile, (row, number, _) in zip(registers[len(self.registers) :], self.tiles, strict=True):
            tile[...] = number if row is None else slots[row].reshape(-1)
        self.call(count, block, *arrays, *registers)

    def _block(self, width: int) -> int:
        """How many rows, or elements, are taken at a time."""
        alive = len(self.reads) + len(self.writes) + len(self.tiles) + len(self.registers)
        widest = max(form.dtype.itemsize for form in (self.form, *[form for _, form in self.writes]))
        return max(1, max(_LEAST_BLOCK, BLOCK_BYTES // (alive * widest)) // width)
