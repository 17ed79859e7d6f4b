"""A captured program on CuPy. Elementwise operations become one kernel for each run of them, not one for each
operation.

A run is a sequence of elementwise operations of one shape. Its kernel takes each element through all of them. A value
that only the run itself reads stays in a register, and takes no memory. Results have the bits of one operation after
the other. For that the lines are CuPy's own (see `expressions`), each intermediate has the dtype of its operation, and
the compiler may not contract a product and a sum to one step with one rounding. In CuPy's own kernels it may, inside of
one operation. That changes the machine code of few: `tests/devices/test_machine_code.py` compares it, by NVRTC 12.9 for
compute capabilities 8.9 and 9.0. Operations whose bits may differ are not fused: the remainder, and `pow` and
`logaddexp` of float64. log, acos, asinh and the like of float64 had equal bits for a million numbers each. Inside
`asc.exact()` a capture fuses nothing.

Outside of a capture, an operation of several such steps is one kernel of the same kind (`FusedSteps`). An operation on
arrays of one shape is launched with no look at them (`Launches`): CuPy's own call takes three times as long, since it
chooses the loop and the form of its kernel anew each time.

The kernels are compiled where those of operations are: in the first run, on the stream's issuing thread, before the
graph is recorded. If compiling fails, the operations run one by one, with more memory than was charged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final

import numpy as np

from ..._system import Log
from ...ops.meta import Meta, meta
from ...ops.op import Op, asked
from ...ops.program import Program, Ref, Step, ref
from .expressions import Expression, NotElementwise, expression, goes_by_elements, number_as, private

_ARGUMENT_BYTES = 3_800  # of one kernel: CUDA's limit is 4 KiB
_MOST_LINES = 1024  # of one kernel, some 200 functions: a guess at what compiles in a second or two
_MOST_STEPS = 1024  # so many operations with their numbers are kept. Then all are forgotten
_MOST_NUMBERS = 64  # per plan. Then all are forgotten
_UNKNOWN = object()
_OPTIONS = ("--std=c++17", "--fmad=false")
_CODE: Final = """
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
#include <cupy/float16.cuh>
{preamble}
extern "C" __global__ void asyncsched_run({parameters}, const ptrdiff_t _size) {{
    CUPY_FOR(i, _size) {{
        {elements}
        {operation}
    }}
}}
"""
_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Steps that are one kernel."""

    reads: tuple[int, ...]
    numbers: tuple[Any, ...]
    writes: tuple[int, ...]
    source: tuple[str, str, str, str]  # in and out parameters, operation, preamble


class FusedProgram:
    """Runs a program on CuPy's arrays.

    Args:
        cupy: the namespace.
        program: what to run.
    """

    def __init__(self, cupy: Any, program: Program) -> None:
        self._program = program
        self._parts = list(_parts(cupy, program))
        last = program.last_uses()
        self._over = [[slot for i in steps for slot in last[i]] for steps, _ in self._parts]
        self._failed: set[int] = set()  # parts whose kernel does not compile
        # No graph can replay it: it writes over its inputs, or a library keeps memory that the graph would refer to.
        self.unrecordable: bool = bool(program.given) or any(step.op.resource for step in program.steps)

    def peak(self, footprint: Callable[[int], int]) -> int:
        """The most bytes that intermediates and results take at once."""
        return self._program.peak(
            footprint, [(steps, None if run is None else run.writes) for steps, run in self._parts]
        )

    def after_graph(self, inputs: int) -> int:
        """The first of the last parts that are kernels of their own, and copy fewer results than they are: launched
        after a graph, they write to new arrays, and no result of theirs is copied out of it. 0: a graph is no gain.

        Args:
            inputs: how many are copied into a graph.
        """
        first = place = len(self._parts)
        launches = copies = 0
        while place and (run := self._parts[place - 1][1]) is not None:
            place -= 1
            launches += bool(run.writes)
            copies += len(set(run.writes).intersection(self._program.outputs))
            if launches <= copies + (0 if place else inputs + 1):
                first = place
        return first

    def run(self, xp: Any, arrays: Sequence[Any]) -> list[Any]:
        """The results."""
        return self.results(self.through(xp, self.slots(arrays)))

    def reads(self, last: int) -> set[int]:
        """The slots that the parts before one read, and those of the results."""
        read = [slot for steps, _ in self._parts[:last] for i in steps for slot in self._program.steps[i].reads]
        return {*read, *self._program.outputs}

    def slots(self, arrays: Sequence[Any]) -> list[Any]:
        """Places for all values, with those of the inputs."""
        return [*arrays, *[None] * len(self._program.steps)]

    def results(self, slots: Sequence[Any]) -> list[Any]:
        """Those among the values."""
        return [slots[slot] for slot in self._program.outputs]

    def through(
        self, xp: Any, slots: list[Any], first: int = 0, last: int | None = None, outs: Sequence[Any] = ()
    ) -> list[Any]:
        """Run some parts, all by default. Returns the values that are still needed, in their places.

        Args:
            outs: arrays to which kernels write results, where they can.
        """
        program = self._program
        into = dict(zip(program.outputs, outs, strict=False))
        for place in range(first, len(self._parts) if last is None else last):
            steps, run = self._parts[place]
            if run is None or not self._apply(xp, place, run, slots, into):
                for i in steps:
                    slots[program.inputs + i] = program.apply(i, xp, slots)
            for slot in self._over[place]:
                slots[slot] = None
        return slots

    def _apply(self, xp: Any, place: int, run: Run, slots: list[Any], into: Mapping[int, Any]) -> bool:
        """Launch a run's kernel, unless the arrays have another layout than when it was captured."""
        if place in self._failed or not all(slots[slot].flags.c_contiguous for slot in run.reads):
            return False
        if not run.writes:  # nobody reads a result of this run
            return True
        forms = [(slot, self._program.form(slot)) for slot in run.writes]
        outs = [into[slot] if slot in into else xp.empty(form.bound, form.dtype) for slot, form in forms]
        try:
            _kernel(xp, *run.source)(*[slots[slot] for slot in run.reads], *run.numbers, *outs)
        except xp.cuda.compiler.CompileException:
            _log.warning("a run of a captured step does not compile: its operations run one by one", exc_info=True)
            self._failed.add(place)
            return False
        for slot, out in zip(run.writes, outs, strict=True):
            slots[slot] = out
        return True


@lru_cache(maxsize=256)
def _kernel(cupy: Any, ins: str, outs: str, operation: str, preamble: str) -> Any:
    return cupy.ElementwiseKernel(
        ins, outs, operation, "asyncsched_run", preamble=preamble, no_return=True, options=_OPTIONS
    )


class FusedSteps:
    """Operations of many steps that go element by element, each as one kernel, where nothing is captured.

    A kernel depends on dtypes and numbers, and not on shapes: all parameters of a network share one.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._runs: dict[Hashable, Run | None] = {}  # None: it is no such operation, or does not compile
        self._functions: dict[str, Any] = {}  # compiled, by their code

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any], form: Meta, out: Any) -> Any:
        """The operation's result, in `out` if that is given; None if it has to run step by step."""
        kind = self._cupy.ndarray
        arrays = [a for a in args if type(a) is kind]
        if not (form.known and form.contiguous and form.nbytes and all(a.flags.c_contiguous for a in arrays)):
            return None
        # Numbers as text, since 0.0 equals -0.0.
        kinds = tuple([a.dtype if type(a) is kind else (type(a), repr(a)) for a in args])
        key = (op, form.dtype, kinds, *options.items())
        try:
            run = self._runs[key]
        except KeyError:
            slots = count()
            operands = [ref(next(slots)) if type(a) is kind else a for a in args]
            run = _alone(self._cupy, op, operands, options, [*[meta(a.shape, a.dtype) for a in arrays], form])
            if len(self._runs) >= _MOST_STEPS:
                self._runs.clear()
            self._runs[key] = run
        if run is None:
            return None
        if out is None:
            out = self._cupy.empty(form.shape, form.dtype)
        try:
            _kernel(self._cupy, *run.source)(*arrays, *run.numbers, out)
        except self._cupy.cuda.compiler.CompileException:
            _log.warning("%s does not compile as one kernel: it runs step by step", op.name, exc_info=True)
            self._runs[key] = None
            return None
        return out

    def launches(self, op: Op, options: Mapping[str, Any], forms: Sequence[Any], charge: int) -> Launches | None:
        """The launches of a plan whose arrays and result have these forms; None if not all are of one known shape and
        without gaps, or the operation does not go element by element. `charge`: of the result."""
        if not goes_by_elements(op):
            return None
        same = {(form.shape, form.contiguous) if form else None for form in forms} == {(forms[-1].shape, True)}
        if len(forms) == 1 or not (same and forms[-1].known and forms[-1].nbytes and op.out and not op.checks):
            return None
        return Launches(self, op, options, forms, charge)

    def kernel(
        self, op: Op, args: Sequence[Any], options: Mapping[str, Any], forms: Sequence[Meta]
    ) -> tuple[Callable[..., None], Sequence[Any]] | None:
        """What launches an operation's kernel, and its numbers. None if it has none. It may compile the kernel.

        Args:
            args: numbers, and a `Ref` for each array.
            forms: of the arrays, and of the result. All have one shape and no gaps.
        """
        run = _alone(self._cupy, op, args, options, forms)
        if run is None:
            return None
        try:
            code = _code(self._cupy, len(run.reads), *run.source)
            function = self._functions.get(code)
            if function is None:
                kernel = self._cupy.RawKernel(code, "asyncsched_run", _OPTIONS)
                function = self._functions[code] = kernel.kernel.linear_launch
        except self._cupy.cuda.compiler.CompileException:
            _log.warning("%s does not compile as a kernel: CuPy runs it", op.name, exc_info=True)
            return None
        return function, run.numbers

    def argument(self, number: Any) -> Any:
        """A number as CuPy hands it on to a kernel. To make that of NumPy's number at each launch takes as long as the
        launch."""
        return private(self._cupy, "scalar")(number)


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel that is ready to be launched for arrays of one form."""

    function: Callable[[int, Sequence[Any]], None]
    size: int  # elements of each array
    numbers: Sequence[Any]  # its last arguments
    charge: int  # of the result


class Launches(dict[Any, Launch]):
    """The launches of a plan, by the task's arguments: numbers, and a `Ref` for each array; None for arrays alone.

    None is the launch of an operation that has no such kernel. Not kept: those of a zero with a sign (-0.0 == 0.0).
    """

    def __init__(
        self, steps: FusedSteps, op: Op, options: Mapping[str, Any], forms: Sequence[Meta], charge: int
    ) -> None:
        self._steps, self._op, self._options, self._forms, self._charge = steps, op, options, forms, charge
        self._size = forms[-1].nbytes // forms[-1].dtype.itemsize
        self._kernel: Any = _UNKNOWN

    def __missing__(self, args: Sequence[Any] | None) -> Launch | None:
        numbers = [arg for arg in args or () if type(arg) is not Ref]
        if numbers and not isinstance(self._op.kernel, str):
            return None  # its lines may depend on the numbers
        try:
            if self._kernel is _UNKNOWN:
                given = [ref(slot) for slot in range(len(self._forms) - 1)] if args is None else args
                self._kernel = self._steps.kernel(self._op, given, self._options, self._forms)
            if self._kernel is None:
                return None
            function, made = self._kernel
            if numbers:
                made = [number_as(a, one.dtype) for a, one in zip(numbers, made, strict=True)]
            last = tuple([self._steps.argument(number) for number in (*made, np.int64(self._size))])
        except (AttributeError, OverflowError):  # CuPy has other names, or the number is out of the dtype's range
            return None
        found = Launch(function, self._size, last, self._charge)
        if 0 not in [number for number in numbers if type(number) is not int]:
            if len(self) >= _MOST_NUMBERS:
                self.clear()
            self[args] = found
        return found


def fusible(op: Op) -> bool:
    """Whether an operation may be one kernel, and is not one kernel of CuPy's already."""
    return not isinstance(op.kernel, str) and goes_by_elements(op)


def _alone(cupy: Any, op: Op, args: Sequence[Any], options: Mapping[str, Any], forms: Sequence[Meta]) -> Run | None:
    """An operation as a run of its own; None if it cannot be one. `forms`: of its arrays, and of its result."""
    *reads, form = forms
    program = Program(tuple(reads), [Step(op, tuple(args), options, form, form.nbytes, 0, "")], (len(reads),))
    found = _expressions(cupy, program)
    return _run(program, range(1), program.last_reads(), found) if found else None


def _code(cupy: Any, arrays: int, ins: str, outs: str, operation: str, preamble: str) -> str:
    """A run as a kernel in CUDA C++, for arrays of one size without gaps: all that it reads, its result, numbers."""
    ctype = private(cupy, "typename")
    typed = [(ctype(np.dtype(kind)), name) for kind, name in map(str.split, f"{ins}, {outs}".split(", "))]
    reads, numbers, (result, out) = typed[:arrays], typed[arrays:-1], typed[-1]
    parameters = [
        *[f"const {kind}* _{name}" for kind, name in reads],
        f"{result}* _{out}",
        *[f"const {kind} {name}" for kind, name in numbers],
    ]
    elements = [*[f"const {kind}& {name} = _{name}[i];" for kind, name in reads], f"{result}& {out} = _{out}[i];"]
    return _CODE.format(
        preamble=preamble, parameters=", ".join(parameters), elements=" ".join(elements), operation=operation
    )


def _parts(cupy: Any, program: Program) -> Iterator[tuple[range, Run | None]]:
    """The program's steps, each run of them with its kernel."""
    found = {} if asked() else _expressions(cupy, program)
    last = program.last_reads()

    def shape_of(i: int) -> Any:
        return program.steps[i].form.bound if i in found else None

    for steps in program.runs(shape_of):
        if steps[0] not in found:
            yield steps, None
            continue
        for part in _small_enough(program, steps, last, found):
            single = len(part) == 1 and isinstance(program.steps[part[0]].op.kernel, str)
            yield part, None if single else _run(program, part, last, found)


def _expressions(cupy: Any, program: Program) -> dict[int, Expression]:
    """The expressions of the steps that have one, by the step's number."""
    found = {}
    for i, step in enumerate(program.steps):
        form = step.form
        operands = [program.form(slot) for slot in step.reads]
        if not all(one.known and one.contiguous for one in (form, *operands)) or not operands or not form.nbytes:
            continue
        try:
            found[i] = expression(cupy, step, program.inputs + i, lambda slot: program.form(slot).dtype)
        except NotElementwise:
            continue
    return found


def _small_enough(
    program: Program, steps: range, last: dict[int, int], found: dict[int, Expression]
) -> Iterator[range]:
    """The run, or parts of it whose kernels compile soon, and whose arguments CUDA takes."""
    arrays = len(_reads(program, steps)) + len(program.written(steps, last))
    axes = len(program.steps[steps[0]].form.bound)
    numbers = sum(len(found[i].numbers) for i in steps)
    lines = sum(len(found[i].lines) for i in steps)
    fits = lines <= _MOST_LINES and (arrays + 2) * 16 * (1 + axes) + 8 * numbers <= _ARGUMENT_BYTES
    if fits or len(steps) == 1:
        yield steps
        return
    middle = steps.start + len(steps) // 2
    for half in (range(steps.start, middle), range(middle, steps.stop)):
        yield from _small_enough(program, half, last, found)


def _reads(program: Program, steps: range) -> list[int]:
    own = range(program.inputs + steps.start, program.inputs + steps.stop)
    return list(dict.fromkeys(slot for i in steps for slot in program.steps[i].reads if slot not in own))


def _run(program: Program, steps: range, last: dict[int, int], found: dict[int, Expression]) -> Run:
    reads, writes = _reads(program, steps), program.written(steps, last)
    numbers = {name: number for i in steps for name, number in found[i].numbers.items()}
    preambles = {preamble: None for i in steps for preamble in found[i].preambles}
    ins = [
        *[f"{program.form(slot).dtype.name} v{slot}" for slot in reads],
        *[f"{number.dtype.name} {name}" for name, number in numbers.items()],
    ]
    outs = [f"{program.form(slot).dtype.name} o{slot}" for slot in writes]
    lines = [*[line for i in steps for line in found[i].lines], *[f"o{slot} = v{slot};" for slot in writes]]
    before = sorted(preambles, key=lambda text: not text.startswith("#include"))  # headers first
    source = ", ".join(ins), ", ".join(outs), "\n".join(lines), "\n".join(before)
    return Run(tuple(reads), tuple(numbers.values()), tuple(writes), source)
