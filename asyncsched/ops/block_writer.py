"""Which steps a run may have, and the Python function that does one: see `fused`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from . import parallel
from .block_run import Run
from .exactly import asked
from .kernels import compiled
from .meta import Meta
from .program import Program, Ref, Step
from .run_loop import loop_of

# NumPy takes a third of the time for two arrays; the bits are the same.
_SLOW_WITH_NUMBERS = (np.maximum, np.minimum)


def run_shape(program: Program, step: Step) -> Any:
    """The shape of a run that the step may be in; None if it may be in none."""
    form, function = step.form, _function(step)
    if not isinstance(function, np.ufunc) or function.nout != 1 or function.signature is not None:
        return None  # matmul is a universal function, too, but one of matrices
    if step.options or not form.contiguous:
        return None
    operands = [program.form(slot) for slot in step.reads]
    simple = all(one.dtype.kind in "biu" or one.dtype.char in "fd" for one in (form, *operands))
    placed = all(one.contiguous and _way(one, form) is not None for one in operands)
    return form.bound if simple and placed and form.nbytes and form.bound else None


def run_of(program: Program, steps: range, last: dict[int, int]) -> Run:
    """The run of these steps. `last` has by slot the last step that reads it."""
    form = program.steps[steps[0]].form
    run = _Writer(program, steps, last, form).run()
    if prod(form.bound) >= compiled.WORTH and not run.tiles and not asked():
        loop = loop_of(program, steps, run.reads, [slot for slot, _ in run.writes])
        if loop is not None:
            return replace(run, loop=compiled.later(*loop, len(run.writes)))
    return run


def _function(step: Step) -> Any:
    """The universal function that the step's operation is, or gives the bits of."""
    name = step.op.ufunc.ufunc if step.op.ufunc else step.op.kernel
    return getattr(np, name, None) if isinstance(name, str) else None


def _args(step: Step) -> tuple[Any, ...]:
    """Its arguments then."""
    return (*step.args, *step.op.ufunc.arguments) if step.op.ufunc else step.args


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


class _Writer:
    """Writes the function of a run: allocates registers, step by step."""

    def __init__(self, program: Program, steps: range, last: dict[int, int], form: Meta) -> None:
        self._program, self._form = program, form
        self._steps = {program.inputs + i: program.steps[i] for i in steps}
        self._written = program.written(steps, last)
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
            parallel.seconds_of(size, step.form.dtype.itemsize, step.op.element_seconds)
            for step in self._steps.values()
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
        for read in dict.fromkeys(step.reads):
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
            with suppress(OverflowError), np.errstate(all="ignore"):  # what does not fit may be compared all the same
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
