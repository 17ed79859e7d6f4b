"""Putting arrays, and submitting and calling functions: on schedulers and scopes alike.

Theory of operation. Each coroutine here goes the same way:

1. It passes through the event loop once (`sleep(0)`), before there is a task. If it is cancelled there, it leaves
   nothing behind.
2. It asks for its scope, which raises if this thread may not submit (`current_scope`), and makes the task. The task
   joins the queue of its scope in the same step. The backlog's limit does not apply, since a coroutine that waits for
   admission cannot run ahead.
3. It waits for admission. If it is cancelled or closed before that, it takes the task out of the queue. Later the task
   goes on, except that `call` cancels it.
4. It returns the handle (`submit`), or waits for the end (`put`, `call`).

An exception holds the frames that it passed. A frame holds its locals, a task its failure, and the failure the
exception. So each function that a task's exception leaves deletes its task and its handle in a `finally`. Otherwise
this circle would keep the arrays until the garbage collector comes, and the scheduler would count them as held.

A *claim* (for a scope's reserve, for a graph's buffers) waits for bytes and nothing else. It is a task all the same,
one without a body and without lanes. So it keeps its place in the order of its scope, shares with other tenants, can be
cancelled, is refused when it is too large, and counts in a stall like any other task. The obvious alternative is a list
of waiters for bytes. It would need each of these once more, and a rule for which of the two goes first when bytes come
free. The price: counts of tasks leave claims out (`claims`), and admission asks whether a task needs a slot.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike

from .._arguments import check_number, format_seconds, is_coroutine_function, label_of, parse_bytes
from .._core.callsite import CallSite, call_site
from .._core.model import DONE, PENDING, CallPlan, Lease, Value, new_value
from .._core.model import Scope as CoreScope
from .._core.model import Task as CoreTask
from .._instead import naming_arguments, refuse_keywords
from .._tree import find, map_leaves
from ..errors import QueueFull, TaskTooLarge
from ..ops.meta import Meta, meta
from ..ops.program import ref
from ..runtime.life import running_loop
from ..runtime.runtime import Runtime
from ..runtime.waiting import ADMITTED, awaited
from ..tensors.arguments import dtype_of
from ..tensors.handles import Handle, Task, copy_out
from ..tensors.putting import importable, make_put, put_nowait
from ..tensors.tensor import Tensor
from .learned import LearnedCost

T = TypeVar("T")
Shape: TypeAlias = int | Sequence[int]
Cost: TypeAlias = int | str | LearnedCost
# The options of `submit` for a callable: shape, dtype, nbytes, workspace, name, device, resource. (A named tuple takes
# several times as long to make.)
Options: TypeAlias = tuple[Any, Any, Cost | None, int | str | None, str | None, object, Hashable]

_plan = lru_cache(1024)(CallPlan)  # one for all tasks of a name
_MAY_HOLD = (Handle, tuple, list, dict)  # types of arguments that are handles, or may have handles in them


class Tasks:
    """Makes tasks in the scope that its caller is in. The base of `Submitter`."""

    _runtime: Runtime
    if TYPE_CHECKING:  # in the reference each subclass would have to import what it names
        _core: Callable[[], CoreScope]  # the scope that new tasks join. Raises if this thread may not submit

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._runtime.__reduce_ex__(protocol)

    async def put(self, array: Any, *, device: object = None, **keywords: NoReturn) -> Tensor:
        """Copy a host array to the device. Waits for room: this is where backpressure is felt.

        When it returns, the source may be reused. If it is cancelled before the copy is admitted, the copy is taken
        back. Later the copy goes on, and nobody holds it.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         a = np.arange(3)
        ...         x = await s.put(a)
        ...         a[:] = 0  # x has its own copy
        ...         return await x
        >>> asc.run(main)
        array([0, 1, 2])

        Args:
            array: an ndarray, or anything that `np.asarray` takes; of bool, integers, floats or complex numbers. The
                tensor has its dtype in this machine's byte order: big-endian `>f8` becomes float64.
            device: the device to copy it to; default the scheduler's first one.

        Raises:
            TypeError: for any other dtype.
            TaskTooLarge: if it can never fit.
            MemoryDeadlockError, SchedulerStalled: if no room will come.
        """
        if keywords:
            refuse_keywords(Tasks.put, keywords)
        runtime = self._runtime
        source = importable(runtime, array, device)  # ordered behind the stream that is current now
        await asyncio.sleep(0)
        task, tensor = make_put(runtime, self._core(), source, bounded=False)
        try:
            if task.state == PENDING:
                await self._admitted(task)
            if task.state < DONE:
                await awaited(runtime, (task,))
            if task.failure is not None:
                task.failure.rethrow()
            return tensor
        finally:
            del source, task, tensor  # an exception holds this frame, and the task the exception

    @naming_arguments
    def put_nowait(self, array: Any, *, device: object = None) -> Tensor:
        """Like `put`, but raises QueueFull unless the copy is admitted now: pending host arrays would be unbounded
        memory.

        The source must not change before the tensor is done.
        """
        return put_nowait(self._runtime, self._core(), array, device)

    @overload
    async def submit(
        self, fn: Callable[..., Any], *args: Any, shape: Shape, dtype: DTypeLike, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
    ) -> Tensor: ...  # fmt: skip
    @overload
    async def submit(
        self, fn: Callable[..., T], *args: Any, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
    ) -> Task[T]: ...  # fmt: skip
    async def submit(
        self, fn: Callable[..., Any], *args: Any, shape: Any = None, dtype: Any = None, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
        **keywords: NoReturn,
    ) -> Any:  # fmt: skip
        """Run `fn(*args)` on a stream. Waits until it is admitted, not until it is done.

        If it is cancelled before the task is admitted, the task is taken back. Later the task goes on.

        Tensors and tasks among the arguments, also in lists, tuples and dicts, are replaced by their results: read-only
        arrays. A list or dict that has any is passed as a copy with the results, others as they are. The function runs
        in a copy of this context. On a CUDA device the task's stream is CuPy's current one, and waits for the work that
        is pending on CuPy's arrays among the arguments. The function must not be a coroutine function. `await` raises
        its exception. But StopIteration, StopAsyncIteration, GeneratorExit and asyncio's CancelledError, which would
        mean something else to whoever awaits, are raised as the cause of a RuntimeError. An array that it returns is
        not copied: do not write to it any more.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.array([3, 1, 2]))
        ...         task = await s.submit(np.argsort, x)
        ...         y = await s.submit(np.sort, x, shape=(3,), dtype=x.dtype)
        ...         print(await task, await (y * 10))
        >>> asc.run(main)
        [1 2 0] [10 20 30]

        Args:
            fn: any callable. For keywords use `functools.partial`.
            shape, dtype: of the array it returns. With both, the result is a Tensor, which operators accept.
            nbytes: the cost in bytes: output and workspace. Without it (or shape and dtype) the inputs' bytes are
                charged; when the task is done, the charge is corrected to the arrays that it returned. For a result
                that is no array (a model, say, but no number or text) the charge stays until the handle drops. A
                `LearnedCost` learns the cost from the calls before.
            workspace: bytes that the function needs only while it runs: a part of `nbytes` if that is given, else added
                to the result's bytes.
            name: for messages; default the function's.
            device: where it runs; default the device of the first tensor.
            resource: something that two tasks must not use at once (a library's random generator), or not on different
                threads (a connection of sqlite3). Tasks that name the same resource run one after the other, in the
                order of submission within a scope, on one stream of their device. Other functions overlap where there
                are several streams.

        Returns:
            A Task, or a Tensor if shape and dtype are given.

        Raises:
            TypeError, ValueError: if `fn` is no plain function, and for options that make no sense.
            TaskTooLarge: if it can never fit.
            MemoryDeadlockError, SchedulerStalled: if no room will come.
        """
        context = self._context_for(fn, args, keywords)
        await asyncio.sleep(0)
        given = shape, dtype, nbytes, workspace, name, device, resource
        task, value = self._make_call(fn, args, given, context, bounded=False)
        handle = _handle_of(task, value)
        try:
            if task.state == PENDING:
                await self._admitted(task)
            return handle
        finally:
            del task, value, handle  # as in `put`

    @overload
    def submit_nowait(
        self, fn: Callable[..., Any], *args: Any, shape: Shape, dtype: DTypeLike, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def submit_nowait(
        self, fn: Callable[..., T], *args: Any, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
    ) -> Task[T]: ...  # fmt: skip
    def submit_nowait(
        self, fn: Callable[..., Any], *args: Any, shape: Any = None, dtype: Any = None, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
        **keywords: NoReturn,
    ) -> Any:  # fmt: skip
        """Like `submit`, but never waits.

        The task joins the backlog, or QueueFull is raised when that is at its limit.
        """
        context = self._context_for(fn, args, keywords)
        given = shape, dtype, nbytes, workspace, name, device, resource
        return _handle_of(*self._make_call(fn, args, given, context, bounded=True))

    async def call(
        self, fn: Callable[..., T], *args: Any, nbytes: Cost | None = None,
        workspace: int | str | None = None, name: str | None = None, device: object = None, resource: Hashable = None,
        **keywords: NoReturn,
    ) -> T:  # fmt: skip
        """Submit a function and await it: returns its result, as `asyncio.to_thread` does. Cancelling the call cancels
        the task.

        Calls of several coroutines overlap where there are several streams. Give functions that must not overlap the
        same `resource` (see `submit`). Raises the errors of `submit`, and those of `fn`.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         return await s.call(divmod, 7, 2)
        >>> asc.run(main)
        (3, 1)
        """
        context = self._context_for(fn, args, keywords)
        given = None, None, nbytes, workspace, name, device, resource
        result: T = await self._result(*self._make_call(fn, args, given, context, bounded=False))
        return result

    def _context_for(self, fn: object, args: tuple[Any, ...], keywords: Mapping[str, object]) -> contextvars.Context:
        """The context that a callable runs in: a copy of this one. Make it before the event loop turns, since other
        coroutines change what is current on this thread. Raises for keywords: they were meant for the function."""
        if keywords:
            given = ", ".join(f"{name}=..." for name in keywords)
            label = getattr(fn, "__name__", "fn")
            raise TypeError(
                f"keywords are options of the task, and {given} is none: use functools.partial({label}, {given})"
            )
        context = contextvars.copy_context()
        for device in self._runtime.devices:
            if device.note_arguments is not None:
                device.note_arguments(context, args)
        return context

    def _make_call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], given: Options, context: contextvars.Context, *,
        bounded: bool,
    ) -> tuple[CoreTask, Value]:  # fmt: skip
        """Submit a user's callable. Returns its task and value."""
        runtime = self._runtime
        shape, dtype, nbytes, workspace, name, device, resource = given
        if not callable(fn):
            kind = type(fn).__name__
            raise TypeError(f"submit takes a callable, not {kind}: write `s.submit(fn, x)`, without calling `fn`")
        if is_coroutine_function(fn):
            raise TypeError(
                f"{fn} is a coroutine function: await it, or use asyncio.create_task; streams run plain functions"
            )
        if (shape is None) != (dtype is None):
            raise TypeError("shape and dtype go together: with both the result is a Tensor")
        form = None if shape is None else meta(_shape(shape), dtype_of(dtype), contiguous=False)
        leases: list[Lease] = []
        bound = tuple([_bound(arg, leases, runtime) if isinstance(arg, _MAY_HOLD) else arg for arg in args])
        inputs = [lease._value for lease in leases]
        default = inputs[0].device if inputs else runtime.devices[0]
        target = default if device is None else runtime.device(device)
        result = 0 if form is None else target.memory.footprint(form.nbytes)
        label, lesson = name or label_of(fn), None
        if isinstance(nbytes, LearnedCost):
            ledger = None if target.memory.number is not None else runtime.ledger
            lesson = nbytes._lesson(label, inputs, workspace, ledger)
            nbytes, workspace = lesson.nbytes, lesson.workspace
        cost, scratch = _cost(form, result, nbytes, workspace, inputs)
        core, declared = self._core(), nbytes is not None
        # The charge for a result that cannot be measured. None if the user gave no cost.
        options: dict[str, Any] | None = None
        if declared or scratch or lesson is not None:
            options = {"unmeasured": cost - scratch if declared else 0, "lesson": lesson}
        lanes = runtime.lanes[target].compute if resource is None else runtime.lane_of(resource, target)
        value = new_value(core.account, target, form, cost - scratch if form is None else result, call_site(3))
        reads = inputs[0] if len(inputs) == 1 else tuple(inputs)
        task = CoreTask(core, _plan(label), value, fn, reads, bound, options, lanes, cost)
        task.context = context
        for read in inputs:
            read.escaped = True  # the function may keep its arguments
        runtime.submit(task, bounded=bounded)
        return task, value

    def _call_again(self, fn: Callable[[], T], plan: CallPlan, site: CallSite | None) -> Coroutine[Any, Any, T]:
        """`call` for a runner, which calls one function after another under one plan.

        The function is plain and takes no arguments. Messages name the line that made the runner.
        """
        runtime, core = self._runtime, self._core()
        device = runtime.devices[0]
        value = new_value(core.account, device, None, 0, site)
        task = CoreTask(core, plan, value, fn, (), (), None, runtime.lanes[device].compute, 0)
        task.context = contextvars.copy_context()
        runtime.submit(task, bounded=False)
        return self._result(task, value)

    def _begin_call(self, fn: Callable[..., T], *args: Any, name: str) -> Coroutine[Any, Any, T]:
        """`call` in two steps: this submits the function, and the coroutine that it returns awaits it."""
        given = None, None, None, None, name, None, None
        return self._result(*self._make_call(fn, args, given, self._context_for(fn, args, {}), bounded=False))

    async def _result(self, task: CoreTask, value: Value) -> Any:
        """Wait for a callable, and return its own result. If the wait is cancelled, so is the task.

        Nobody else knows of its value, so no lease is needed.
        """
        try:
            if task.state == PENDING:
                await self._admitted(task)
            await awaited(self._runtime, (task,))
            if task.failure is not None:
                task.failure.rethrow()
            if value.device.remote:
                return await copy_out(value)
            return value.array
        except (asyncio.CancelledError, GeneratorExit):
            self._take_back(task, "the coroutine that awaited it, which was cancelled")
            raise
        finally:
            del task, value  # as in `put`

    async def _admitted(self, task: CoreTask) -> None:
        """Wait until a task is launched or settled. If this is cancelled before, take the task back."""
        started = perf_counter()
        try:
            await awaited(self._runtime, (task,), ADMITTED)
        except (asyncio.CancelledError, GeneratorExit):
            if task.state == PENDING:
                self._take_back(task, "the coroutine that waited for its admission, which was cancelled")
            raise
        finally:
            self._runtime.waited += perf_counter() - started
        if task.lane is None and task.failure is not None and task.failure.root is task.failure:
            try:
                task.failure.rethrow()
            finally:
                del task  # as in `put`

    def _take_back(self, task: CoreTask, by: str) -> None:
        """Cancel a task whose coroutine was cancelled, or closed. That may happen on any thread, and after the loop has
        ended."""
        runtime, loop = self._runtime, self._runtime.loop
        assert loop is not None
        if loop.is_closed():
            return
        if runtime.thread == get_ident() or running_loop() is loop:
            runtime.cancel(task, by)
        else:
            loop.call_soon_threadsafe(runtime.cancel, task, by)

    async def _claim(self, core: CoreScope, what: str, nbytes: int, patience: float | None = None) -> Value:
        """Wait until `nbytes` are charged to the scope's account. They stay charged while the returned value lives.

        A claim is a task without a body: see the head of this file. It takes no slot, since nothing runs.

        Raises:
            QueueFull: if that takes more than `patience` seconds, or would take more by estimate.
        """
        expected = None
        if patience is not None:
            self._runtime.engine.drain()
            expected = self._runtime.room.estimated_wait(core, nbytes)
            if (expected or 0.0) > patience:
                raise _no_room(what, nbytes, patience, expected)
        claim = new_value(core.account, None, None, nbytes, call_site())
        task = CoreTask(core, CallPlan(what), claim, None, (), None, None, (), nbytes)
        self._runtime.submit(task, bounded=False)
        try:
            if task.state == PENDING and patience == 0:
                self._take_back(task, "its caller, for which there was no room")
                raise _no_room(what, nbytes, patience, expected)
            if task.state == PENDING:
                await self._granted(task, patience)
            if task.failure is not None:
                task.failure.rethrow()
            return claim
        finally:
            del task, claim  # as in `put`

    async def _granted(self, claim: CoreTask, patience: float | None) -> None:
        """Wait until a claim is granted or settled, `patience` seconds at most."""
        room, name, cost = self._runtime.room, claim.name, claim.cost
        try:
            room.begin(claim)
            async with asyncio.timeout(patience):
                await self._admitted(claim)
        except TimeoutError:
            assert patience is not None
            raise _no_room(name, cost, patience, patience) from None
        finally:
            room.end(claim)
            del claim  # as in `put`


def check_wait(wait: float | None, reserve: object) -> float | None:
    """Raise if this is no time to wait for a reserve. Returns it, as `check_number` does."""
    if wait is not None and reserve is None:
        raise ValueError("wait= is for how long to wait for a reserve, and there is none: give `reserve=`, too")
    seconds: float | None = check_number("wait", wait, "seconds", zero=True, none="as long as it takes")
    return seconds


def check_reserve(reserve: int, limit: int | None, what: str) -> None:
    """Raise TaskTooLarge for a reserve that could never be granted."""
    if limit is not None and reserve > limit:
        raise TaskTooLarge(
            f"{what} needs {reserve:,} bytes, and the limit is {limit:,}: reserve less, or raise max_bytes (or the"
            " reserve of the scope around)",
            reserve,
            limit,
        )


def _no_room(name: str, nbytes: int, patience: float, seconds: float | None) -> QueueFull:
    """The error of a claim that may wait `patience` seconds, for bytes that are expected in `seconds`."""
    would = f" within {patience:g} s (wait=)" if patience else " now (wait=0)"
    after = "" if seconds is None else f", and is likely to be in {format_seconds(seconds)}"
    error = QueueFull(
        f"{name}: there is no room for the {nbytes:,} bytes that it reserves{would}{after}: come back later, let it"
        " wait longer, reserve less, or raise max_bytes"
    )
    error.retry_after = seconds
    return error


def _handle_of(task: CoreTask, value: Value) -> Any:
    """The handle of a user's callable: a Tensor if shape and dtype are given, else a Task."""
    return Task(value, task.name) if value.meta is None else Tensor(value)


def _shape(shape: Any) -> tuple[int, ...]:
    lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in lengths):
        raise ValueError(f"shape={shape!r} must be a tuple of lengths, none negative")
    return tuple([int(n) for n in lengths])


def _bound(arg: Any, inputs: list[Lease], runtime: Runtime) -> Any:
    """An argument with references in place of handles, also in lists, tuples and dicts; their values join `inputs`."""
    if not isinstance(arg, Handle):
        if not find((Handle,), arg):
            return arg
        return map_leaves(lambda leaf: _bound(leaf, inputs, runtime) if isinstance(leaf, Handle) else leaf, arg)
    inputs.append(lease := arg._lease())
    if lease._value.account.runtime is not runtime:
        raise ValueError("an argument belongs to another scheduler: `await` it first")
    return ref(len(inputs) - 1)


def _cost(form: Meta | None, result: int, nbytes: Any, workspace: Any, inputs: list[Value]) -> tuple[int, int]:
    """The charge of a callable, and how much of it is given back when it ends."""
    scratch = 0 if workspace is None else _bytes(workspace, "workspace")
    if nbytes is None:
        if form is None and inputs:
            result = sum([owner.nbytes for owner in {value.owner for value in inputs}])
        return result + scratch, scratch
    cost = _bytes(nbytes, "nbytes")
    if scratch > cost:
        raise ValueError(f"workspace={workspace!r} is more than nbytes={nbytes!r}, which is the whole cost, with it")
    return max(result + scratch, cost), scratch


def _bytes(size: Any, name: str) -> int:
    return 0 if size == 0 else parse_bytes(size, name)
