"""Issuing one operation: at once on the loop's thread when it is tiny and nothing else is going on, else as a task."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._core.failure import Failure
from ._core.task import Task, Value
from .devices.contract import Device
from .driver import Driver, ambient, where
from .ops.row import Plan, Row, plan, resolve

_get_ident = threading.get_ident


def issue(
    driver: Driver, device: Device, row: Row, args: tuple[Any, ...], options: Mapping[str, Any], *, hold: bool = False
) -> Value:
    """Apply a row to values and scalars of one device. Returns the result's value at once.

    With `hold` a task is not launched before the driver's next `pump`.

    Raises:
        ValueError, TypeError, IndexError, OverflowError: what NumPy would raise for these shapes and dtypes.
        QueueFull: if the backlog is at its limit.
        TaskTooLarge: if it could never run.
    """
    driver.check()
    found = plan(row, tuple([a.meta if type(a) is Value else a for a in args]), options)
    if found.small and driver.devices_inline:
        value = run_inline(driver, row, found, args, options)
        if value is not None:
            return value
    return issue_task(driver, device, row, found, args, options, driver.lanes[device], hold=hold)


def issue_task(
    driver: Driver,
    device: Device,
    row: Row,
    found: Plan,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    lanes: Sequence[Any],
    *,
    hold: bool = False,
) -> Value:
    """A row as a task on one of `lanes`."""
    inputs = tuple([a for a in args if type(a) is Value])
    scope = driver.scope()
    cost = found.nbytes + found.workspace
    task = Task(scope, scope.account, row.name, row, inputs if len(inputs) == len(args) else args, options, inputs, lanes, cost)
    task.where = where()
    value = Value(scope.account, device, found.meta, task)
    value.nbytes = found.nbytes
    value.where = task.where
    task.value = value
    if row.view and not found.nbytes:
        value.base = inputs[0]
    driver.submit(task, hold=hold)
    return value


def run_inline(driver: Driver, row: Row, found: Plan, args: tuple[Any, ...], options: Mapping[str, Any]) -> Value | None:
    """Run a tiny row on the loop's thread; None if this is not the moment.

    It is when nothing is pending or in flight anywhere, so that no order is lost, and the result fits the limit.
    """
    engine = driver.engine
    if driver.inbox.items:
        driver.drain()
    if engine.unfinished:
        return None
    here = ambient.get()
    scope = engine.root if here is None else driver.scope()
    account = scope.account
    nbytes = found.nbytes
    if account.limit is not None and account.used + nbytes + found.workspace > account.limit:
        return None
    device: Any = None
    arrays = []
    failed = None
    for arg in args:
        if type(arg) is Value:
            device = arg.device
            failed = arg.failure or failed
            arrays.append(arg.array)
        else:
            arrays.append(arg)
    if device is None:
        return None
    value = Value(account, device, found.meta)
    try:
        if failed is not None:
            value.failure = failed.passed_to(row.name, where())
            engine.inline_failed(scope, value.failure)
            return value
        array = driver.quiet.run(resolve(row, np), *arrays, **options)
    except Exception as error:
        value.failure = Failure.of(error, row.name, where())
        engine.inline_failed(scope, value.failure)
        return value
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    value.array = array
    if not row.out and not array.flags.owndata:
        value.base = next((a for a in args if type(a) is Value), None)
        nbytes = 0
    else:
        value.nbytes = value.charge = nbytes
    engine.inline_done(account, nbytes)
    return value
