"""Threads for what may block and belongs to no stream: reading a source, a stage's plain function, opening a device.

They are daemons. Those of anyio and of `concurrent.futures` are not, and Python waits for these before it exits: a
source that blocks for ever would keep a program from ending that was interrupted. They are not kept for the next time,
either: starting one takes a tenth of a millisecond, and who is here runs for an epoch, or once.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import anyio

from ..errors import passable

T = TypeVar("T")
YIELDED: Final = 5  # added to the thread's niceness: it gets a third of the weight of others


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Run a function on a thread of its own, in a copy of this context, and wait for its end.

    The cancellations of an anyio scope wait for it, too. One of asyncio's leaves it alone at once: for who wants to
    wait on there is `cancellation.to_its_end`.
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
            del error, result  # the traceback of the one holds this frame

    context = contextvars.copy_context()
    threading.Thread(target=run, name=f"asyncsched {name}", daemon=True).start()
    with anyio.CancelScope(shield=True):
        await ended
    return ended.result()


def yield_to_streams() -> None:
    """Have this thread, and what it starts, get less of the processors than others where there are too few for all.

    For what works ahead: with two threads that decode beside one that trains on two processors, the latter would get
    two thirds of one. Where the system gives threads a niceness of their own (Linux).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + YIELDED)
