"""Issuing one operation: at once on the loop's thread if that is quicker than the way to a stream, else as a task."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from .._core.callsite import call_site
from .._core.failure import Failure
from .._core.instrument import InlineOp
from .._core.model import Lane, Scope, Task, Value, new_value
from ..devices.contract import Device
from ..devices.memory import owner_of
from ..ops.op import NO_OPTIONS, Op, Plan
from ..ops.program import ref
from ..runtime.context import ambient, current_scope
from ..runtime.life import InlineMode
from ..runtime.runtime import Runtime

_get_ident = threading.get_ident
_new, _set_up = object.__new__, Task.__init__
_ambient = ambient.get  # called through an imported name, CPython would make a bound method each time
_ndarray = np.ndarray
_ALWAYS = InlineMode.ALWAYS


def issue(
    runtime: Runtime,
    device: Device,
    op: Op,
    plan: Plan,
    reads: Value | tuple[Value, ...],
    template: tuple[Any, ...] | None,
    options: Mapping[str, Any],
    above: int = 3,
    lanes: Sequence[Lane] | None = None,
    hold: bool = False,
    after: Sequence[Task] | None = None,
    takes: Sequence[tuple[int, Value]] = (),
) -> Value:
    """Issue one operation on values and scalars of one device, by its plan. Returns the result's value at once.

    Args:
        reads: the values, or the only one.
        template: the arguments, with a `Ref` by place for each input; None if the arguments are the inputs.
        above: as of `call_site`. By default the caller is `apply`, or an operator.
        lanes: where it may run; default: the device's compute streams.
        hold: launch nothing before the next `dispatch`.
        after: it begins once these tasks have ended, in whatever state. It can then write over its first input, and
            waits for that, if there is no room for both.
        takes: see `Task.takes`.

    Raises:
        QueueFull, TaskTooLarge: if the backlog is full, or if the task could never run.
    """
    if runtime.thread != _get_ident():
        runtime.refuse()
    here = _ambient()  # `current_scope`, written out for the usual scopes: the root, or the innermost, open
    if here is None and runtime.loop.is_running():  # type: ignore[union-attr]  # as in `current_scope`
        scope = runtime.engine.root
    elif here is None or here.runtime is not runtime or (scope := here.core).closed or here.left_early:
        scope = current_scope(runtime)
    site, inline = call_site(above), device.inline
    streams = lanes or runtime.lanes[device].compute
    fixed = inline and plan.fixed
    nbytes, cost = (plan.nbytes, plan.cost) if fixed else device.memory.needs(plan)
    value = new_value(scope.account, device, plan.meta, nbytes, site)
    if value.holders is None and not fixed:
        value.holders = []  # a card writes over any; or the size is not known yet
    if op.view and not plan.nbytes:
        value.make_view(reads[0] if isinstance(reads, tuple) else reads)
    task = _new(Task)  # without calling the class, which takes longer
    _set_up(task, scope, plan, value, op, reads, template, options, streams, cost, after, takes)
    if takes:
        for _, taken in takes:
            taken.task = task
    runtime.submit(task, hold=hold)
    return value


def template_of(args: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with a `Ref` by place for each value."""
    slots = count()
    return tuple([ref(next(slots)) if type(arg) is Value else arg for arg in args])


def run_at_once(
    op: Op,
    plan: Plan,
    first: Value,
    a: Any,
    b: Any,
    above: Failure | None,
    args: Sequence[Any] = (),
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Value | None:
    """Run a quick operation on the loop's thread; None if it must become a task.

    It runs at once if

    - this is the loop's thread, and the operands are there;
    - nothing is pending anywhere, so that no order is lost;
    - a slot is free, and the result fits the limit.

    This is the most frequent path of all: every step shows in `bench.heart`.

    Args:
        first: the value of the first operand. It determines the device and the scheduler.
        a, b: the operands of a plan for a pair: arrays, each None until it is there; and scalars.
        above: the failure of an operand, if one failed.
        args, options: the operands and options of any other plan.
    """
    runtime = first.account.runtime
    if runtime.inline is not _ALWAYS:
        return None
    ledger = runtime.ledger
    if ledger.pending or ledger.busy:  # busy: a finaliser asks, in the middle of a change
        return None
    thread = _get_ident()
    if runtime.thread != thread:
        return None
    observer = ledger.op_observer
    if above is None:  # asked even if all tasks have ended: a finaliser may have taken that in since the caller looked
        if plan.pair:
            if a is None or b is None:
                return None
        else:
            for arg in args:
                if arg is None:
                    return None
    in_flight = ledger.in_flight
    if in_flight:
        if in_flight >= ledger.slots:
            return None
    elif runtime.completions.items:
        runtime.engine.drain()  # only drops, since nothing is unfinished
    here = _ambient()  # as in `issue`
    if here is None and runtime.loop.is_running():
        scope = runtime.engine.root
    elif here is None or here.runtime is not runtime or (scope := here.core).closed or here.left_early:
        scope = current_scope(runtime)
    account = scope.account
    nbytes, spare = plan.nbytes, plan.workspace  # the workspace is charged like a task's, and given back at once
    used, limit = account.used + plan.cost, account.limit  # `used`: the peak
    if limit is not None and used > limit:
        return None
    if above is not None:
        return _failed(scope, op, first, plan, above.passed_to(op.name, call_site()))
    if observer is not None:
        began = perf_counter()
    try:
        array = runtime.quiet.run(plan.kernel, a, b) if plan.pair else runtime.quiet.run(plan.kernel, *args, **options)
    except Exception as error:
        if type(error) is RuntimeError and runtime.quiet_in_use():
            return None
        return _failed(scope, op, first, plan, Failure.of(error, op.name, call_site(), frames=False))
    if type(array) is not _ndarray:
        array = np.asarray(array)
    if op.out or owner_of(array) is not owner_of(first.array):
        value = new_value(account, first.device, plan.meta, nbytes, None, array)
        if not ledger.abandoned:  # meanwhile, since finalisers ran in the kernel and one was interrupted
            account.used, value.charge = account.used + nbytes, nbytes  # one step: no signal is handled in between
    else:
        value = new_value(account, first.device, plan.meta, 0, None, array)
        value.make_view(first)
        spare += nbytes
    ledger.ran_at_once += 1
    if used > ledger.peak_bytes or in_flight >= ledger.peak_in_flight:
        ledger.note_peak(in_flight + 1, spare)
    if ledger.numbers:
        value.seq = ledger.sequence
        ledger.sequence += 1
    if observer is not None:
        ended = perf_counter()
        observer.op_ran_inline(InlineOp(op.name, scope, plan.meta, value.charge, call_site(), began, ended, value.seq))
    if plan.seconds:
        runtime.spend(plan.seconds)
    return value


def _failed(scope: Scope, op: Op, first: Value, plan: Plan, failure: Failure) -> Value:
    runtime = first.account.runtime
    value = new_value(scope.account, first.device, plan.meta)
    task = Task(scope, plan, value, op, (), None, None, runtime.lanes[first.device].compute, 0)
    task.failure = failure
    runtime.engine.submit(task, bounded=False, hold=True)
    return value
