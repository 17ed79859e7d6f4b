"""Schedulers for code that cannot `await`: each has an event loop in a thread of its own.

It is started at its first use, and closed at exit. A call is carried out on the loop's thread while the caller waits. A
child of a fork starts its own at its first use.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from ._interrupts import Lock
from ._system import log, start
from .devices.contract import in_stream_thread
from .errors import ImplicitBarrierError, QueueFull, SchedulerClosed
from .runtime.life import running_loop
from .runtime.loops import Answer, answered, ask, ask_async
from .runtime.runtime import Runtime
from .runtime.threads import running_code
from .runtime.waiting import drained
from .scheduler import Scheduler

T = TypeVar("T")


class Background:
    """An open scheduler with its thread."""

    scheduler: Scheduler
    runtime: Runtime

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Start the thread, and wait until the scheduler is open."""
        self._context = contextvars.Context()  # outside the caller's scopes
        self._loop: asyncio.AbstractEventLoop | None = None  # set once it is open
        self._closing = False
        self._lock = Lock()  # held to ask the loop, and to end it: a loop drops what it is asked as it is closed
        self._reports: Answer[None] = SimpleQueue()  # the report that it is open; then, that it has closed
        self._thread = threading.Thread(target=self._run, args=(options,), name=f"asyncsched {name}", daemon=True)
        running_code.add(self._thread)
        try:
            start(self._thread)
            answered(self._reports)
        except BaseException:  # perhaps a signal's: nobody would close it
            self.end()
            raise

    def _run(self, options: Mapping[str, Any]) -> None:
        try:
            asyncio.run(self._serve(options))
            self._reports.put((None, None))
        except BaseException as error:
            self._reports.put((None, error))

    async def _serve(self, options: Mapping[str, Any]) -> None:
        async with Scheduler(**options) as self.scheduler:
            self.runtime = self.scheduler._runtime
            self._ended = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            self._reports.put((None, None))
            if not self._closing:  # read after `_loop` is written: see `end`
                await self._ended.wait()

    def issue(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function of tensors on the loop's thread, and return its result. Waits first if the backlog is
        full."""
        while True:
            try:
                return self._answered(lambda loop: ask(loop, partial(fn, *args, **options), self._context))
            except QueueFull:
                self.wait(drained, self.runtime, self.runtime.engine.root)

    def issue_after(self, wait: Callable[[Runtime], Coroutine[Any, Any, None]], fn: Callable[..., T], *args: Any) -> T:
        """Do the same as `issue`, at the end of a wait, before other code runs on the loop."""

        async def after() -> T:
            await wait(self.runtime)
            return self._context.run(fn, *args)

        return self.wait(after)

    def wait(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function on the scheduler's loop, block until it has ended, and return its result."""
        return self._answered(lambda loop: ask_async(loop, partial(fn, *args)))

    def _answered(self, question: Callable[[asyncio.AbstractEventLoop], Answer[T]]) -> T:
        """Put a question to the loop, and wait for the answer.

        Raises:
            SchedulerClosed: if another thread has closed the scheduler.
        """
        with self._lock:
            if self._loop is None or self._closing:
                raise SchedulerClosed("another thread has closed this scheduler: call again, for the one in use")
            answer = question(self._loop)
        return answered(answer)

    def close(self) -> None:
        """Wait for everything submitted, and end the thread.

        Raises:
            ExceptionGroup: of the failures that nobody has seen.
        """
        self.end()
        self._thread.join()
        try:
            answered(self._reports)
        except BaseExceptionGroup as group:
            said = group.message.replace("nobody awaited them", "nobody has read their results")
            raise BaseExceptionGroup(said, group.exceptions) from None

    def end(self) -> None:
        """Close without waiting. A second call does nothing."""
        with self._lock:
            self._closing = True
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._ended.set)


class Kept:
    """The one scheduler of a room's functions, kept open between their calls.

    Args:
        name: the room, for messages.
        options: those of `Scheduler`, until others are set.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._options: Mapping[str, Any] = options or {}
        self._lock = Lock()
        self._current: Background | None = None
        self._parents: list[Background | None] = []  # in the child of a fork: the schedulers that its parents have open
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def get(self) -> Background:
        """The scheduler in use; started if there is none.

        Raises:
            ImplicitBarrierError: if the caller must not wait.
        """
        check_may_block(self._name)
        with self._lock:
            if self._current is None:
                self._current = Background(self._name, self._options)
            return self._current

    def replace(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Close the open scheduler, and use these options from now on. Returns the previous options."""
        check_may_block(f"{self._name}.using")
        found = None
        try:
            with self._lock:
                before, self._options = self._options, options
                found, self._current = self._current, None
            if found is not None:
                found.close()
        except BaseException:  # perhaps a signal's
            if found is not None:
                found.end()
            raise
        return before

    def _at_exit(self) -> None:
        try:
            self.replace(self._options)
        except ExceptionGroup as failures:
            log.error("%s: operations failed, and nobody has read their results: %s", self._name, failures.exceptions)

    def _after_fork(self) -> None:
        self._parents.append(self._current)  # dropping it would close it, and the child has no thread that could
        self._current, self._lock = None, Lock()


class Using:
    """Options of a kept scheduler. They are set at once.

    As a context manager, it restores the previous options at the end.

    Raises:
        TypeError, ValueError: for options that `Scheduler` refuses; then nothing has changed.
    """

    def __init__(self, kept: Kept, options: Mapping[str, Any]) -> None:
        Scheduler(**options)  # raises for wrong options before anything is closed
        self._kept, self._before = kept, kept.replace(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.replace(self._before)


def check_may_block(what: str) -> None:
    """Raise if the caller would block an event loop, or a stream that it may wait for."""
    if in_stream_thread():
        raise ImplicitBarrierError(
            f"{what} inside a task would wait for other tasks: pass arrays as arguments, and use NumPy on them there"
        )
    if running_loop() is not None:
        raise ImplicitBarrierError(
            f"{what} blocks, and an event loop runs on this thread (as in a notebook): run such code on another thread,"
            " for example by `asyncio.to_thread(fn)`, or use asyncsched's own functions"
        )
