"""Waiting on through cancellations, for what must not be left half done.

asyncio delivers a cancellation once, as a `CancelledError` at the `await`; anyio (and so Starlette) delivers its own
again at every iteration of the loop while its scope is cancelled. So one has to be caught and kept until the wait is
over, and the other kept out by a shield: without it the wait would be begun anew each time, in a busy loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread


async def insist(wait: Callable[[], Awaitable[object]]) -> None:
    """Wait, anew after each cancellation; then let the last one through."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while True:
            try:
                await wait()
                break
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # its traceback holds this frame


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait until a task has ended, whoever cancels meanwhile; then let the cancellation through."""
    await insist(lambda: asyncio.wait([task]))


async def to_its_end(function: Callable[[], None]) -> None:
    """Run a function on a worker thread. Cancelled, wait for it all the same, so that what it did can be undone."""
    work = asyncio.ensure_future(anyio.to_thread.run_sync(function))
    try:
        await ended(work)
    except asyncio.CancelledError:
        if not work.cancelled():
            work.exception()  # seen: the cancellation goes before it
        raise
    work.result()
