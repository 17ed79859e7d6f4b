"""Waiting to the end in spite of cancellation, for what must not be left half done.

asyncio delivers a cancellation once, as a `CancelledError` at the `await`; anyio (and so Starlette) delivers its own
again at every iteration of the loop while its scope is cancelled. So asyncio's has to be caught and kept until the wait
is over, and anyio's kept out by a shield: without it the wait would begin anew each time, in a busy loop.

What is waited for is always a task of our own, to which nobody else has a reference. So only the end of the loop
cancels it, when `asyncio.run` cancels every task, as after a second Ctrl-C. Then the wait ends, and a thread that
blocks for ever does not keep the program from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import anyio

T = TypeVar("T")


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, whoever cancels meanwhile; then let the last cancellation through."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # its traceback holds this frame


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Around the body of a task group: a Ctrl-C inside leaves the loop at once, and cancels the group.

    By itself the group would hold it back until its threads have ended.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        asyncio.get_running_loop().call_soon(_raise, error)
        raise asyncio.CancelledError from None


def _raise(error: BaseException) -> NoReturn:
    raise error


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in a task of its own. Cancelled, wait for it all the same, so that what it did can be undone;
    what it raised is dropped then."""
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
