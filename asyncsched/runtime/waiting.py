"""Small things to wait with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from .._core.model import Task
    from ..devices.contract import Job


class Countdown:
    """Settles a future when it was called `count` times, or, if eager, once with a task that failed."""

    __slots__ = ("count", "eager", "future")

    def __init__(self, count: int, future: asyncio.Future[None], eager: bool) -> None:
        self.count = count
        self.future = future
        self.eager = eager

    def __call__(self, ended: Task | Job) -> None:
        self.count -= 1
        if (self.count <= 0 or (self.eager and getattr(ended, "failure", None) is not None)) and not self.future.done():
            self.future.set_result(None)


class From(Awaitable[None]):
    """A generator as an awaitable."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, None, None]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, None]:
        return self._steps


async def to_its_end(function: Callable[[], None]) -> None:
    """Run a function on a worker thread. Cancelled, wait for it all the same, so that what it did can be undone."""
    work = asyncio.ensure_future(anyio.to_thread.run_sync(function))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, whoever cancels meanwhile; then let the cancellation through."""
    with anyio.CancelScope(shield=True):
        await insist(lambda: asyncio.wait([task]))


async def insist(wait: Callable[[], Awaitable[object]]) -> None:
    """Wait, anew after each cancellation; then let the cancellation through."""
    cancelled: asyncio.CancelledError | None = None
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


async def checkpoint() -> None:
    """Let others run once."""
    await From(_turn())


def _turn() -> Generator[Any, None, None]:
    yield
