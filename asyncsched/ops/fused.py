"""A captured program on the host: elementwise operations in a row run block by block.

A *run* is a sequence of universal functions of one shape, applied to whole arrays, numbers, rows and columns. A block
passes through every step while it is in the processor's cache. Intermediate values never exist as a whole: their blocks
are in *registers*, arrays of the thread's scratch memory, which are reused after a value's last use (register
allocation). The block of a result serves as a register until it is written. NumPy's functions give each element the
same bits in any block. So a large run is also cut into parts for several threads, with registers of their own.

If numba is installed, it compiles a large float32 run into one loop. An operation's `scalar_code` is its effect on an
element: plain arithmetic has NumPy's bits; `tanh` and `exp` are those of `kernels.loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import numpy as np

from . import cut, parallel
from .kernels import compiled
from .kernels.blocks import scratch
from .meta import Meta
from .op import NO_OPTIONS, Kernel, Op, asked, resolve
from .program import Program, Ref, Step, note_step
from .quiet import quietly

_WORTH_A_BUFFER = 65_536  # bytes; below, fresh memory costs nothing
_LEAST_RUN = 4_096  # elements; with fewer, single steps take less time than beginning a run, some 15 us
_LEAST_BLOCK = 16_384  # elements; fewer are done before the next call is made
BLOCK_BYTES = 786_432  # of all arrays of a run's block together: most of a processor's own cache
# With two arrays NumPy takes a third of the time, for the same bits.
_SLOW_WITH_NUMBERS = (np.maximum, np.minimum)

Place = Callable[[int], Any]  # the place for a slot's array


class FusedProgram:
    """Runs a program on NumPy's arrays.

    A function with a line for each step is generated and compiled: for small arrays, most of a step's time would go
    into finding its operands. Arrays are named by slot: x for inputs, s for results.

    Args:
        take, give: get a buffer of a number of bytes for an intermediate of the program, and return it.
    """

    def __init__(self, program: Program, take: Callable[[int], Any], give: Callable[[Any], None]) -> None:
        self._program = program
        self._take, self._give = take, give
        self._space: dict[str, Any] = {}  # functions (f) and constants (c) of the lines
        self._steps_at: dict[int, Step] = {}  # by the number of their line
        self._call = self._function()

    def run(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        """The results, in `outs` if given: C-contiguous arrays that share no memory with others."""
        if outs is None:
            return self._results(arrays, None, {})
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

    def _results(self, arrays: Sequence[Any], place: Place | None, blocks: dict[int, Any]) -> list[Any]:
        def over(slot: int) -> None:
            if slot in blocks:
                self._give(blocks.pop(slot))

        try:
            return self._call(arrays, place, over)  # type: ignore[no-any-return]
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code is not self._call.__code__:
                trace = trace.tb_next
            if trace is not None and (step := self._steps_at.get(trace.tb_lineno)) is not None:
                note_step(error, step)
            del trace  # no cycle: its frames hold the exception
            raise

    def _function(self) -> Any:
        program = self._program
        last, reads = program.last_uses(), program.last_reads()
        names = [f"x{slot}" if slot < program.inputs else f"s{slot}" for slot in range(program.inputs + len(last))]
        source = ["def run(arrays, place, over):", f"    [{', '.join(names[: program.inputs])}] = arrays"]
        for steps in program.runs(lambda i: _run_shape(program, program.steps[i])):
            if len(steps) > 1:
                source.append(self._run_line(Run(program, steps, reads), steps, names))
            else:
                self._steps_at[len(source) + 1] = program.steps[steps[0]]
                source.append(self._step_line(steps[0], names))
            gone = [slot for i in steps for slot in last[i]]
            source += [f"    {names[slot]} = None" for slot in gone if slot in reads or slot < program.inputs]
            source += [f"    over({slot})" for slot in gone if self._in_a_block(slot)]
        source.append(f"    return [{', '.join([names[slot] for slot in program.outputs])}]")
        exec(compile("\n".join(source), "<a captured step>", "exec"), self._space)
        return self._space.pop("run")

    def _step_line(self, i: int, names: list[str]) -> str:
        step, slot = self._program.steps[i], self._program.inputs + i
        words = [names[arg.slot] if type(arg) is Ref else f"c{slot}_{place}" for place, arg in enumerate(step.args)]
        self._space |= {word: arg for word, arg in zip(words, step.args, strict=True) if type(arg) is not Ref}
        function = resolve(step.op, np)
        function = partial(function, **step.options) if step.options else function
        if i in self._program.in_place:
            call = f"f{slot}({', '.join(words)}, out={words[0]})"
        elif step.op.out and (slot in self._program.outputs or self._in_a_block(slot)):
            function = partial(_placed, step.op, function)
            call = f"f{slot}(place and place({slot}), {', '.join(words)})"
        else:
            call = f"f{slot}({', '.join(words)})"
        self._space[f"f{slot}"] = function
        # A result without axes may be a NumPy scalar, to which nothing can be assigned.
        self._space["asarray"] = np.asarray
        return f"    {names[slot]} = {call if step.form.shape else f'asarray({call})'}"

    def _run_line(self, run: Run, steps: range, names: list[str]) -> str:
        made = range(self._program.inputs + steps.start, self._program.inputs + steps.stop)
        read = dict.fromkeys([slot for i in steps for slot in self._program.steps[i].reads if slot not in made])
        # Holds no reference back to this object
        self._space[f"f{made.start}"] = partial(_apply, self._program, run, steps)
        given = ", ".join([f"{slot}: {names[slot]}" for slot in read])
        return f"    [{', '.join([names[slot] for slot in run.writes])}] = f{made.start}({{{given}}}, place)"

    def _in_a_block(self, slot: int) -> bool:
        """Whether a step's result is worth a buffer."""
        i = slot - self._program.inputs
        if i < 0 or i in self._program.in_place:
            return False
        step = self._program.steps[i]
        return step.op.out and step.form.contiguous and step.form.nbytes >= _WORTH_A_BUFFER

    def _place(self, places: dict[int, Any], blocks: dict[int, Any], slot: int) -> Any:
        """The array for the result of a step or a run; None for no particular one."""
        if slot in places:
            return places[slot]
        if not self._in_a_block(slot):
            return None
        form = self._program.form(slot)
        if slot not in blocks:
            blocks[slot] = self._take(form.nbytes)
        return np.ndarray(form.bound, form.dtype, blocks[slot])


def _placed(op: Op, kernel: Kernel, out: Any, *args: Any) -> Any:
    """Compute an operation's result, in `out` if that is given, perhaps in parts."""
    return kernel(*args) if out is None else cut.run(op, kernel, args, out, NO_OPTIONS)


def _apply(program: Program, run: Run, steps: range, slots: dict[int, Any], place: Place | None) -> list[Any]:
    """The results of a run that are read outside of it. Computes them together or, if that fails, step by step."""
    place = place or (lambda slot: None)
    if not run.apply(slots, place):
        for i in steps:
            slots[program.inputs + i] = program.apply(i, np, slots, place(program.inputs + i))
    return [slots[slot] for slot in run.writes]


class Run:
    """One run: its reads, its writes and its steps. Its registers are allocated when it is made, step by step.

    Values have names of a letter and a number: x for inputs, o for results, r for registers, t for tiles (rows and
    numbers, laid out as whole blocks), c for constants, f for functions.

    Args:
        last: by slot, the last step that reads it.
    """

    def __init__(self, program: Program, steps: range, last: dict[int, int]) -> None:
        self._program, self._form = program, program.steps[steps[0]].form
        self._steps = {program.inputs + i: program.steps[i] for i in steps}
        self._last = {slot: program.inputs + last.get(slot, slot - program.inputs) for slot in self._steps}
        self.writes: dict[int, Meta] = {slot: self._steps[slot].form for slot in program.written(steps, last)}
        self.reads: dict[int, str] = {}  # by slot, how the array meets blocks
        self._tiles: dict[str, tuple[int | None, Any, np.dtype[Any]]] = {}  # a slot, or else a number; and its dtype
        self.registers: dict[str, np.dtype[Any]] = {}
        self._space: dict[str, Any] = {}  # functions (f) and constants
        self._names: dict[int, str] = {}
        # Each until which step
        self._free = [(f"o{slot}", form.dtype, float(slot)) for slot, form in self.writes.items()]
        self._call = self._function([self._line(slot, step) for slot, step in self._steps.items()])
        # Whether blocks are whole rows.
        self._rows = any(slot is not None for slot, _, _ in self._tiles.values()) or "column" in self.reads.values()
        size = prod(self._form.bound)
        self._seconds = sum(  # estimated, on one thread
            parallel.seconds_of(size, step.form.dtype.itemsize, step.op.element_seconds)
            for step in self._steps.values()
        )
        loop = None if size < compiled.WORTH or self._tiles or asked() else self._loop()
        self._compiled = [] if loop is None else compiled.later(*loop, len(self.writes))

    def apply(self, slots: dict[int, Any], place: Place) -> bool:
        """Compute the run. Returns False if an array's layout differs from the capture's, or a step raises."""
        if not all(slots[slot].flags.c_contiguous for slot in self.reads):
            return False
        shape: tuple[int, ...] = self._form.bound
        width = shape[-1] if self._rows else 1
        count = prod(shape) // width
        lines = (-1, width) if self._rows else (-1,)
        ways = {"whole": lines, "number": (), "column": (-1, 1)}
        kept: dict[int, Any] = {}
        for slot, form in self.writes.items():
            out = place(slot)
            kept[slot] = np.empty(form.bound, form.dtype) if out is None else out
        arrays = [slots[slot].reshape(ways[way]) for slot, way in self.reads.items()]
        arrays += [array.reshape(lines) for array in kept.values()]
        # Parts of whole blocks: shorter ones would take the GIL more often. For an array that stays in a processor's
        # cache between operations, the time is half the estimate.
        block = self._block(width)
        each = max(1, min(parallel.rounds(self._seconds / 2), count // (block * parallel.here.threads)))
        parts = [
            partial(self._part, slots, [array[part] if array.ndim else array for array in arrays], width)
            for part in parallel.ranges(count, parallel.number(self._seconds, each), block if each > 1 else 1)
        ]
        try:
            parallel.run(parts)
        except Exception:  # the caller repeats it step by step, and so finds the step that raises
            return False
        for slot, array in kept.items():
            slots[slot] = array
        return True

    def _part(self, slots: dict[int, Any], arrays: list[Any], width: int) -> None:
        """Compute some of the rows or elements, on one thread."""
        count = len(arrays[-1])
        if self._compiled:
            self._compiled[0](count, *arrays)
            return
        block = self._block(width)
        room = (min(block, count), *arrays[-1].shape[1:])
        dtypes = self.registers | {name: dtype for name, (_, _, dtype) in self._tiles.items()}
        registers = {name: scratch(np, place, room, dtype) for place, (name, dtype) in enumerate(dtypes.items())}
        for name, (row, number, _) in self._tiles.items():
            registers[name][...] = number if row is None else slots[row].reshape(-1)
        self._call(count, block, *arrays, *registers.values())

    def _block(self, width: int) -> int:
        """How many rows, or elements, one block has."""
        alive = len(self.reads) + len(self.writes) + len(self._tiles) + len(self.registers)
        widest = max(form.dtype.itemsize for form in (self._form, *self.writes.values()))
        return max(1, max(_LEAST_BLOCK, BLOCK_BYTES // (alive * widest)) // width)

    def _array_names(self) -> list[str]:
        return [*[f"x{slot}" for slot in self.reads], *[f"o{slot}" for slot in self.writes]]

    def _function(self, lines: list[str]) -> Any:
        """The function that goes through the blocks.

        It is generated and compiled: to look up the operands of each step takes 11% of ten operations on 8 MiB.
        """
        arrays, registers = self._array_names(), [*self.registers, *self._tiles]
        numbers = [f"x{slot}" for slot, way in self.reads.items() if way == "number"]
        source = [
            f"def run(count, block, {', '.join([*map(str.upper, arrays), *registers])}):",
            *[f"    {name} = {name.upper()}" for name in numbers],
            "    for start in range(0, count, block):",
            "        stop = start + block",
            "        if stop > count:",
            *[f"            {name} = {name}[: count - start]" for name in registers],
            "            stop = count",
            *[f"        {name} = {name.upper()}[start:stop]" for name in arrays if name not in numbers],
            *lines,
        ]
        exec(compile("\n".join(source), "<a run of a captured step>", "exec"), self._space)
        return self._space["run"]

    def _line(self, slot: int, step: Step) -> str:
        function = self._space[f"f{slot}"] = _function(step)
        args = (*step.args, *step.op.ufunc.arguments) if step.op.ufunc else step.args
        dtypes = _dtypes(function, [self._program.form(a.slot).dtype if type(a) is Ref else type(a) for a in args])
        words = [
            self._name(a.slot) if type(a) is Ref else self._constant(f"c{slot}_{i}", a, dtypes[i], function)
            for i, a in enumerate(args)
        ]
        for read in dict.fromkeys(step.reads):
            if read in self._steps and self._last[read] == slot and read not in self.writes:
                name = self._names[read]
                until = float(name[1:]) if name[0] == "o" else float("inf")
                self._free.append((name, self._steps[read].form.dtype, until))
        target = self._names[slot] = self._target(slot, step.form.dtype)
        return f"        f{slot}({', '.join(words)}, out={target})"

    def _name(self, slot: int) -> str:
        if slot not in self._steps:
            way, form = _way(self._program.form(slot), self._form), self._program.form(slot)
            if way == "row":
                self._tiles[f"t{slot}"] = slot, None, form.dtype
                return f"t{slot}"
            self.reads[slot] = str(way)
            return f"x{slot}"
        return self._names[slot]

    def _constant(self, name: str, value: Any, dtype: Any, function: Any) -> str:
        self._space[name] = value
        if dtype is not None:
            with suppress(OverflowError):  # a number that does not fit may still be compared
                self._space[name] = quietly(np.array, value, dtype)
                if function in _SLOW_WITH_NUMBERS:
                    self._tiles[name] = None, self._space.pop(name), dtype
        return name

    def _target(self, slot: int, dtype: np.dtype[Any]) -> str:
        if slot in self.writes:
            self._free = [one for one in self._free if one[0] != f"o{slot}"]
            return f"o{slot}"
        for at in reversed(range(len(self._free))):
            name, free, until = self._free[at]
            if free == dtype and self._last[slot] <= until:
                del self._free[at]
                return name
        self.registers[name := f"r{len(self.registers)}"] = dtype
        return name

    def _loop(self) -> tuple[str, dict[str, Any], list[int]] | None:
        """The source of a function of a count and of flat arrays, its constants, and the dimensions of its arrays.

        None if a part does not suit a loop: another dtype than float32, a row, a column, an operation without
        `scalar_code`.
        """
        single = np.dtype(np.float32)
        program, reads, constants = self._program, self.reads.items(), dict[str, Any]()
        if any(way not in ("whole", "number") or program.form(slot).dtype != single for slot, way in reads):
            return None
        lines = [f"        v{slot} = x{slot}[i]" for slot, way in reads if way == "whole"]
        for slot, step in self._steps.items():
            code = step.op.scalar_code
            if step.form.dtype != single or code is None:
                return None
            words = []
            for place, arg in enumerate(step.args):
                if type(arg) is Ref:
                    words.append(f"v{arg.slot}")
                elif type(arg) in (int, float, np.float32):
                    constants[f"c{slot}_{place}"] = quietly(np.float32, arg)
                    words.append(f"c{slot}_{place}")
                else:
                    return None
            lines.append(f"        v{slot} = {code.expression.format(*words)}")
        lines += [f"        o{slot}[i] = v{slot}" for slot in self.writes]
        first = [f"    v{slot} = x{slot}[()]" for slot, way in reads if way == "number"]
        head = f"def run(count, {', '.join(self._array_names())}):"
        source = "\n".join([head, *first, "    for i in range(count):", *lines])
        return source, constants, [int(way == "whole") for _, way in reads]


def _run_shape(program: Program, step: Step) -> Any:
    """The shape of a run that may contain the step; None if none may."""
    form, function = step.form, _function(step)
    if not isinstance(function, np.ufunc) or function.nout != 1 or function.signature is not None:
        return None  # matmul is a universal function, too, but one of matrices
    if step.options or not form.contiguous:
        return None
    operands = [program.form(slot) for slot in step.reads]
    simple = all(one.dtype.kind in "biu" or one.dtype.char in "fd" for one in (form, *operands))
    placed = all(one.contiguous and _way(one, form) is not None for one in operands)
    return form.bound if simple and placed and prod(form.bound) >= _LEAST_RUN and form.bound else None


def _function(step: Step) -> Any:
    """The universal function of the step's operation, or one with the same bits."""
    name = step.op.ufunc.ufunc if step.op.ufunc else step.op.kernel
    return getattr(np, name, None) if isinstance(name, str) else None


def _way(operand: Meta, form: Meta) -> str | None:
    """How an operand meets blocks of an array of this form: whole, or as a number, a row or a column."""
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


def _dtypes(function: Any, operands: list[Any]) -> list[Any]:
    """For each operand that is a Python number, the dtype to which NumPy casts it; None for the others."""
    if not all(one in (int, float) or isinstance(one, np.dtype) for one in operands):
        return [None] * len(operands)
    found = function.resolve_dtypes((*operands, None))
    return [None if isinstance(one, np.dtype) else dtype for one, dtype in zip(operands, found, strict=False)]
