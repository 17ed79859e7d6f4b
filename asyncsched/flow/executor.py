"""A scheduler as an executor of `concurrent.futures`: the functions it is given are tasks like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ..runtime.runtime import Runtime, running_loop
from .tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")


class SchedulerExecutor(Executor):
    """Made by `s.as_executor()`. `submit` may be called on any thread, and never waits: what there is no room for does.

    Cancelling a future that waits for its admission cancels the task. `shutdown` refuses new work, and leaves the
    scheduler open.
    """

    def __init__(self, tasks: Tasks, runtime: Runtime) -> None:
        self._tasks = tasks
        self._runtime = runtime
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` on a stream. Tensors among the arguments are replaced by their arrays."""
        if self._closed:
            raise RuntimeError("the executor was shut down: make another by `s.as_executor()`")
        future: Future[Any] = Future()
        called = partial(fn, **kwargs) if kwargs else fn
        start = partial(self._start, future, called, args, getattr(fn, "__qualname__", None))
        loop = self._runtime.loop
        if loop is None or loop.is_closed():
            self._runtime.refuse()
        elif running_loop() is loop:
            self._runtime.check()
            start()
        else:
            loop.call_soon_threadsafe(start)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work. Waits for nothing: leaving the scheduler does."""
        self._closed = True
        if cancel_futures and (loop := self._runtime.loop) is not None:
            for task in list(self._running):
                loop.call_soon_threadsafe(task.cancel)

    def _start(self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> None:
        task = asyncio.create_task(self._run(future, fn, args, name))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(task.cancel) if done.cancelled() else None)

    async def _run(self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> None:
        try:
            result = await self._tasks.call(fn, *args, name=name)
        except asyncio.CancelledError:
            future.cancel()
            future.set_running_or_notify_cancel()
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(result)
