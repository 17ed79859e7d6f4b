"""What schedulers and scopes can do: put, submit, call, wait, and open scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._arguments import check_number, parse_bytes
from .._core.callsite import call_site
from .._core.model import DONE, PENDING, Value
from .._core.model import Scope as CoreScope
from .._core.model import Task as CoreTask
from ..errors import QueueFull
from ..runtime.barriers import drained, wait, wait_admitted
from ..runtime.runtime import Runtime
from ..runtime.unseen_failures import report
from ..runtime.waiting import From, checkpoint
from ..tensors.capture import Graph, record, tensors_in
from ..tensors.handles import gather
from ..tensors.tensor import Tensor
from .tasks import Options, make_call, make_put

if TYPE_CHECKING:
    from .scope import Scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Whose turns a scope takes. What is None is as in the scope around it."""

    tenant: Hashable | None = None
    weight: float | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        hash(self.tenant)
        if self.priority is not None and (isinstance(self.priority, bool) or not isinstance(self.priority, int)):
            raise TypeError(f"priority must be an int, the higher the sooner, not {type(self.priority).__name__}")


class Submitter:
    """What a scheduler and a scope can do."""

    _runtime: Runtime

    def _core(self) -> CoreScope:
        raise NotImplementedError

    async def put(self, array: Any, *, device: object = None) -> Tensor:
        """Copy a host array to the device. Waits for room: this is where backpressure is felt.

        When it returns the source may be reused. Cancelling it before it is admitted takes it back; later the copy
        goes on, and nobody holds it.

        Args:
            array: an ndarray, or what `np.asarray` makes one of; of bool, integers, floats or complex numbers.
            device: where to; default the scheduler's first device.

        Raises:
            TypeError: for any other dtype.
            TaskTooLarge: if it can never fit.
            MemoryDeadlockError, SchedulerStalled: if no room will come.
        """
        runtime = self._runtime
        runtime.check()
        await checkpoint()
        task, tensor = make_put(runtime, self._core(), array, device, bounded=False)
        try:
            if task.state < DONE:
                await self._admitted(task)
                await From(wait(runtime, (task,)))
            if task.failure is not None:
                task.failure.rethrow()
            return tensor
        finally:
            del task, tensor  # an exception holds this frame, and the task the exception

    def put_nowait(self, array: Any, *, device: object = None) -> Tensor:
        """Like `put`, but raises QueueFull unless admitted now: a pending host array would be unbounded memory.

        The source must not change before the tensor is done.
        """
        runtime = self._runtime
        runtime.check()
        task, tensor = make_put(runtime, self._core(), array, device, bounded=True)
        if task.state == PENDING:
            runtime.cancel(task, "put_nowait, since there was no room")
            raise QueueFull("no room for this array now: `await s.put(array)` waits for it")
        return tensor

    async def submit(
        self, fn: Callable[..., Any], *args: Any, shape: Any = None, dtype: Any = None, nbytes: int | str | None = None,
        name: str | None = None, device: object = None, resource: Hashable = None,
    ) -> Any:  # fmt: skip
        """Run `fn(*args)` on a stream. Waits until it is admitted, not until it is done.

        Tensors and tasks among the arguments, also in lists, tuples and dicts, are replaced by their results: read-only
        arrays. The function runs in a copy of this context. It must not be a coroutine function.

        Args:
            fn: any callable. For keywords use `functools.partial`.
            shape, dtype: of the array it returns. With both, the result is a Tensor, which operators accept.
            nbytes: its cost in bytes, output and workspace together. Without it (or shape and dtype) the inputs' bytes
                are charged, and corrected when it is done.
            name: for messages; default the function's.
            device: whose streams; default that of the first tensor.
            resource: something that two tasks must not use at once, such as a library's random generator: tasks that
                name the same one run one after the other, on one stream.

        Returns:
            A Task, or a Tensor if shape and dtype are given.
        """
        self._runtime.check()
        await checkpoint()
        task, handle = make_call(
            self._runtime, self._core(), fn, args, Options(shape, dtype, nbytes, name, device, resource), bounded=False
        )
        try:
            if task.state == PENDING:
                await self._admitted(task)
            return handle
        finally:
            del task, handle  # as in `put`

    def submit_nowait(
        self, fn: Callable[..., Any], *args: Any, shape: Any = None, dtype: Any = None, nbytes: int | str | None = None,
        name: str | None = None, device: object = None, resource: Hashable = None,
    ) -> Any:  # fmt: skip
        """Like `submit`, but never waits.

        The task joins the backlog, or QueueFull is raised when that is at its limit.
        """
        self._runtime.check()
        return make_call(
            self._runtime, self._core(), fn, args, Options(shape, dtype, nbytes, name, device, resource), bounded=True
        )[1]

    async def call(
        self, fn: Callable[..., T], *args: Any, nbytes: int | str | None = None, name: str | None = None,
        device: object = None, resource: Hashable = None,
    ) -> T:  # fmt: skip
        """Submit and await in one: the result, as with `asyncio.to_thread`. Cancelling it cancels the task."""
        self._runtime.check()
        await checkpoint()
        task, handle = make_call(
            self._runtime, self._core(), fn, args, Options(None, None, nbytes, name, device, resource), bounded=False
        )
        try:
            if task.state == PENDING:
                await self._admitted(task)
            return cast(T, await handle)
        except asyncio.CancelledError:
            handle.cancel()
            raise
        finally:
            del task, handle  # as in `put`

    async def barrier(self) -> None:
        """Wait for everything submitted so far: in this scope and the scopes in it, or in the whole scheduler.

        Raises:
            ExceptionGroup: of the failures among them that nobody has seen.
        """
        runtime, core = self._runtime, self._core()
        runtime.check()
        before = runtime.engine.sequence
        await checkpoint()
        await drained(runtime, core, before)
        report(core, "barrier", before)

    async def capture(self, fn: Callable[..., Any], *examples: Tensor) -> Graph:
        """Record a step of fixed shapes once, to be replayed as one task: on CUDA as a graph, with one launch.

        `fn` is called now with tensors that have no values, and may do whatever operators and functions of the package
        do; nothing else (`put`, callables, results whose shape depends on data; of gradients `grad()` alone, which
        moves no handle). Waits for the bytes the graph will own, and for one replay on the examples, so that what
        cannot be captured fails here.

        Args:
            fn: a plain function of tensors that returns tensors, alone or in lists, tuples and dicts.
            examples: tensors of one device, of the shapes and dtypes it will be called with.

        Returns:
            A Graph: call it like `fn`.

        Raises:
            CaptureError: naming the operation that cannot be captured.
        """
        runtime, core = self._runtime, self._core()
        runtime.check()
        await checkpoint()
        graph = record(runtime, core, fn, examples)
        claim: Value | None = None
        if graph.owned:
            await self._claim(core, repr(graph), graph.owned)
            claim = Value(core.account, examples[0].device, None)
            claim.charge = claim.nbytes = graph.owned
        graph.prepare(claim)
        await gather(*tensors_in(graph(*examples)))
        return graph

    def scope(
        self, *, name: str | None = None, reserve: int | str | None = None, deadline: float | None = None,
        tenant: Hashable | None = None, weight: float | None = None, priority: int | None = None,
    ) -> Scope:  # fmt: skip
        """A structured scope: leaving it waits for its tasks; leaving it by an exception cancels them.

        Tasks that only wait are dropped at once then; those that run are waited for, and counted until they end.

        Args:
            name: for messages.
            reserve: bytes to claim up front. Entering waits for room; inside it is the limit, so that work inside
                cannot stall on memory held outside.
            deadline: seconds from entering to having left, the wait for the reserve included. When they have passed,
                what is unfinished inside is cancelled, and so is the body at its `await`, as with `asyncio.timeout`.
                Inside a scope with a deadline only a shorter one makes a difference.
            tenant: whose work it is, anything hashable. Tenants get equal shares of what is admitted, by bytes and
                number, however many scopes and tasks each has; the scopes of one take turns. Default: the tenant of
                the scope around it; a scope without any counts as a tenant of its own.
            weight: the tenant gets that many shares. The last one given holds for all its scopes (of one priority).
            priority: the class, an int; keep them few. What is in a higher class goes first, but a lower one that
                waits gets every 17th admission or so. Default: that of the scope around it, 0 at first.

        Raises:
            DeadlineExceeded: at the end of the block, if the deadline has passed.
            ValueError, TypeError: for an argument out of its range.
        """
        from .scope import Scope  # which is a Submitter itself

        check_number("deadline", deadline, "seconds", none="no deadline")
        check_number("weight", weight, "shares", none="the tenant's own")
        return Scope(
            self._runtime,
            self._core,
            name or "unnamed",
            None if reserve is None else parse_bytes(reserve, "reserve"),
            deadline=deadline,
            sharing=Sharing(tenant, weight, priority),
        )

    async def _admitted(self, task: CoreTask) -> None:
        """Wait until a task is launched or settled; take it back if cancelled before."""
        started = perf_counter()
        try:
            await From(wait_admitted(self._runtime, task))
        except asyncio.CancelledError:
            if task.state == PENDING:
                self._runtime.cancel(task, "the coroutine that waited for its admission, which was cancelled")
            raise
        finally:
            self._runtime.waited += perf_counter() - started
        if task.lane is None and task.failure is not None and task.failure.root is task.failure:
            try:
                task.failure.rethrow()
            finally:
                del task  # as in `put`

    async def _claim(self, core: CoreScope, what: str, nbytes: int) -> None:
        """Wait until `nbytes` are charged to the scope's account."""
        task = CoreTask(core, core.account, what, None, (), None, (), (), nbytes)
        task.site = call_site()
        self._runtime.submit(task, bounded=False)
        try:
            if task.state == PENDING:
                await self._admitted(task)
            if task.failure is not None:
                task.failure.rethrow()
        except asyncio.CancelledError:
            if task.state == DONE:
                self._runtime.engine.release(core.account, nbytes)
                self._runtime.dispatch()
            raise
        finally:
            del task  # as in `put`
