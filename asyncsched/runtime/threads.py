"""Threads for work that may block, and waits that outlast cancellation.

Work that belongs to no stream runs in threads: reading a source, a stage's plain function, opening a device. These
threads are daemons. Python waits for the threads of anyio and of `concurrent.futures` before it exits: a source that
blocks for ever would keep an interrupted program from ending. Threads are not reused: starting one takes a tenth of a
millisecond, and each runs for an epoch, or once.

The package waits for work that must not be left half done. asyncio delivers a cancellation once, as a
`CancelledError` at the `await`. anyio (and so Starlette) delivers its own again at every iteration of the loop while
its scope is cancelled. So asyncio's is caught and kept until the wait is over, and a shield keeps anyio's out:
otherwise the wait would begin anew each time, in a busy loop. The awaited task is always our own, and nobody else
refers to it. So only the end of the loop cancels it, when `asyncio.run` cancels every task, as after a second Ctrl-C.
Then the wait ends, and a thread that blocks for ever does not keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakSet

import anyio

from .._system import start_thread
from ..errors import passable

T = TypeVar("T")
YIELDED: Final = 5  # added to the thread's niceness: it gets a third of the weight of others

# For the question whether anything may still happen in a loop: see `loop_work`.
running_code: WeakSet[threading.Thread] = WeakSet()  # the package's threads that run others' code
under_way: WeakSet[Any] = WeakSet()  # jobs of streams, which are no tasks in flight
_waiting: dict[int, SimpleQueue[Any]] = {}  # the queue for which a thread waits, by the thread's number


def taken(queue: SimpleQueue[T]) -> T:
    """Take the next thing from a queue. While this waits, the thread counts as idle."""
    me = threading.get_ident()
    _waiting[me] = queue
    try:
        return queue.get()
    finally:
        del _waiting[me]


def waits_for_work(ident: int | None) -> bool:
    """Whether a thread waits in `taken`, and nothing is on its way to it. On any thread."""
    queue = _waiting.get(ident or 0)
    return queue is not None and queue.empty()


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Run a function on a thread of its own, in a copy of this context, and wait for its end.

    A cancellation by an anyio scope waits for the end, too. One by asyncio ends the wait at once and leaves the thread
    running; `to_its_end` waits on.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def settle(error: BaseException | None, result: T | None) -> None:
        if ended.done():  # nobody waits any more
            return
        if error is not None:
            ended.set_exception(passable(error, f"{name} raised"))
        else:
            ended.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        error, result = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        try:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, error, result)
        finally:
            del error, result  # the error's traceback holds this frame

    context = contextvars.copy_context()
    running_code.add(start_thread(run, name))
    try:
        with anyio.CancelScope(shield=True):
            await ended
        return ended.result()
    finally:
        if ended.done() and not ended.cancelled():
            del ended  # no cycle: an exception holds this frame, and `ended` the exception


def yield_to_streams() -> None:
    """Give this thread, and the threads it starts, a smaller share of the processors if there are too few.

    For work done ahead: with two threads that decode and one that trains on two processors, the latter would get two
    thirds of one processor. Has an effect on Linux, where threads have a niceness of their own.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + YIELDED)


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, whoever cancels meanwhile. Then raise the last cancellation."""
    await outlast(lambda: not task.done(), lambda: asyncio.wait([task]))


async def outlast(lasts: Callable[[], bool], change: Callable[[], Awaitable[object]]) -> None:
    """Await one change after the other while `lasts()`, whoever cancels meanwhile. Then raise the last cancellation."""
    if not lasts():  # as mostly: then no scope is needed
        return
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while lasts():
            try:
                await change()
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # its traceback holds this frame


def pass_interrupt(error: BaseException) -> None:
    """If an exception in the body of a task group is a Ctrl-C, let it leave the loop at once, and cancel the group.

    Otherwise the group would hold the Ctrl-C back until its threads have ended.
    """
    if isinstance(error, KeyboardInterrupt):
        asyncio.get_running_loop().call_soon(_raise, error)
        raise asyncio.CancelledError from None


def _raise(error: BaseException) -> NoReturn:
    raise error


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in a task of its own, to its end even if cancelled, so that its effects can be undone.

    If cancelled, drops the exception that the coroutine raised.
    """
    task = asyncio.create_task(work)
    try:
        try:
            await ended(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                task.exception()  # marks it as retrieved: the cancellation takes precedence
            raise
        return task.result()
    finally:
        del task  # no cycle: an exception holds this frame, and the task holds the exception
