"""Scopes: tasks that are waited for, reported on and cancelled together. And the methods that scopes and schedulers
share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from types import AsyncGeneratorType, CoroutineType, GeneratorType, coroutine
from typing import TYPE_CHECKING, Any, Final, Self

import anyio.lowlevel
import numpy as np

from .._arguments import check_number, label_of, parse_bytes
from .._core.audit import growths, launched
from .._core.model import Scope as CoreScope
from .._core.model import Task
from .._core.tenants import Share
from .._instead import SCOPE, SUBMITTER, OnlyAsync, naming_arguments, no_attribute
from ..errors import DeadlineExceeded, SchedulerClosed, TaskCancelled
from ..ops.kernels import compiled
from ..runtime.context import Ambient, current_scope, enter
from ..runtime.holders import awaits
from ..runtime.runtime import Runtime
from ..runtime.threads import in_thread
from ..runtime.waiting import drained, finish, report, shielded
from ..tensors.awaitables import gather
from ..tensors.capture import Graph, record, tensors_in
from ..tensors.tensor import Tensor
from .tasks import Tasks, check_reserve, check_wait

_AGAIN: Final = 0.05  # seconds between two looks whether an async generator has gone on, after its deadline


class Submitter(Tasks):
    """The methods of both schedulers and scopes: they make tasks, wait for them, capture steps and open scopes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._core = partial(current_scope, runtime)

    if not TYPE_CHECKING:  # where `__getattr__` would make every name look present to type checkers

        def __getattr__(self, name: str) -> Any:
            instead = SCOPE if isinstance(self, Scope) else SUBMITTER
            raise no_attribute(f"{type(self).__name__!r} object", name, instead, type(self))

    async def barrier(self) -> None:
        """Wait for everything submitted so far: in this scope and the scopes in it, or in the whole scheduler.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         for n in (2, 0, 1):
        ...             s.submit_nowait(divmod, 1, n)
        ...         try:
        ...             await s.barrier()
        ...         except* ZeroDivisionError as errors:
        ...             print(len(errors.exceptions), "failed")
        >>> asc.run(main)
        1 failed

        Raises:
            ExceptionGroup: of those failures that nobody has seen.
        """
        runtime, core = self._runtime, self._core()
        before = runtime.ledger.sequence
        if not await drained(runtime, core, before):
            await asyncio.sleep(0)
        report(core, "barrier", before)

    async def capture(self, fn: Callable[..., Any], *examples: Tensor, donate: int | Sequence[int] = ()) -> Graph:
        """Record a step of fixed shapes once, to be replayed as one task: on CUDA as a graph, with one launch.

        `fn` is called now, with tensors that have no values. It may use operators and functions of the package, and
        nothing else: no `put`, no callables, no results whose shape depends on data, and of the functions for gradients
        only `grad()`, which moves no handle. A replay is not recorded, so `fn` has to return gradients, or detached
        tensors. The call waits for the bytes that the graph will own, and for one replay on the examples, so a step
        that cannot be captured fails here.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.arange(3.0))
        ...         step = await s.capture(lambda x: x * 2 + 1, x)
        ...         print(await step(x), await step(x + 10))
        >>> asc.run(main)
        [1. 3. 5.] [21. 23. 25.]

        Donate a cache that each step adds to: then assignments to parts of it are in place, whatever its size.

        >>> def step(cache, place, x):
        ...     cache[place] = x
        ...     return cache.sum(axis=0), cache
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         cache, place, x = [await s.put(a) for a in (np.zeros((4, 3)), np.array([2]), np.ones((1, 3)))]
        ...         graph = await s.capture(step, cache, place, x, donate=0)
        ...         for _ in range(3):
        ...             total, cache = graph(cache, place, x + 1)  # the cache from before is gone
        ...         print(await total)
        >>> asc.run(main)
        [2. 2. 2.]

        Args:
            fn: a plain function of tensors that returns tensors, alone or in lists, tuples and dicts.
            examples: tensors of one device, of the shapes and dtypes it will be called with.
            donate: places of arguments that each call gives up; the first argument has place 0. `fn` assigns to parts
                of them and returns them, with the same memory (see `Graph`). The examples are not given up, so there is
                no replay on them.

        Returns:
            A Graph: call it like `fn`.

        Raises:
            CaptureError: if something cannot be captured. It names the operation, or a result or an example whose
                gradient would be lost, or says why a donated argument cannot be written in place.
            ValueError, TypeError: for an argument out of its range.
        """
        runtime, core = self._runtime, self._core()
        await asyncio.sleep(0)
        graph = record(runtime, core, fn, examples, donate)
        graph.prepare(await self._claim(core, repr(graph), graph.owned) if graph.owned else None)
        if not graph.donate:
            await gather(*tensors_in(graph(*examples)))
        return graph

    async def warm_up(self, fn: Callable[..., Any], *examples: Any) -> None:
        """Run `fn` on examples and drop its results, so that slow first calls are over before time counts.

        On CUDA a first call compiles CuPy's kernels (which stay in `~/.cupy/kernel_cache` for later processes), makes
        handles of libraries, and takes the first memory. There `fn` runs once for each stream, all at the same time. On
        the CPU a first call compiles numba's loops, where it is installed; `fn` runs once. Anything that `fn` changes
        (weights, a generator's position) stays changed. A captured step needs no warm-up.

        If it is cancelled, it raises when the tasks that run have ended, as a scope does. numba's compiler goes on.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         model = asc.nn.Linear(784, 10)
        ...         await s.warm_up(model, np.zeros((32, 784), np.float32))
        ...         return s.statistics().bytes_retained  # the model's
        >>> asc.run(main)
        31400

        Args:
            fn: a plain function or a coroutine function of tensors, such as a module or a request's handler, called on
                the event loop's thread. Tensors that it returns are waited for, and so are all tasks that it submits.
            examples: tensors, or arrays that are put, of the shapes and dtypes to come; anything else as it is.

        Raises:
            Exception: whatever `fn` raises, or a task that it submits.
            TypeError: if `fn` is no function, or returns a generator.
        """
        if not callable(fn):
            raise TypeError(f"warm_up takes a function, and examples of its arguments, not {fn!r}")
        devices = self._runtime.devices
        async with self.scope(name="warm_up") as scope:
            await _run(scope, fn, examples, max([1, *[len(device.streams) for device in devices if not device.inline]]))
        if any(device.inline for device in devices):
            await in_thread(compiled.finish, "waits for numba")

    @naming_arguments
    def scope(
        self, *, name: str | None = None, reserve: int | str | None = None, wait: float | None = None,
        deadline: float | None = None, tenant: Hashable | None = None, weight: float | None = None,
        priority: int | None = None,
    ) -> Scope:  # fmt: skip
        """A structured scope: leaving it waits for its tasks; leaving it by an exception cancels them.

        When an exception leaves it, pending tasks are dropped at once. Tasks that run are waited for, and count until
        they end. A scope that is open in an async generator is also the scope of the generator's consumer, until the
        generator ends.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         async with s.scope(name="request 42", reserve="1 MiB", deadline=60) as scope:
        ...             x = await scope.put(np.arange(3))
        ...             y = x + 1  # in the scope, too: it is the ambient one here
        ...         return y.done(), await y
        >>> asc.run(main)
        (True, array([1, 2, 3]))

        Args:
            name: for messages.
            reserve: bytes to claim up front. Entering waits for room; inside it is the limit, so that work inside
                cannot stall on memory held outside. `scope.grow()` adds to it.
            wait: most seconds to wait for that room; 0 takes what is free now. If there is no room by then, entering
                raises QueueFull. It raises QueueFull at once if others wait already and the room would come too late,
                by the rate at which they are let in. Without `wait`, entering waits for as long as it takes.
            deadline: seconds from entering to having left, the wait for the reserve included. When they have passed,
                the body is cancelled at its `await`, as with `asyncio.timeout`, and with it its unfinished tasks. A
                body that stands at a `yield` of an async generator is cancelled when it goes on, its consumer never.
                Inside a scope with a deadline only a shorter one makes a difference.
            tenant: whose work it is, anything hashable. Tenants get equal shares of admissions, by bytes and number,
                however many scopes and tasks each has. The scopes of one tenant alternate, but of those with a deadline
                the oldest goes first. Default: the tenant of the scope around it; a scope without any counts as a
                tenant of its own.
            weight: the tenant gets that many shares. The last one given holds for all its scopes (of one priority).
                They matter only while tasks of several tenants wait to be admitted. A loop of `await s.submit()` has
                at most one that waits.
            priority: the class, an int; use few different ones. A higher class goes first, but a lower one that waits
                gets every 17th admission or so. Default: that of the scope around it, 0 at first.

        Raises:
            QueueFull: when the block is entered, if `wait` does not suffice. Its `retry_after` says when to come back.
            TaskTooLarge: when it is entered, if there can never be so much.
            MemoryDeadlockError, SchedulerStalled: when it is entered, if no room will come.
            DeadlineExceeded: at the end of the block, if the deadline has passed.
            ValueError, TypeError: for an argument out of its range.
        """
        if deadline is not None:
            deadline = check_number("deadline", deadline, "seconds", none="no deadline")
        if weight is not None:
            weight = check_number("weight", weight, "shares", none="the tenant's own")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise TypeError(f"priority must be an int, the higher the sooner, not {type(priority).__name__}")
        if wait is not None:
            wait = check_wait(wait, reserve)
        if tenant is not None:
            hash(tenant)  # raises TypeError
            if isinstance(tenant, CoroutineType | GeneratorType | AsyncGeneratorType):
                if isinstance(tenant, CoroutineType):
                    tenant.close()  # else Python warns
                told = "tenant= got a coroutine or a generator, and each would be another tenant: give its result"
                raise TypeError(told)
        claimed = None if reserve is None else parse_bytes(reserve, "reserve")
        share = Share(tenant, weight, priority, deadline is not None)
        return Scope(self._runtime, self._core, name or "unnamed", claimed, wait, deadline, share)


async def _run(scope: Scope, fn: Callable[..., Any], examples: Sequence[Any], times: int) -> None:
    """Call a function so many times, and wait for the tensors that it returns."""
    given, found = list[Any](), list[Any]()
    try:
        given += [await scope.put(example) if isinstance(example, np.ndarray) else example for example in examples]
        for number in range(times):
            on_stream = partial(scope._runtime.on_stream, number)
            with on_stream():
                found.append(fn(*given))
            if isinstance(found[-1], Coroutine):  # also where a plain function is around it
                found[-1] = await _stepped(found[-1], on_stream)
            elif isinstance(found[-1], Generator | AsyncGenerator):
                raise TypeError(f"{label_of(fn)} gives a generator, of which nothing has run: warm up what reads it")
        if tensors := tensors_in(found):
            await gather(*tensors)
    finally:
        tensors = []
        given.clear()  # an exception holds this frame
        found.clear()


@coroutine
def _stepped(steps: Coroutine[Any, Any, Any], around: Callable[[], AbstractContextManager[None]]) -> Any:
    """Await a coroutine, each step of which runs within a context."""
    go_on: Callable[[], Any] = partial(steps.send, None)
    while True:
        with around():
            try:
                waits_for = go_on()
            except StopIteration as end:
                return end.value
        try:
            go_on = partial(steps.send, (yield waits_for))
        except BaseException as error:  # a cancellation, or the end of a generator
            go_on = partial(steps.throw, error)


class Timeout:
    """Cancels the body of a block in this asyncio task after some seconds, as `asyncio.timeout` does, with one
    difference: a body that stands at a `yield` of an async generator is cancelled when it goes on. Until then the task
    is its consumer's.

    Args:
        stop: called once, if they pass while the body stands there.

    Attributes:
        passed: whether they have passed.
        generator: the identity of the frame of the innermost async generator that the block is in, if there is one.
        timer: the next look. Cancelling it lifts the deadline.
    """

    def __init__(self, seconds: float, stop: Callable[[], None]) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a scope with a deadline cancels its asyncio task, and none runs here: enter it in one")
        self.passed: bool = False
        self.generator: int | None = None
        self._task, self._cancelling, self._cancelled, self._stop = task, task.cancelling(), False, stop
        self.timer: asyncio.TimerHandle = task.get_loop().call_later(seconds, self._pass)

    def end(self) -> bool:
        """The block is left. Returns whether its body was cancelled, by nobody else."""
        self.timer.cancel()
        return self._cancelled and self._task.uncancel() <= self._cancelling

    def _pass(self) -> None:
        first, self.passed = not self.passed, True
        if self.generator is None or awaits(self._task, self.generator):
            self._cancelled = self._task.cancel()
            return
        if first:
            self._stop()
        if not self._task.done():
            self.timer = self._task.get_loop().call_later(_AGAIN, self._pass)


@dataclass(eq=False, repr=False)
class Scope(Submitter, OnlyAsync):
    """A group of tasks that is waited for, reported on and cancelled together. Made by `s.scope()`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         try:
    ...             async with s.scope(name="request 42") as scope:
    ...                 task = await scope.submit(int, "no number")
    ...         except* ValueError as errors:
    ...             print(errors.message)
    ...         print(scope)
    >>> asc.run(main)
    scope 'request 42': 1 task failed, and nobody awaited them
    Scope('request 42', closed)
    """

    _runtime: Runtime
    _around: Callable[[], CoreScope]  # and not a scheduler, which closes when nothing refers to it
    _name: str
    _reserve: int | None
    _wait: float | None
    _deadline: float | None
    _share: Share
    _takes_turn: bool = True  # whether entering passes through the loop; False where what follows does so in any case
    _cancels: bool = True  # whether its body is cancelled at the deadline; False where somebody else does that
    _timeout: Timeout | None = None  # while it is entered, if there is a deadline
    _inner: CoreScope | None = None
    _link: Ambient | None = None  # once it is entered: not while it waits for its reserve

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    async def grow(self, nbytes: int | str) -> None:
        """Add to the reserve of this scope. Waits for room, ahead of new scopes of its priority class.

        Use it for something that grows page by page, such as the cache of a sequence of tokens. A page is claimed when
        it is needed, so more sequences fit than if each reserved its maximum. (A stepper does so for its members
        between their steps: see its `reserve`.)

        Scopes under one limit that grow may come to wait for each other. When all of them that have grown wait to grow
        further, the youngest gets Preempted at once. It gives its pages back by leaving its scope. The youngest is the
        one of the lowest priority class whose reserve was granted last: it mostly has least to lose. It gets Preempted
        also when another of them goes on, if a quarter of a second brings no room. Older scopes are preempted later. So
        each comes to its end, if those that start over reserve what they had (as with wound-wait: Rosenkrantz, Stearns
        and Lewis, ACM Transactions on Database Systems 3, 1978). The exception is raised wherever `grow` is awaited, on
        any asyncio task of the loop. Other holders of bytes are never preempted: a scope that alone waits to grow waits
        until there is room.

        Cancelling it, or leaving the scope meanwhile, takes the claim back. The reserve from before stays.

        >>> async def main():
        ...     async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        ...         async with s.scope(name="cache", reserve=1000) as cache:
        ...             first = await cache.put(np.ones(100))
        ...             await cache.grow(1000)
        ...             second = await cache.put(np.ones(100))
        ...             return s.statistics().bytes_reserved
        >>> asc.run(main)
        2000

        Args:
            nbytes: how much to add to the reserve: bytes, or text such as "1 MiB".

        Raises:
            Preempted: if this scope is the one to give its reserve back.
            TaskTooLarge: if the limit around it does not hold so much, even with nothing else there.
            MemoryDeadlockError, SchedulerStalled: if no room will come.
            TaskCancelled: if the scope was left meanwhile.
            RuntimeError: if the scope has no reserve.
        """
        runtime, core, more = self._runtime, self._core(), parse_bytes(nbytes, "nbytes")
        around = core.account_around
        if around is None:
            raise RuntimeError(f"scope {self._name!r} has no reserve to grow: open it by `s.scope(reserve=...)`")
        check_reserve(core.reserve + more, around.limit, f"scope {self._name!r}, grown by {more:,} bytes,")
        await asyncio.sleep(0)
        self._entered()  # raises, if it was left
        engine, claimed = runtime.engine, None
        growth = engine.scopes.open_growth(core, f"growth of {self._name}")
        try:
            claimed = await self._claim(growth, f"scope {self._name!r}, to grow,", more)
            self._entered()
            engine.grow_reserve(core, claimed)
        finally:
            del claimed  # an exception holds this frame
            engine.scopes.close_growth(core, growth)
            runtime.dispatch()

    async def __aenter__(self) -> Self:
        runtime, seconds, until = self._runtime, self._deadline, inf
        engine, core = runtime.engine, None
        if self._inner is not None:
            raise RuntimeError("a scope is entered once: make another with `s.scope()`")
        if seconds is not None:
            until = monotonic() + seconds
            if self._cancels:
                self._timeout = Timeout(seconds, self._stop)
        try:
            core = self._inner = engine.scopes.open(self._name, self._around(), self._share)
            if self._takes_turn:
                await asyncio.sleep(0)
            if self._reserve is not None:
                claimed = await self._claim(core, f"scope {self._name!r}", self._reserve, self._wait)
                engine.grant_reserve(core, claimed)
        except BaseException as error:
            if core is not None:
                engine.close_scope(core, self._left_by(error))
            await self._check_deadline(error)
            raise
        core.deadline = until
        self._link = enter(runtime, core, asyncio.current_task())
        if self._timeout is not None and self._link.frames:
            self._timeout.generator = self._link.frames[0]
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        core, link = self._inner, self._link
        if core is None or link is None or core.closed:  # `_entered`, written out
            core = self._entered()  # raises
        else:
            link.leave()
        if error is None and not (self._timeout or core.tasks or core.children or core.unseen or core.growing):
            self._runtime.engine.close_scope(core)  # nothing to wait for, or to tell
            if self._reserve:
                self._runtime.dispatch()  # others may wait for these bytes
            return
        what = f"scope {self._name!r}"
        if waiting := growths(core):
            self._runtime.cancel_all(waiting, f"the end of {what}")
        try:
            try:
                await self._finish_tasks(core, what, error)
            except BaseException as raised:
                await self._check_deadline(raised)
                raise
            await self._check_deadline(error)
        except DeadlineExceeded as late:
            finish(core, what, late)
            raise
        finish(core, what, error)

    async def _finish_tasks(self, core: CoreScope, what: str, error: BaseException | None) -> None:
        """Wait for unfinished tasks, up to the deadline if there is one."""
        runtime = self._runtime
        try:
            if error is None and not self._late():
                await drained(runtime, core)
            else:
                self._lift_deadline()
                self._cancel_tasks(core, f"{what}, which was left by {type(error).__name__}")
                await shielded(runtime, core)
        except BaseException as raised:
            error = raised
            self._cancel_tasks(core, f"{what}, which was cancelled")
            await shielded(runtime, core)
            raise
        finally:
            if not core.tasks:
                runtime.engine.close_scope(core, self._left_by(error))
                runtime.dispatch()
            del error  # it holds this frame

    def _cancel_tasks(self, core: CoreScope, by: str) -> None:
        self._runtime.cancel_all(core.unfinished(), self._by_deadline() if self._late() else by)

    def _stop(self) -> None:
        """The deadline passes while the body stands at a `yield`: end the scope's own tasks, and nobody else's."""
        if self._inner is not None:
            self._runtime.cancel_all(list(self._inner.tasks), self._by_deadline())

    def _by_deadline(self) -> str:
        return f"the deadline of scope {self._name!r} ({self._deadline:g} s)"

    def _running(self) -> list[Task]:
        """The tasks in it, and in the scopes in it, that hold a slot."""
        return [] if self._inner is None else launched(self._inner)

    def _lift_deadline(self) -> None:
        """Drop the deadline, unless it has passed."""
        if self._late():
            return
        if self._timeout is not None:
            self._timeout.timer.cancel()
        if self._inner is not None:
            self._inner.deadline = inf

    def _left_by(self, error: BaseException | None) -> BaseException | None:
        """What an observer is told of the end of the scope."""
        cancelled = error is None or isinstance(error, asyncio.CancelledError)
        return self._exceeded() if cancelled and self._late() else error

    def _late(self) -> bool:
        return self._timeout is not None and self._timeout.passed

    async def _check_deadline(self, error: BaseException | None) -> None:
        """The scope is left: by `error`, or normally if that is None.

        Raises:
            DeadlineExceeded: if the deadline has passed, unless the scope is left for another reason than its
                cancellation.
        """
        timeout, self._timeout = self._timeout, None  # it holds the asyncio task, perhaps a traceback
        if timeout is None:
            return
        # If the body was not cancelled, it ignored its cancellation, or ended before it came.
        told = timeout.passed and (error is None or isinstance(error, TaskCancelled))
        if timeout.end() and isinstance(error, asyncio.CancelledError):
            told = True
        elif timeout.passed and isinstance(error, asyncio.CancelledError):  # so somebody else cancels, too
            await anyio.lowlevel.checkpoint_if_cancelled()  # a scope of anyio only takes a cancellation that it made
        del timeout
        if told:
            raise self._exceeded() from error

    def _exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"scope {self._name!r} passed its deadline of {self._deadline:g} s, and its unfinished tasks were"
            " cancelled: allow more with `s.scope(deadline=)`, or do less in it"
        )

    def _core(self) -> CoreScope:
        self._runtime.check()
        return self._entered()

    def _entered(self) -> CoreScope:
        if self._inner is None or self._link is None:
            raise RuntimeError("the scope is not entered yet: use `async with s.scope() as scope`")
        if self._inner.closed:
            raise SchedulerClosed(
                f"scope {self._name!r} is closed: submit inside its `async with`, or through another scope"
            )
        return self._inner

    def __repr__(self) -> str:
        core, tenant = self._inner, self._share.tenant
        state = "not entered"
        if core is not None:
            state = "closed" if core.closed else f"{sum(len(scope.tasks) for scope in core.tree())} unfinished"
        whose = "" if tenant is None else f"tenant={tenant!r}, "
        until = "" if self._deadline is None else f"deadline={self._deadline:g} s, "
        return f"Scope({self._name!r}, {whose}{until}{state})"
