"""Waiting on through cancellations, for what must not be left half done.

asyncio delivers a cancellation once, as a `CancelledError` at the `await`; anyio (and so Starlette) delivers its own
again at every iteration of the loop while its scope is cancelled. So one has to be caught and kept until the wait is
over, and the other kept out by a shield: without it the wait would be begun anew each time, in a busy loop.

What is waited for is always a task that nobody else knows. So only one thing cancels it: the end of the loop, where
`asyncio.run` cancels every task there is, after a second Ctrl-C say. Then there is nothing to wait for any more, and a
thread that blocks for ever keeps no program from ending.
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
    """For the body of a task group, which would keep a Ctrl-C that was raised here until its threads have ended: the
    loop is given it at once, and the group a cancellation."""
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
                task.exception()  # seen: the cancellation goes before it
            raise
        return task.result()
    finally:
        del task  # an exception holds this frame, and the task the exception
