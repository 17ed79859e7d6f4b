"""A captured program on the host: runs of elementwise operations go block by block through all of them.

A *run* is a sequence of universal functions of one shape: of whole arrays, numbers, rows and columns. For each a Python
function is generated that takes a block through every step while it is in the processor's cache. What only the run
itself reads never exists as a whole: its block lies in a register, an array of the thread's scratch, and registers are
taken again after a value's last use. The block of a result serves as a register until it is written. NumPy's functions
give each element the same bits, in whatever block it is. So a large run is also cut into parts for several threads,
with registers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from . import parallel
from .exactly import asked
from .kernels import compiled
from .kernels.scratch import scratch
from .meta import Meta
from .program import Program, Ref, Step
from .run_loop import loop_of
from .runs import last_reads, runs, slots_of, written

_WORTH_A_BUFFER = 65_536  # bytes: below, fresh memory costs nothing
_LEAST_BLOCK = 16_384  # elements: fewer are done before the next call is made
BLOCK_BYTES = 786_432  # of all arrays that a block of a run is in: most of what is a processor's own
# NumPy takes a third of the time for two arrays; the bits are the same.
_SLOW_WITH_NUMBERS = (np.maximum, np.minimum)


class FusedProgram:
    """Runs a program on NumPy's arrays.

    Args:
        take, give: get a buffer of so many bytes for what lives for a while in a run of the program, and return it.
    """

    def __init__(self, program: Program, take: Callable[[int], Any], give: Callable[[Any], None]) -> None:
        self._program = program
        self._take, self._give = take, give
        last, reads = program.last_uses(), last_reads(program)
        self._parts: list[tuple[Run | None, range, list[int]]] = []
        for steps in runs(program, lambda i: _run_shape(program, program.steps[i])):
            run = Run.of(program, steps, reads) if len(steps) > 1 else None
            self._parts.append((run, steps, [slot for i in steps for slot in last[i]]))

    def run(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        """The results, in `outs` if such are given: C-contiguous, and of nobody else's memory."""
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
        if not step.row.out or not form.contiguous or form.nbytes < _WORTH_A_BUFFER:
            return None
        if slot not in blocks:
            blocks[slot] = self._take(form.nbytes)
        return np.ndarray(form.bound, form.dtype, blocks[slot])


def _run_shape(program: Program, step: Step) -> Any:
    """The shape of a run that the step may be in; None if it may be in none."""
    form, function = step.form, _function(step)
    if not isinstance(function, np.ufunc) or function.nout != 1 or function.signature is not None:
        return None  # matmul is one, too, of matrices
    if step.options or not form.contiguous:
        return None
    operands = [program.form(a.slot) for a in step.args if type(a) is Ref]
    simple = all(one.dtype.kind in "biu" or one.dtype.char in "fd" for one in (form, *operands))
    placed = all(one.contiguous and _way(one, form) is not None for one in operands)
    return form.bound if simple and placed and form.nbytes and form.bound else None


def _function(step: Step) -> Any:
    """The universal function of the step's row, if it is one."""
    kernel = step.row.kernel
    return np.maximum if step.row.name == "relu" else getattr(np, kernel, None) if isinstance(kernel, str) else None


def _args(step: Step) -> tuple[Any, ...]:
    """Its arguments then."""
    return (*step.args, 0) if step.row.name == "relu" else step.args


def _way(operand: Meta, form: Meta) -> str | None:
    """How an operand meets blocks of an array of this form: whole, as a number, a row or a column."""
    if not operand.known:
        return None
    shape: tuple[int, ...] = operand.bound
    whole: tuple[int, ...] = form.bound
    if shape == whole:
        return "whole"
    if prod(shape) == 1:
        return "number"
    if shape[-1:] == whole[-1:] and prod(shape) == whole[-1]:
        return "row"
    return "column" if shape == (*whole[:-1], 1) else None


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

    @classmethod
    def of(cls, program: Program, steps: range, last: dict[int, int]) -> Run:
        form = program.steps[steps[0]].form
        run = _Writer(program, steps, last, form).run()
        if prod(form.bound) >= compiled.WORTH and not run.tiles and not asked():
            loop = loop_of(program, steps, run.reads, [slot for slot, _ in run.writes])
            if loop is not None:
                return replace(run, loop=compiled.later(*loop, len(run.writes)))
        return run

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
        parts = [
            partial(self._part, slots, [array[part] if array.ndim else array for array in arrays], width)
            for part in parallel.ranges(count, self.seconds)
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


class _Writer:
    """Writes the function of a run: allocates registers, step by step."""

    def __init__(self, program: Program, steps: range, last: dict[int, int], form: Meta) -> None:
        self._program, self._form = program, form
        self._steps = {program.inputs + i: program.steps[i] for i in steps}
        self._written = written(program, steps, last)
        self._last = {slot: program.inputs + last.get(slot, slot - program.inputs) for slot in self._steps}
        self._reads: dict[int, str] = {}
        self._tiles: dict[str, tuple[int | None, Any, np.dtype[Any]]] = {}
        self._registers: list[np.dtype[Any]] = []
        self._free: list[tuple[str, np.dtype[Any], float]] = [
            (f"o{slot}", self._steps[slot].form.dtype, slot) for slot in self._written
        ]  # and up to which step
        self._names: dict[int, str] = {}
        self._bound: dict[str, Any] = {}

    def run(self) -> Run:
        lines = [self._line(slot, step) for slot, step in self._steps.items()]
        results = [f"o{slot}" for slot in self._written]
        blocks = [*[f"x{slot}" for slot, way in self._reads.items() if way != "number"], *results]
        arrays = [*[f"x{slot}" for slot in self._reads], *results]
        registers = [*[f"r{i}" for i in range(len(self._registers))], *self._tiles]
        source = "\n".join(
            [
                f"def run(count, block, {', '.join([name.upper() for name in arrays] + registers)}):",
                *[f"    {name} = {name.upper()}" for name in arrays if name not in blocks],
                "    for start in range(0, count, block):",
                "        stop = start + block",
                "        if stop > count:",
                *[f"            {name} = {name}[: count - start]" for name in registers],
                "            stop = count",
                *[f"        {name} = {name.upper()}[start:stop]" for name in blocks],
                *lines,
            ]
        )
        space = dict(self._bound)
        exec(_compiled(source), space)
        rows = any(slot is not None for slot, _, _ in self._tiles.values()) or "column" in self._reads.values()
        writes = tuple([(slot, self._steps[slot].form) for slot in self._written])
        size = prod(self._form.bound)
        seconds = sum(
            parallel.seconds_of(step.row.name, size, step.form.dtype.itemsize) for step in self._steps.values()
        )
        return Run(
            space["run"], self._form, rows, tuple(self._reads.items()), writes, tuple(self._tiles.values()),
            tuple(self._registers), seconds, [],
        )  # fmt: skip

    def _line(self, slot: int, step: Step) -> str:
        function, args = _function(step), _args(step)
        self._bound[f"f{slot}"] = function
        dtypes = _dtypes(function, [self._operand(a) for a in args])
        words = [
            self._name(a.slot) if type(a) is Ref else self._constant(f"c{slot}_{i}", a, dtypes[i], function)
            for i, a in enumerate(args)
        ]
        for read in dict.fromkeys(slots_of(step)):
            if read in self._steps and self._last[read] == slot and read not in self._written:
                self._release(self._names[read], self._steps[read].form.dtype)
        target = self._names[slot] = self._target(slot, step.form.dtype)
        return f"        f{slot}({', '.join(words)}, out={target})"

    def _operand(self, arg: Any) -> Any:
        return self._program.form(arg.slot).dtype if type(arg) is Ref else type(arg)

    def _name(self, slot: int) -> str:
        if slot not in self._steps:
            way, form = _way(self._program.form(slot), self._form), self._program.form(slot)
            if way == "row":
                self._tiles[f"t{slot}"] = slot, None, form.dtype
                return f"t{slot}"
            self._reads[slot] = str(way)
            return f"x{slot}"
        return self._names[slot]

    def _constant(self, name: str, value: Any, dtype: Any, function: Any) -> str:
        self._bound[name] = value
        if dtype is not None:
            with suppress(OverflowError), np.errstate(all="ignore"):  # one out of bounds may be compared all the same
                self._bound[name] = np.array(value, dtype)
                if function in _SLOW_WITH_NUMBERS:
                    self._tiles[name] = None, self._bound.pop(name), dtype
        return name

    def _target(self, slot: int, dtype: np.dtype[Any]) -> str:
        if slot in self._written:
            self._free = [one for one in self._free if one[0] != f"o{slot}"]
            return f"o{slot}"
        for at in reversed(range(len(self._free))):
            name, free, until = self._free[at]
            if free == dtype and self._last[slot] <= until:
                del self._free[at]
                return name
        self._registers.append(dtype)
        return f"r{len(self._registers) - 1}"

    def _release(self, name: str, dtype: np.dtype[Any]) -> None:
        until = int(name[1:]) if name[0] == "o" else float("inf")
        self._free.append((name, dtype, until))


def _dtypes(function: Any, operands: list[Any]) -> list[Any]:
    """For each operand that is a Python number the dtype that NumPy casts it to, once for all; None for the others."""
    if not all(one in (int, float) or isinstance(one, np.dtype) for one in operands):
        return [None] * len(operands)
    found = function.resolve_dtypes((*operands, None))
    return [None if isinstance(one, np.dtype) else dtype for one, dtype in zip(operands, found, strict=False)]


@lru_cache(maxsize=256)
def _compiled(source: str) -> Any:
    return compile(source, "<a run of a captured step>", "exec")
