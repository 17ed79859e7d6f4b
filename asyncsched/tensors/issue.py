"""Issuing one operation: at once on the loop's thread when it is tiny and nothing else is going on, else as a task."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._core.callsite import call_site
from .._core.engine import Engine
from .._core.failure import Failure
from .._core.model import Scope, Task, Value
from ..devices.contract import Device
from ..devices.memory import owner_of
from ..ops.row import Plan, Row, plan, resolve
from ..runtime.context import ambient
from ..runtime.runtime import Runtime

_get_ident = threading.get_ident


def issue(
    runtime: Runtime, device: Device, row: Row, args: tuple[Any, ...], options: Mapping[str, Any], *, hold: bool = False
) -> Value:
    """Apply a row to values and scalars of one device. Returns the result's value at once.

    With `hold` a task is not launched before the runtime's next `dispatch`.

    Raises:
        ValueError, TypeError, IndexError, OverflowError: what NumPy would raise for these shapes and dtypes.
        QueueFull: if the backlog is at its limit.
        TaskTooLarge: if it could never run.
    """
    runtime.check()
    found = plan(row, tuple([a.meta if type(a) is Value else a for a in args]), options)
    if found.small:
        if runtime.completions.items:
            runtime.drain()
        inputs = [a for a in args if type(a) is Value]
        if inputs:
            failure = next((v.failure for v in inputs if v.failure is not None), None)
            arrays = tuple([a.array if type(a) is Value else a for a in args])
            value = run_inline(row, found, options, inputs[0], arrays, failure)
            if value is not None:
                return value
    return issue_task(runtime, device, row, found, args, options, runtime.lanes[device], hold=hold)


def issue_task(
    runtime: Runtime,
    device: Device,
    row: Row,
    found: Plan,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    lanes: Sequence[Any],
    *,
    hold: bool = False,
) -> Value:
    """A row as a task on one of `lanes`; while a step is captured, recorded instead."""
    if runtime.recorder is not None:
        return runtime.recorder.record(device, row, found, args, options)
    inputs = tuple([a for a in args if type(a) is Value])
    scope = runtime.scope()
    nbytes = device.memory.footprint(found.nbytes)
    cost = nbytes + found.workspace
    task = Task(
        scope, scope.account, row.name, row, inputs if len(inputs) == len(args) else args, options, inputs, lanes, cost
    )
    task.site = call_site()
    value = Value(scope.account, device, found.meta, task)
    value.nbytes = nbytes
    value.site = task.site
    task.value = value
    if row.view and not found.nbytes:
        value.base = inputs[0]
    runtime.submit(task, hold=hold)
    return value


def run_inline(
    row: Row, found: Plan, options: Mapping[str, Any], first: Value, arrays: tuple[Any, ...], failure: Failure | None
) -> Value | None:
    """Run a tiny row on the loop's thread; None if this is not the moment.

    It is when this is the loop's thread, nothing is pending or in flight anywhere, so that no order is lost, and the
    result fits the limit. The most frequent path of all: every step here shows in `bench.overhead`.

    Args:
        first: the value of the first operand, whose device and scheduler it is.
        arrays: what the operands are; used only if nothing is unfinished, and so all are done.
        failure: that of an operand, if any has one.
    """
    runtime = first.account.runtime
    if runtime.inline_thread != _get_ident():
        return None
    engine = runtime.engine
    if engine.unfinished:
        return None
    if runtime.completions.items:
        runtime.drain()  # of drops alone, since nothing is unfinished
    scope = engine.root if ambient.get() is None else runtime.scope()
    account = scope.account
    nbytes = found.nbytes
    if account.limit is not None and account.used + nbytes + found.workspace > account.limit:
        return None
    if failure is not None:
        return _failed(engine, scope, row, first, found, failure.passed_to(row.name, call_site()))
    try:
        array = runtime.quiet.run(row.kernels.get(np) or resolve(row, np), *arrays, **options)
    except Exception as error:
        return _failed(engine, scope, row, first, found, Failure.of(error, row.name, call_site()))
    value = Value(account, first.device, found.meta)
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    value.array = array
    spare = found.workspace  # granted like a task's cost, and given back at once
    if row.out or owner_of(array) is not owner_of(first.array):
        value.nbytes = value.charge = nbytes
        account.used += nbytes
    else:
        value.base = first
        spare += nbytes
    engine.submitted += 1
    engine.completed += 1
    if engine.account.used + spare > engine.peak_bytes or not engine.peak_in_flight:
        engine.note_peak(1, spare)
    return value


def _failed(engine: Engine, scope: Scope, row: Row, first: Value, found: Plan, failure: Failure) -> Value:
    engine.inline_failed(scope, failure)
    value = Value(scope.account, first.device, found.meta)
    value.failure = failure
    return value
