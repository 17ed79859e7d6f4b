"""Recording what a function would issue, instead of issuing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .._core.callsite import call_site, line_of
from .._core.failure import Failure
from .._core.model import FAILED, CallPlan, Scope, Task, Value, new_value
from ..devices.contract import Device
from ..errors import CaptureError
from ..ops.op import Op
from ..ops.program import Program, Ref, Step, ref
from ..runtime.life import InlineMode
from ..runtime.runtime import Runtime


class Recorder:
    """Takes the place of the backlog, on one device.

    Attributes:
        inputs: values that stand for the function's arguments. Like all that is made here they never get an array.
        constants: values from outside that the function reads.
    """

    def __init__(self, scope: Scope, device: Device, examples: Sequence[Value]) -> None:
        self.device = device
        error = CaptureError("a tensor made while capturing has no value: only what the captured function returns has")
        # What is recorded has no value, and one failed task says so for all of it.
        self._failed = Task(
            scope, CallPlan("capture"), new_value(scope.account, device, None), None, (), None, None, (), 0
        )
        self._failed.failure = Failure.of(error, "capture", call_site())
        self._failed.state, self._failed.value = FAILED, None
        self.inputs = [new_value(scope.account, device, value.meta) for value in examples]
        for value in self.inputs:
            value.task = self._failed
        self.constants: dict[Value, None] = {}
        self._steps: dict[Value, Task] = {}

    @contextmanager
    def installed(self, runtime: Runtime) -> Iterator[None]:
        """While inside, the scheduler's operations come here."""
        if runtime.sink is not None:
            raise CaptureError("a step is being captured already: captured steps do not nest")
        inline, runtime.inline = runtime.inline, InlineMode.NEVER
        runtime.sink, runtime.submit = self, self.submit  # as in `transaction`
        try:
            yield
        finally:
            runtime.sink, runtime.submit, runtime.inline = None, runtime.engine.submit, inline

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """Take one operation."""
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
                "setitem: a part of a tensor from outside cannot be assigned to, which would leave it without a value:"
                " pass it as an argument, and return it"
            )
        self._steps[value] = task
        value.task = self._failed

    def refuse(self, what: str) -> None:
        """Raise for whatever is not an operation of the table."""
        raise CaptureError(f"{what} cannot be captured: only operators and asyncsched's functions can; call it outside")

    def program(self, results: Sequence[Value]) -> Program:
        """What was recorded. Its inputs are the function's arguments, then the constants."""
        for value in results:
            self._note(value)
        slots = {value: slot for slot, value in enumerate([*self.inputs, *self.constants, *self._steps])}
        program = Program(tuple([value.meta for value in (*self.inputs, *self.constants)]))
        for value, task in self._steps.items():
            refs = [ref(slots[read]) for read in task.inputs]
            args = refs if task.args is None else [refs[a.slot] if type(a) is Ref else _number(a) for a in task.args]
            workspace = task.cost - value.nbytes
            program.steps.append(
                Step(task.call, tuple(args), task.options, value.meta, value.nbytes, workspace, line_of(value.site))
            )
        program.outputs = tuple([slots[value] for value in results])
        return program

    def _note(self, value: Value) -> None:
        """Note that a value is read: one from outside is a constant of the program."""
        if value not in self._steps and value not in self.inputs:
            self.constants[value] = None


def _number(arg: Any) -> Any:
    """A scalar as it was written: see `ops.op.Numbers`."""
    return arg.item() if type(arg) is np.ndarray else arg
