"""A captured program on the host: runs of elementwise operations go block by block through all of them.

A *run* is a sequence of universal functions of one shape: of whole arrays, numbers, rows and columns. For each a Python
function is generated that takes a block through every step while it is in the processor's cache. Intermediate
values never exist as a whole: their blocks are in *registers*, arrays of the thread's scratch memory, which are used
again after a value's last use (register allocation). The block of a result serves as a register until it is written.
NumPy's functions give each element the same bits, in whatever block it is. So a large run is also cut into parts for
several threads, with registers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .block_run import Run
from .block_writer import run_of, run_shape
from .program import Program

_WORTH_A_BUFFER = 65_536  # bytes: below, fresh memory costs nothing


class FusedProgram:
    """Runs a program on NumPy's arrays.

    Args:
        take, give: get a buffer of so many bytes for what lives for a while in a run of the program, and return it.
    """

    def __init__(self, program: Program, take: Callable[[int], Any], give: Callable[[Any], None]) -> None:
        self._program = program
        self._take, self._give = take, give
        last, reads = program.last_uses(), program.last_reads()
        self._parts: list[tuple[Run | None, range, list[int]]] = []
        for steps in program.runs(lambda i: run_shape(program, program.steps[i])):
            run = run_of(program, steps, reads) if len(steps) > 1 else None
            self._parts.append((run, steps, [slot for i in steps for slot in last[i]]))

    def run(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        """The results, in `outs` if given: C-contiguous arrays that share no memory with others."""
        if outs is None:
            return self._results(arrays, lambda slot: None, {})
        blocks: dict[int, Any] = {}
        places = dict(zip(self._program.outputs, outs, strict=True))
        try:
            results = self._results(arrays, partial(self._place, places, blocks), blocks)
            for out, result in zip(outs, results, strict=True):
                if out is not result:
                    np.copyto(out, result)
        finally:
            results = []
            for block in blocks.values():
                self._give(block)
        return list(outs)

    def _results(self, arrays: Sequence[Any], place: Callable[[int], Any], blocks: dict[int, Any]) -> list[Any]:
        program = self._program
        slots: list[Any] = [*arrays, *[None] * len(program.steps)]
        for run, steps, over in self._parts:
            if run is None or not run.apply(slots, place):
                for i in steps:
                    slots[program.inputs + i] = program.apply(i, np, slots, place(program.inputs + i))
            for slot in over:
                slots[slot] = None
                if slot in blocks:
                    self._give(blocks.pop(slot))
        return [slots[slot] for slot in program.outputs]

    def _place(self, places: dict[int, Any], blocks: dict[int, Any], slot: int) -> Any:
        """Where a step or a run is to put its result; None for wherever it likes."""
        step = self._program.steps[slot - self._program.inputs]
        form = step.form
        if slot in places:
            return places[slot]
        if not step.op.out or not form.contiguous or form.nbytes < _WORTH_A_BUFFER:
            return None
        if slot not in blocks:
            blocks[slot] = self._take(form.nbytes)
        return np.ndarray(form.bound, form.dtype, blocks[slot])
