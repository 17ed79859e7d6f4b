"""Barriers: what every `await` of a tensor, a scope or a scheduler comes down to."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import anyio
import anyio.to_thread

from ._core.scope import Scope as CoreScope
from ._core.task import DONE, PENDING, Task, Value
from .devices.contract import Job
from .driver import INLINE_COPY, Driver
from .errors import SchedulerClosed
from .waiting import Countdown, From, insist


def wait(
    driver: Driver, tasks: Sequence[Task], over: Callable[[Task], bool] = Task.settled, *, eager: bool = False
) -> Generator[Any, None, None]:
    """Wait until every task is `over`, or (`eager`) one has failed. Passes through the loop at least once.

    If cancelled, the tasks go on.
    """
    assert driver.loop is not None
    future: asyncio.Future[None] = driver.loop.create_future()
    count = Countdown(len(tasks), future, eager)
    for task in tasks:
        if task.waiters is None:
            task.waiters = [count]
        else:
            task.waiters.append(count)
        if over is _admitted:
            task.granted = count
    driver.pump()
    try:
        for task in tasks:
            if over(task) and task.waiters is not None and count in task.waiters:
                task.waiters.remove(count)
                count(task)
        if future.done():
            yield
        else:
            if driver.loop.is_closed():
                driver.refuse()
            driver.parked[future] = (asyncio.current_task(), tasks)
            yield from future
    finally:
        driver.parked.pop(future, None)
        for task in tasks:
            if task.waiters is not None and count in task.waiters:
                task.waiters.remove(count)


def wait_admitted(driver: Driver, task: Task) -> Generator[Any, None, None]:
    """Wait until a task is launched, or has ended without."""
    return wait(driver, (task,), _admitted)


async def copy_out(driver: Driver, value: Value) -> Any:
    """A host copy of a done value's array: small ones here, others on the copy stream. Costs no tracked bytes."""
    if driver.forked:
        driver.refuse()
    array = value.array
    device = value.device
    if device.inline and array.nbytes <= INLINE_COPY:
        return device.fetch(array)
    if driver.closed:  # the copy stream is gone
        return await anyio.to_thread.run_sync(device.fetch, array)
    assert driver.loop is not None
    future: asyncio.Future[None] = driver.loop.create_future()
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


async def drained(driver: Driver, scope: CoreScope, before: int) -> None:
    """Wait until every task of the scope numbered under `before` has physically ended."""
    driver.pump()
    while tasks := [task for task in scope.unfinished() if task.seq < before]:
        # The youngest alone: a waiter on each would wake the loop for each.
        await From(wait(driver, tasks[-1:], _ended))


async def shielded(driver: Driver, scope: CoreScope) -> None:
    """Wait until a scope's tasks have ended, whoever cancels meanwhile; then let the cancellation through."""
    await insist(lambda: drained(driver, scope, sys.maxsize))


def block(driver: Driver, value: Value) -> None:
    """Block the calling thread, which runs no loop, until the value is there."""
    if driver.forked:
        driver.refuse()
    task, loop = value.task, driver.loop
    if value.done or task is None:
        return
    if loop is None or not loop.is_running():
        raise SchedulerClosed("the value is pending and its event loop is not running: read it before the loop ends")
    ready = threading.Event()

    async def register() -> None:
        await From(wait(driver, [task]))

    asyncio.run_coroutine_threadsafe(register(), loop).add_done_callback(lambda _: ready.set())
    while not ready.wait(1.0) and loop.is_running():
        pass
    if not value.done:
        raise SchedulerClosed("the value's event loop ended before it was there: read it before the loop ends")


def _admitted(task: Task) -> bool:
    return task.state != PENDING


def _ended(task: Task) -> bool:
    return task.state >= DONE
