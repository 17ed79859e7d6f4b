"""Barriers: what every `await` of a tensor, a scope or a scheduler comes down to."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import anyio
import anyio.to_thread

from .._core.model import DONE, PENDING, Task, Value
from .._core.model import Scope as CoreScope
from ..devices.contract import Job
from ..errors import SchedulerClosed
from .runtime import INLINE_COPY, Runtime
from .waiting import Countdown, From, insist


def wait(
    runtime: Runtime, tasks: Sequence[Task], over: Callable[[Task], bool] = Task.settled, *, eager: bool = False
) -> Generator[Any, None, None]:
    """Wait until every task is `over`, or (`eager`) one has failed. Passes through the loop at least once.

    If cancelled, the tasks go on.
    """
    assert runtime.loop is not None
    future: asyncio.Future[None] = runtime.loop.create_future()
    count = Countdown(len(tasks), future, eager)
    for task in tasks:
        if task.waiters is None:
            task.waiters = [count]
        else:
            task.waiters.append(count)
        if over is _admitted:
            task.granted = count
    runtime.dispatch()
    try:
        for task in tasks:
            if over(task) and task.waiters is not None and count in task.waiters:
                task.waiters.remove(count)
                count(task)
        if future.done():
            yield
        else:
            if runtime.loop.is_closed():
                runtime.refuse()
            runtime.parked[future] = (asyncio.current_task(), tasks)
            yield from future
    finally:
        runtime.parked.pop(future, None)
        for task in tasks:
            if task.waiters is not None and count in task.waiters:
                task.waiters.remove(count)


def wait_admitted(runtime: Runtime, task: Task) -> Generator[Any, None, None]:
    """Wait until a task is launched, or has ended without."""
    return wait(runtime, (task,), _admitted)


async def copy_out(runtime: Runtime, value: Value) -> Any:
    """A host copy of a done value's array: small ones here, others on the copy stream. Costs no tracked bytes."""
    if runtime.forked:
        runtime.refuse()
    array = value.array
    device = value.device
    if device.inline and array.nbytes <= INLINE_COPY:
        return device.fetch(array)
    if runtime.closed:  # the copy stream is gone
        return await anyio.to_thread.run_sync(device.fetch, array)
    assert runtime.loop is not None
    future: asyncio.Future[None] = runtime.loop.create_future()
    job = Job(lambda: device.fetch(value.array))  # holds the value: nobody may write over it meanwhile
    job.waiters.append(Countdown(1, future, False))
    device.offload(job)
    await future
    error, job.error = job.error, None  # no cycle: its frames hold the job
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
    return job.result


async def drained(runtime: Runtime, scope: CoreScope, before: int) -> None:
    """Wait until every task of the scope numbered under `before` has physically ended."""
    runtime.dispatch()
    while tasks := [task for task in scope.unfinished() if task.seq < before]:
        # The youngest alone: a waiter on each would wake the loop for each.
        await From(wait(runtime, tasks[-1:], _ended))


async def shielded(runtime: Runtime, scope: CoreScope) -> None:
    """Wait until a scope's tasks have ended, whoever cancels meanwhile; then let the cancellation through."""
    await insist(lambda: drained(runtime, scope, sys.maxsize))


def block(runtime: Runtime, value: Value) -> None:
    """Block the calling thread, which runs no loop, until the value is there."""
    if runtime.forked:
        runtime.refuse()
    task, loop = value.task, runtime.loop
    if value.done or task is None:
        return
    if loop is None or not loop.is_running():
        raise SchedulerClosed("the value is pending and its event loop is not running: read it before the loop ends")
    ready = threading.Event()

    async def register() -> None:
        await From(wait(runtime, [task]))

    asyncio.run_coroutine_threadsafe(register(), loop).add_done_callback(lambda _: ready.set())
    while not ready.wait(1.0) and loop.is_running():
        pass
    if not value.done:
        raise SchedulerClosed("the value's event loop ended before it was there: read it before the loop ends")


def _admitted(task: Task) -> bool:
    return task.state != PENDING


def _ended(task: Task) -> bool:
    return task.state >= DONE
