"""Recording what a function would issue, instead of issuing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .._core.callsite import call_site, line_of
from .._core.failure import Failure
from .._core.model import Scope as CoreScope
from .._core.model import Value
from ..devices.contract import Device
from ..errors import CaptureError
from ..ops.meta import Meta
from ..ops.program import Program, Ref, Step
from ..ops.row import Plan, Row
from ..runtime.runtime import Runtime


class Recorder:
    """Takes the place of issuing, on one device.

    Attributes:
        inputs: values that stand for the function's arguments. Like all that is made here they never get an array.
        constants: values from outside that the function reads.
    """

    def __init__(self, scope: CoreScope, device: Device, examples: Sequence[Value]) -> None:
        self.device = device
        self._scope = scope
        error = CaptureError("a tensor made while capturing has no value: only what the captured function returns has")
        self._failure = Failure.of(error, "capture", call_site())
        self.inputs = [self._value(value.meta) for value in examples]
        self.constants: dict[Value, None] = {}
        self._steps: dict[Value, tuple[Row, tuple[Any, ...], Mapping[str, Any], Plan, str]] = {}

    @contextmanager
    def installed(self, runtime: Runtime) -> Iterator[None]:
        """While inside, the runtime's operations come here."""
        if runtime.recorder is not None:
            raise CaptureError("a step is being captured already: captured steps do not nest")
        inline_thread, runtime.inline_thread = runtime.inline_thread, 0
        runtime.recorder = self
        try:
            yield
        finally:
            runtime.recorder, runtime.inline_thread = None, inline_thread

    def record(self, device: Device, row: Row, found: Plan, args: tuple[Any, ...], options: Mapping[str, Any]) -> Value:
        """Take one operation, and give a value for its result."""
        if device is not self.device:
            raise CaptureError(f"{row.name}: a captured step runs on one device; copy to {device.name} outside of it")
        if not found.meta.known:
            raise CaptureError(f"{row.name}: the shape of its result depends on data, so it cannot be captured")
        for arg in args:
            if type(arg) is Value:
                self._note(arg)
        if row.name == "setitem" and args[0] in self.constants:
            raise CaptureError(
                "setitem: a part of a tensor from outside cannot be assigned to, which would leave it without a value:"
                " pass it as an argument, and return it"
            )
        value = self._value(found.meta)
        self._steps[value] = (row, args, options, found, line_of(call_site()))
        return value

    def refuse(self, name: str) -> None:
        """Raise for whatever is not an operation of the table."""
        raise CaptureError(f"{name} cannot be captured: only operators and asyncsched's functions can; call it outside")

    def program(self, results: Sequence[Value]) -> Program:
        """What was recorded. Its inputs are the function's arguments, then the constants."""
        for value in results:
            self._note(value)
        slots = {value: slot for slot, value in enumerate([*self.inputs, *self.constants, *self._steps])}
        program = Program(len(self.inputs) + len(self.constants))
        for row, args, options, found, line in self._steps.values():
            refs = tuple([Ref(slots[a]) if type(a) is Value else a for a in args])
            program.steps.append(Step(row, refs, options, found.nbytes, found.workspace, line))
        program.outputs = tuple([slots[value] for value in results])
        return program

    def _note(self, value: Value) -> None:
        """A value that is read: if it comes from outside, it is a constant."""
        if value not in self._steps and value not in self.inputs:
            self.constants[value] = None

    def _value(self, form: Meta) -> Value:
        value = Value(self._scope.account, self.device, form)
        value.failure = self._failure
        return value
