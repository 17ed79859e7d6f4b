"""Running a task on host memory: inputs in, output in a recycled buffer, every reference dropped.

Shared by the devices whose arrays are NumPy's (`cpu`, `sim`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from .._core.failure import Failure
from .._core.scope import Account
from .._core.task import Task, Value
from ..ops.meta import meta
from ..ops.row import Row, resolve
from .memory import Array, HostMemory, owner_of
from .pool import POOLED_BYTES, Block


def execute(task: Task, memory: HostMemory) -> None:
    """Run one task to its end. Afterwards the value has its array or its failure, and the task holds nothing."""
    task.refund = task.cost
    try:
        upstream = next((v.failure for v in task.inputs if v.failure is not None), None)
        if upstream is not None:
            _fail(task, upstream.passed_to(task.name, task.where))
        elif not task.cancelled:
            if isinstance(task.call, Row):
                _run_row(task, memory)
            else:
                _run_call(task, memory)
    except BaseException as error:  # whatever a body raises belongs to whoever awaits it
        _fail(task, Failure.of(error, task.name, task.where))
    task.value = task.args = task.call = task.context = task.options = None
    task.inputs = ()


def _fail(task: Task, failure: Failure) -> None:
    value = task.value
    if task.failure is None:
        task.failure = failure
        if value is not None and value.failure is None:
            value.failure = failure


def _run_row(task: Task, memory: HostMemory) -> None:
    row, value, options = task.call, task.value, task.options or {}
    assert value is not None
    args = [a.array if type(a) is Value else a for a in task.args]
    kernel = resolve(row, np)
    block: Block | None = None
    if not _pools(row, value) or not all(map(_contiguous, args)):
        array = kernel(*args, **options)
    else:
        out, block = _reusable(task, isinstance(kernel, np.ufunc)) if row.inplace else (None, None)
        if out is None or block is None:
            block = memory.pool.take(value.nbytes)
            out = np.ndarray(value.meta.shape, value.meta.dtype, buffer=block)
        try:
            array = kernel(*args, out=out, **options)
        except BaseException:
            memory.pool.give(block)
            raise
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    _finish(task, value, array, block, memory)


def _pools(row: Row, value: Value) -> bool:
    """Whether the output is to be written into a recycled buffer."""
    return row.out and not row.view and value.nbytes >= POOLED_BYTES and bool(value.meta.known)


def _finish(task: Task, value: Value, array: Array, block: Block | None, memory: HostMemory) -> None:
    """Give the value its array, and the task its refund."""
    if value.failure is not None:  # cancelled meanwhile
        if block is not None:
            memory.pool.give(block)
        return
    charge = 0
    if block is not None:
        charge = value.nbytes
    elif not array.flags.owndata and (source := _source(task, array)) is not None:
        value.base = source
    else:
        charge = array.nbytes
        if charge >= POOLED_BYTES:
            memory.pool.adopt(charge)
            value.block = charge
    if block is not None:
        value.block = block
    value.array = array
    value.charge = value.nbytes = charge
    if not value.meta.known:
        value.meta = meta(array.shape, array.dtype, array.flags.c_contiguous)
    task.refund = task.cost - charge


def _source(task: Task, array: Array) -> Value | None:
    """The input that `array` is a view of."""
    owner = owner_of(array)
    for value in task.inputs:
        if isinstance(value.array, np.ndarray) and owner_of(value.array) is owner:
            return value
    return None


def _contiguous(array: Any) -> bool:
    return not isinstance(array, np.ndarray) or array.flags.c_contiguous


def _reusable(task: Task, any_input: bool) -> tuple[Array | None, Block | None]:
    """The array and buffer of an input that this task alone holds and that fits the output exactly.

    A ufunc may write over any of its inputs; other rows only over the first.
    """
    meta = task.value.meta if task.value is not None else None
    for value in task.inputs if any_input else task.inputs[:1]:
        if type(value.block) is not np.ndarray or value.escaped or value.base is not None or meta is None:
            continue
        array = value.array
        if array.shape != meta.shape or array.dtype != meta.dtype or not array.flags.c_contiguous:
            continue
        held = sum(a is value for a in task.inputs)
        if task.args is not task.inputs:
            held += sum(a is value for a in task.args)
        if sys.getrefcount(value) <= held + _LOOP_REFS:
            block, value.block = value.block, None
            return array, block
    return None, None


def _run_call(task: Task, memory: HostMemory) -> None:
    """Call a user's function in its own context; charge what it returned."""
    value = task.value
    assert value is not None
    result = task.context.run(task.call, *[_fill(a) for a in task.args])
    value.escaped = True  # the body may have kept it
    meta = value.meta
    if meta is not None:
        result = np.asarray(result).view()  # made read-only when it leaves, and the body's own array is not ours
        if result.shape != meta.shape or result.dtype != meta.dtype:
            raise ValueError(
                f"{task.name} was submitted with shape={meta.shape}, dtype={meta.dtype} and returned"
                f" shape={result.shape}, dtype={result.dtype}: declare what the function returns"
            )
    if value.failure is not None:
        return
    inputs = {id(owner_of(a)) for a in _arrays(task.args) if isinstance(a, np.ndarray)}
    owners = {id(o): o for a in _arrays(result) if id(o := owner_of(a)) not in inputs}
    value.block = tuple((owner, owner.nbytes) for owner in owners.values())
    charge = sum(nbytes for _, nbytes in value.block)
    if not value.block and not isinstance(result, np.ndarray) and task.options:
        charge = task.options["nbytes"]  # declared, and not to be measured: charged until the handle drops
    value.array = result
    value.charge = value.nbytes = charge
    task.refund = task.cost - charge


def _fill(arg: Any) -> Any:
    """`arg` with every value in it replaced by its read-only array."""
    if type(arg) is Value:
        if type(arg.array) is np.ndarray:
            arg.array.flags.writeable = False
        return arg.array
    return rebuild(arg, _fill)


def rebuild(arg: Any, change: Callable[[Any], Any]) -> Any:
    """A list, tuple, named tuple or dict with `change` applied to its members; anything else as it is."""
    kind = type(arg)
    if kind is list:
        return [change(a) for a in arg]
    if kind is dict:
        return {k: change(a) for k, a in arg.items()}
    if isinstance(arg, tuple):
        members = [change(a) for a in arg]
        return kind(*members) if hasattr(arg, "_fields") else tuple(members)
    return arg


def _arrays(found: Any) -> Iterator[Array]:
    """The arrays in a result, in lists, tuples and dicts too."""
    if isinstance(found, Value):
        found = found.array
    if isinstance(found, np.ndarray):
        yield found
    elif isinstance(found, list | tuple):
        for member in found:
            yield from _arrays(member)
    elif isinstance(found, dict):
        for member in found.values():
            yield from _arrays(member)


def _loop_refs() -> int:
    """How many references `_reusable`'s loop adds."""
    values = (Value(cast(Account, None), None, None),)
    for value in values:
        return sys.getrefcount(value) - 1
    return 0


_LOOP_REFS = _loop_refs()
