"""Capturing a step: its operations are recorded once, and run as one task from then on.

While the step's function runs nothing is issued: its tensors have shapes and dtypes, but never values. The recording is
a program. A CUDA device fuses its elementwise operations into one kernel (`devices.cuda.fused`), records the first run
of the program as a CUDA graph with buffers of its own, and replays that graph. Other devices run the program in one
task, with elementwise operations in blocks (`ops.fused`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from time import perf_counter
from typing import Any, Final

import numpy as np

from .._arguments import check_int, is_coroutine_function, label_of
from .._blocks import contextmanager
from .._core.callsite import call_site, line_of
from .._core.failure import Failure
from .._core.model import FAILED, UNKNOWN_SECONDS, CallPlan, Lease, Scope, Task, Value, new_value
from .._core.ownership import sole
from .._tree import leaves, map_leaves
from ..devices.contract import Device
from ..devices.memory import owner_of
from ..errors import CaptureError
from ..ops.cost_model import INLINE_SECONDS
from ..ops.declare import UNPACK, offsets, pack, unpacked
from ..ops.meta import Meta, meta
from ..ops.op import NO_OPTIONS, Blas, Op, Plan
from ..ops.program import Program, Ref, Step, ref
from ..ops.table import TABLE
from ..runtime.life import InlineMode
from ..runtime.runtime import Runtime
from .handles import Donated
from .issue import issue
from .tensor import Tensor, apply

_number = itertools.count(1)
# Seconds. A longer replay goes to a stream, whatever its operations are: the hop costs 25 to 120 us, which is little
# beside it. A guess, well below the time that quick operations may take of a turn of the loop (`INLINE_BUDGET`).
_INLINE_MOST: Final = 5e-4


class Graph:
    """A captured step. Call it with tensors like the examples. It returns what the function returned, as one task.

    Made by `s.capture`. On CUDA, replays run one after the other on one stream, since they share the graph's buffers;
    elsewhere they are tasks like others.

    A replay uses the values of the capture for everything that is no argument: tensors from outside that the function
    read, and results that Python computed (numbers, seeds, whether a module trains). Autograd does not record a replay.
    So a function whose operations would have to be recorded raises when it is captured, and an argument with
    `requires_grad` when the graph is called, except inside `with no_grad()`.

    Donated arguments (`s.capture(fn, cache, x, donate=(0,))`) are written in place: their bytes are charged once. `fn`
    returns the new version of each, which takes over its memory.

    - After a call, any use of a donated tensor raises RuntimeError, which says where it went.
    - A call that raises has taken nothing.
    - If others hold the value at the call (another handle, a slice, an awaited array, a task that will read it), they
      keep it as it is, and the run works on a copy, which is charged.
    - If the run fails or is cancelled, so are all its results, and the donated values are lost: make them anew.

    Attributes:
        donate: the positions of the donated arguments.
        owned: bytes of the buffers that this graph owns while it lives; 0 if each replay takes its own.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.arange(3.0))
    ...         graph = await s.capture(lambda x: {"double": x + x, "sum": x.sum()}, x)
    ...         found = graph(x + 1)
    ...         print(await found["double"], await found["sum"].item())
    >>> asc.run(main)
    [2. 4. 6.] 6.0
    """

    def __init__(
        self, runtime: Runtime, recorder: Recorder, results: Any, name: str, donate: tuple[int, ...] = ()
    ) -> None:
        for tensor in tensors_in(results):
            _check_untracked(tensor, f"what {name} returned is recorded, which a replay")
        found = [tensor._value for tensor in tensors_in(results)]
        self._results = map_leaves(lambda leaf: leaf._value.meta if isinstance(leaf, Tensor) else leaf, results)
        if not found:
            raise CaptureError(f"{name} returned no tensor: a captured step gives its results by returning them")
        self._runtime = runtime
        self._device = recorder.device
        self._forms = [(value.meta.shape, value.meta.dtype) for value in recorder.inputs]
        self._constants = tuple(recorder.constants.values())
        self._program = recorder.program(found)
        self.donate = donate
        self._order = _results_apart(self._program, donate, name, remote=self._device.remote)
        self._metas = [self._program.form(slot) for slot in self._program.outputs]
        # A replay may run on the event loop's thread if its operations could, one by one.
        self._pace, self._quick = Pace(), min(INLINE_SECONDS * (1 + len(self._program.steps)), _INLINE_MOST)
        self._name = f"{name} (captured, {next(_number)})"  # a unique name, since devices learn durations by name
        lanes = runtime.lanes[self._device].compute
        self._run, self._peak, owned = self._device.capture(self._program, len(self._forms))
        self.owned: int = owned
        resource = next((step.op.resource for step in self._program.steps if step.op.resource), None)
        if resource is not None and not self._device.inline and not self._device.remote:
            lanes = runtime.lane_of(resource, self._device)  # as in `apply`
        elif self.owned:
            lanes = [lanes[runtime.ledger.sequence % len(lanes)]]
        self._lanes = lanes

    def prepare(self, claim: Value | None) -> None:
        """Make the graph callable. `claim` holds the owned bytes until the last replay is over."""
        run, owned = self._run, None if claim is None else Lease(claim)
        starts, nbytes = offsets(self._metas)
        single, metas = len(self._metas) == 1, self._metas
        form = self._metas[0] if single else meta((nbytes,), np.dtype(np.uint8))
        self._starts = starts

        donate, own, pace = self.donate, self.owned, self._pace
        takes_out = not self._device.owns_captures  # else a result may be a view of an argument
        packs = single or takes_out  # else the device writes to the parts of one buffer
        clock = perf_counter if self._device.inline else None

        def kernel(xp: Any, *arrays: Any, out: Any = None, _: Lease | None = owned) -> Any:
            began = 0.0 if clock is None else clock()
            if not packs:
                out = xp.empty(nbytes, xp.uint8)
            if out is not None:
                run(xp, arrays, [out] if single else unpacked(out, starts, metas))
            else:
                results = run(xp, arrays)
                out = _standalone(results[0], arrays, donate) if single else pack(xp, results, starts, nbytes)
            if clock is not None:
                pace.learn(clock() - began)
            return out

        checks = any(step.op.checks for step in self._program.steps)
        plain = all(step.op.blas is Blas.NONE for step in self._program.steps)
        self._op = op = Op(
            self._name, kernel, _no_rule, out=takes_out, checks=checks, blas=Blas.NONE if plain else Blas.INSIDE
        )
        self._plan = Plan(op, form, form.nbytes, 0 if own else self._peak, UNKNOWN_SECONDS)

    def __call__(self, *args: Tensor) -> Any:
        """Issue one replay. Returns the function's results at once: tensors in the same structure.

        Raises:
            TypeError, ValueError: if the arguments are not tensors of the examples' shapes, dtypes and device.
            CaptureError: if an argument has `requires_grad` set, outside of `no_grad()`.
            QueueFull, TaskTooLarge: if the backlog is full, or if the task could never run.
            RuntimeError: if an argument was donated before.
        """
        self._runtime.check()
        leases = leases_of(args, self._runtime, self._device)
        forms = [(lease._value.meta.shape, lease._value.meta.dtype) for lease in leases]
        if forms != self._forms:
            takes, given = _describe_forms(self._forms), _describe_forms(forms)
            raise ValueError(f"{self._name} takes {takes}, not {given}: capture another for these")
        made, became = self._donated(args, leases) if self.donate else (self._issued(leases, ()), [])
        result = Tensor(made)
        parts = [result] if len(self._metas) == 1 else self._parts(result)
        tensors = iter([Tensor(became[~place]) if place < 0 else parts[place] for place in self._order])
        return map_leaves(lambda leaf: next(tensors) if isinstance(leaf, Meta) else leaf, self._results)

    def _donated(self, args: tuple[Tensor, ...], leases: list[Lease]) -> tuple[Value, list[Value]]:
        """Issue a replay that takes the donated arguments. Returns its value, and their new versions."""
        if self._runtime.sink is not None:
            self._runtime.sink.refuse(f"{self._name}, which has donated arguments,")
        if len({leases[place]._value for place in self.donate}) < len(self.donate):
            raise ValueError(f"{self._name}: a tensor is donated twice in one call, but can be written over only once")
        gone, taken = Donated(self._name, call_site(3)), list[Lease]()
        try:
            for place in self.donate:
                taken.append(args[place]._give_up(gone))  # no finaliser finds it there any more
                leases[place] = taken[-1]  # a finaliser may have assigned to the tensor before
            if self._device.remote:  # a cluster writes over no array
                return self._issued(leases, ()), []
            for place, lease in zip(self.donate, taken, strict=True):
                if not _may_be_written(lease._value):
                    leases[place] = apply(TABLE["copy"], (Tensor(lease._value),))._lease()
            olds = [lease._value for lease in taken]
            news = [new_value(old.account, old.device, old.meta, old.nbytes, old.site) for old in olds]
            return self._issued(leases, tuple(zip(self.donate, news, strict=True))), news
        except BaseException:
            for place, lease in zip(self.donate, taken, strict=False):
                args[place]._move(Tensor(lease._value))
            raise

    def _issued(self, leases: list[Lease], takes: Sequence[tuple[int, Value]]) -> Value:
        reads = tuple([lease._value for lease in (*leases, *self._constants)])
        self._plan.seconds = seconds = self._pace.seconds
        self._plan.quick = seconds <= self._quick
        return issue(
            self._runtime, self._device, self._op, self._plan, reads, None, NO_OPTIONS, lanes=self._lanes, takes=takes
        )

    def _parts(self, packed: Tensor) -> list[Tensor]:
        return [
            apply(UNPACK, (packed,), {"start": start, "shape": form.shape, "dtype": form.dtype})
            for form, start in zip(self._metas, self._starts, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Graph({self._name}, {len(self._program.steps)} operations, {self._device.name})"


class Pace:
    """The time of a replay, by the quickest ones lately: other work beside a replay makes it slower, never quicker.

    The kernel learns it, and the plan leads to the kernel. So it is not kept in the plan, which would be a cycle.
    """

    seconds: float = inf

    def learn(self, seconds: float) -> None:
        """A replay took so many seconds."""
        before = self.seconds
        self.seconds = seconds if seconds < before else before + (seconds - before) / 8


class Recorder:
    """Takes tasks in place of the backlog, on one device, and records them.

    Attributes:
        inputs: values that stand for the function's arguments. No value made here ever gets an array.
        constants: values from outside that the function reads.
    """

    def __init__(self, scope: Scope, device: Device, examples: Sequence[Meta]) -> None:
        self.device = device
        error = CaptureError("a tensor made while capturing has no value: only what the captured function returns has")
        # Recorded values have no array, and one failed task says so for all of them.
        self._failed = Task(
            scope, CallPlan("capture"), new_value(scope.account, device, None), None, (), None, None, (), 0
        )
        self._failed.failure = Failure.of(error, "capture", call_site())
        self._failed.state, self._failed.value = FAILED, None
        self.inputs: list[Value] = [new_value(scope.account, device, form) for form in examples]
        for value in self.inputs:
            value.task = self._failed
        self.constants: dict[Value, Lease] = {}
        self._steps: dict[Value, Task] = {}

    @contextmanager
    def installed(self, runtime: Runtime) -> Iterator[None]:
        """Let the scheduler's operations come here, for the length of the block."""
        if runtime.sink is not None:
            raise CaptureError("a step is being captured already: captured steps do not nest")
        inline, runtime.inline = runtime.inline, InlineMode.NEVER
        runtime.sink, runtime.submit = self, self.submit  # as in `transaction`
        try:
            yield
        finally:
            runtime.sink, runtime.submit, runtime.inline = None, runtime.engine.submit, inline

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """Record one operation."""
        try:
            self._take(task)
        except CaptureError:
            task.let_go()
            raise

    def _take(self, task: Task) -> None:
        value, name = task.value, task.name
        assert value is not None
        if not isinstance(task.call, Op) or (task.lanes[0].copies and not task.inputs):
            self.refuse(name)
        if value.device is not self.device:
            raise CaptureError(f"{name}: a captured step runs on one device; copy to {value.device.name} outside of it")
        if not value.meta.known:
            raise CaptureError(f"{name}: the shape of its result depends on data, so it cannot be captured")
        for read in task.inputs:
            self._note(read)
        if name == "setitem" and task.inputs[0] in self.constants:
            raise CaptureError(
                "setitem: assigning to a part of a tensor from outside would leave it without a value: pass the tensor"
                " as an argument, and return it; `donate=` that argument to have it written in place"
            )
        self._steps[value] = task
        value.task = self._failed

    def refuse(self, what: str, cure: str = "") -> None:
        """Raise for anything but an operation of the table."""
        cure = cure or "only operators and asyncsched's functions can; call it outside"
        raise CaptureError(f"{what} cannot be captured: {cure}")

    def program(self, results: Sequence[Value]) -> Program:
        """The recorded program. Its inputs are the function's arguments, then the constants."""
        for value in results:
            self._note(value)
        slots = {value: slot for slot, value in enumerate([*self.inputs, *self.constants, *self._steps])}
        program = Program(tuple([value.meta for value in (*self.inputs, *self.constants)]))
        for value, task in self._steps.items():
            refs = [ref(slots[read]) for read in task.inputs]
            args = refs if task.args is None else [refs[a.slot] if type(a) is Ref else _as_scalar(a) for a in task.args]
            workspace = task.cost - value.nbytes
            program.steps.append(
                Step(task.call, tuple(args), task.options, value.meta, value.nbytes, workspace, line_of(value.site))
            )
        program.outputs = tuple([slots[value] for value in results])
        for task in self._steps.values():  # they never run, and never end
            task.unread()
        return program

    def _note(self, value: Value) -> None:
        """Note that a value is read. A value from outside becomes a constant of the program."""
        if value not in self._steps and value not in self.inputs:
            self.constants[value] = Lease(value)


def record(
    runtime: Runtime, scope: Scope, fn: Callable[..., Any], examples: tuple[Tensor, ...], donate: int | Sequence[int]
) -> Graph:
    """Run `fn` once with tensors like the examples, and issue nothing. The graph is not prepared yet."""
    if is_coroutine_function(fn):
        raise TypeError(f"{fn} is a coroutine function: pass a plain one, since nothing in a captured step can wait")
    if not examples or not isinstance(examples[0], Tensor):
        raise TypeError("capture takes a function and at least one tensor, as an example")
    places = _places(donate, len(examples))
    device = examples[0].device
    recorder = Recorder(scope, device, [lease._value.meta for lease in leases_of(examples, runtime, device)])
    with recorder.installed(runtime):
        results = fn(*[Tensor(value) for value in recorder.inputs])
    return Graph(runtime, recorder, results, label_of(fn), places)


def leases_of(tensors: tuple[Tensor, ...], runtime: Runtime, device: Device) -> list[Lease]:
    """Leases of the tensors' present values. All must be on one device of one scheduler."""
    leases = list[Lease]()
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"a captured step takes tensors, not {type(tensor).__name__}: bind the rest with a lambda")
        leases.append(lease := tensor._lease())
        if lease._value.account.runtime is not runtime or lease._value.device is not device:
            raise ValueError(f"a captured step runs on {device.name} of one scheduler: bring {tensor!r} there first")
        if tensor._node is not None:
            _check_untracked(tensor, f"{tensor!r} has requires_grad set, and a captured step")
    return leases


def _places(donate: int | Sequence[int], count: int) -> tuple[int, ...]:
    """The positions of the donated arguments, among `count`."""
    places = tuple(donate) if isinstance(donate, Iterable) else (donate,)
    for place in places:
        check_int("a position in donate", place, 0)
        if place >= count:
            raise ValueError(f"donate={donate!r}: there are {count} arguments, and the first is 0")
    return tuple(dict.fromkeys(places))


def _results_apart(program: Program, donate: tuple[int, ...], name: str, *, remote: bool) -> list[int]:
    """Take the new versions of the donated arguments out of the program's results, and let them be written in place.

    Returns for each result its position among the remaining ones, or `~n` for the new version of the n-th donated
    argument.
    """
    versions, copied = program.plan_writes(donate)
    for place in donate:
        if versions[place] in program.outputs:
            continue
        if place not in copied:
            raise CaptureError(
                f"argument {place} is donated, but {name} does not return its new version: return that, too, or take"
                " the argument out of `donate`"
            )
        i, slot = copied[place]
        later = [step.where for step in program.steps[i + 1 :] if slot in step.reads]
        raise CaptureError(
            f"argument {place} is donated, but the assignment at {program.steps[i].where} cannot be in place: its old"
            f" content is still needed, at {later[0] if later else 'that line, or as a result'}. Read it before,"
            " or take `.copy()` of that part"
        )
    if remote:  # arrays in another process are not written over
        program.in_place, program.given = set(), ()
        return list(range(len(program.outputs)))
    numbers = {versions[place]: ~n for n, place in enumerate(donate)}
    left = [slot for slot in program.outputs if slot not in numbers]
    places = iter(range(len(left)))
    order = [numbers[slot] if slot in numbers else next(places) for slot in program.outputs]
    program.outputs = tuple(left)
    return order


def _may_be_written(value: Value) -> bool:
    """Whether a donated value may be written over: only the caller's lease holds it, and it has a buffer of its own."""
    alone = sole(value, 1)  # first: what is let go later still counts
    task, own = value.task, False
    if task is not None:
        takes, call = task.takes, task.call  # read once: the stream's thread clears them
        taken = any(one[1] is value for one in takes)
        own = taken or task.failure is not None or (isinstance(call, Op) and call.out and not call.view)
    if (array := value.array) is not None:
        flags = array.flags
        own = (flags.c_contiguous or flags.f_contiguous) and getattr(flags, "writeable", True)
    return alone and own and value.base is None and not value.escaped and type(value.block) is not tuple


def _standalone(result: Any, arguments: Sequence[Any], donate: Sequence[int]) -> Any:
    """A result, or a copy of it if it is part of a larger buffer.

    The result must not keep an intermediate result in memory, uncharged, nor a donated argument, which may be written
    over.
    """
    owner = owner_of(result)
    if all(owner_of(arguments[place]) is not owner for place in donate) and (
        owner.nbytes <= result.nbytes or any(owner_of(array) is owner for array in arguments)
    ):
        return result
    return result.copy(order="K")


def _check_untracked(tensor: Tensor, what: str) -> None:
    """Raise if a gradient would silently be lost."""
    if tensor._node is not None and tensor._node.leads_back:
        raise CaptureError(
            f"{what} is not: its gradient would be lost. Use `t.detach()`, or `with no_grad():` around the capture and"
            " the calls, or let the function return gradients, from `autograd.grad`"
        )


def tensors_in(found: Any) -> list[Tensor]:
    """The tensors in a result, in order."""
    return [leaf for leaf in leaves(found) if isinstance(leaf, Tensor)]


def _no_rule(op: Op, operands: Any, options: Any) -> Any:
    raise AssertionError("a replay's plan is made when it is captured")


def _describe_forms(forms: Sequence[tuple[Any, Any]]) -> str:
    return ", ".join(f"{shape} {dtype}" for shape, dtype in forms) or "nothing"


def _as_scalar(arg: Any) -> Any:
    """A scalar in its original form: see `ops.op.Numbers`."""
    return arg.item() if type(arg) is np.ndarray else arg
