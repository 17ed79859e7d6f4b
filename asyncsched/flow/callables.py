"""Making the tasks behind `submit` and `call`."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .._arguments import is_coroutine_function, parse_bytes
from .._core.callsite import call_site
from .._core.model import CallPlan, Value, new_value
from .._core.model import Scope as CoreScope
from .._core.model import Task as CoreTask
from .._tree import find, map_leaves
from ..ops.meta import Meta, meta
from ..ops.program import ref
from ..runtime.runtime import Runtime
from ..tensors.arguments import dtype_of
from ..tensors.handles import Handle, Task
from ..tensors.tensor import Tensor
from .learned import LearnedCost, Lesson

_MAY_HOLD = (Handle, tuple, list, dict)  # arguments that are handles, or may have some in them


class Options(NamedTuple):
    """What `submit` was told of a callable, besides its arguments."""

    shape: Any
    dtype: Any
    nbytes: int | str | LearnedCost | None
    workspace: int | str | None
    name: str | None
    device: object
    resource: Hashable


def make_call(
    runtime: Runtime, core: CoreScope, fn: Callable[..., Any], args: tuple[Any, ...], given: Options,
    context: contextvars.Context, *, bounded: bool,
) -> tuple[CoreTask, Any]:  # fmt: skip
    """A user's callable as a task, and its handle: a Tensor if shape and dtype are given, else a Task."""
    shape, dtype = given.shape, given.dtype
    if not callable(fn):
        raise TypeError(f"submit takes a callable, not {type(fn).__name__}")
    if is_coroutine_function(fn):
        raise TypeError(
            f"{fn} is a coroutine function: await it, or use asyncio.create_task; streams run plain functions"
        )
    if (shape is None) != (dtype is None):
        raise TypeError("shape and dtype go together: with both the result is a Tensor")
    form = None if shape is None else meta(_shape(shape), dtype_of(dtype), contiguous=False)
    inputs: list[Value] = []
    bound = tuple([_bound(arg, inputs, runtime) if isinstance(arg, _MAY_HOLD) else arg for arg in args])
    if given.device is None:
        target = inputs[0].device if inputs else runtime.devices[0]
    else:
        target = runtime.device(given.device)
    result = 0 if form is None else target.memory.footprint(form.nbytes)
    label = given.name or getattr(fn, "__qualname__", None) or type(fn).__name__
    lesson = None
    if isinstance(given.nbytes, LearnedCost):
        given, lesson = _learned(given.nbytes, label, inputs, given)
    cost, workspace = _cost(form, result, given, inputs)
    declared = given.nbytes is not None
    # What is charged for a result that cannot be measured. None: nobody said anything of the cost.
    options: dict[str, Any] | None = None
    if declared or workspace or lesson is not None:
        options = {"unmeasured": cost - workspace if declared else 0, "lesson": lesson}
    lanes = runtime.lanes[target].compute if given.resource is None else runtime.lane_of(given.resource, target)
    value = new_value(core.account, target, form, cost - workspace if form is None else result, call_site())
    reads = inputs[0] if len(inputs) == 1 else tuple(inputs)
    task = CoreTask(core, CallPlan(label), value, fn, reads, bound, options, lanes, cost)
    task.context = context
    for read in inputs:
        read.escaped = True  # the function may keep what it is given
    runtime.submit(task, bounded=bounded)
    return task, Task(value, label) if form is None else Tensor(value)


def context_of(runtime: Runtime, args: tuple[Any, ...]) -> contextvars.Context:
    """What a callable runs in: a copy of this context. To be made before the event loop turns: others change, too, what
    is current on this thread."""
    context = contextvars.copy_context()
    for device in runtime.devices:
        if device.note_arguments is not None:
            device.note_arguments(context, args)
    return context


def _shape(shape: Any) -> tuple[int, ...]:
    lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in lengths):
        raise ValueError(f"shape={shape!r} must be a tuple of lengths, none negative")
    return tuple([int(n) for n in lengths])


def _bound(arg: Any, inputs: list[Value], runtime: Runtime) -> Any:
    """An argument with references in place of handles, also in lists, tuples and dicts; their values join `inputs`."""
    if not isinstance(arg, Handle):
        if not find((Handle,), arg):
            return arg
        return map_leaves(lambda leaf: _bound(leaf, inputs, runtime) if isinstance(leaf, Handle) else leaf, arg)
    value = arg._value
    if value.account.runtime is not runtime:
        raise ValueError("an argument belongs to another scheduler: `await` it first")
    inputs.append(value)
    return ref(len(inputs) - 1)


def _learned(cost: LearnedCost, label: str, inputs: list[Value], given: Options) -> tuple[Options, Lesson]:
    """The options with the cost that earlier calls have taught, and the lesson that learns from this one."""
    if given.workspace is not None:
        raise ValueError("a LearnedCost learns the workspace, too: leave out workspace=")
    forms = [None if value.meta is None else (value.meta.shape, value.meta.dtype) for value in inputs]
    lesson = cost._lesson(label, tuple(forms))
    return given._replace(nbytes=lesson.nbytes, workspace=lesson.workspace), lesson


def _cost(form: Meta | None, result: int, given: Options, inputs: list[Value]) -> tuple[int, int]:
    """What a callable is charged, and how much of that it gives back when it ends."""
    workspace = 0 if given.workspace is None else _bytes(given.workspace, "workspace")
    if given.nbytes is None:
        if form is None and inputs:
            result = sum([owner.nbytes for owner in {value.owner for value in inputs}])
        return result + workspace, workspace
    cost = _bytes(given.nbytes, "nbytes")
    if workspace > cost:
        raise ValueError(
            f"workspace={given.workspace!r} is more than nbytes={given.nbytes!r}, which is the whole cost, with it"
        )
    return max(result + workspace, cost), workspace


def _bytes(size: Any, name: str) -> int:
    return 0 if size == 0 else parse_bytes(size, name)
