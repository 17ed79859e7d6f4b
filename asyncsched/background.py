"""Schedulers for code that cannot `await`: each with its event loop in a thread of its own.

One is started at its first use, and closed at exit. Whatever a caller asks for is done on the loop's thread while the
caller waits. A child of a fork starts its own at its first use.
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
from typing import Any, Final, Self, TypeVar

from ._locks import Lock
from ._log import Log
from .devices.contract import in_stream_thread
from .errors import ImplicitBarrierError, QueueFull
from .runtime.life import running_loop
from .runtime.loops import Answer, answered, ask, ask_async
from .runtime.runtime import Runtime
from .runtime.waiting import drained
from .scheduler import Scheduler

log: Final = Log("asyncsched")
T = TypeVar("T")


class Background:
    """An open scheduler with its thread."""

    scheduler: Scheduler
    runtime: Runtime

    def __init__(self, name: str) -> None:
        self._name = f"asyncsched {name}"
        self._context = contextvars.Context()  # outside of whatever scope its caller is in
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is open
        self._closing = False
        self._told: Answer[None] = SimpleQueue()  # that it is open; then, that it has closed

    def open(self, options: Mapping[str, Any]) -> None:
        """Start the thread, and wait until the scheduler is open."""
        self._thread = threading.Thread(target=self._run, args=(options,), name=self._name, daemon=True)
        try:
            self._thread.start()
            answered(self._told)
        except BaseException:  # a signal's, perhaps: nobody would close it
            self.end()
            raise

    def _run(self, options: Mapping[str, Any]) -> None:
        try:
            asyncio.run(self._serve(options))
            self._told.put((None, None))
        except BaseException as error:
            self._told.put((None, error))

    async def _serve(self, options: Mapping[str, Any]) -> None:
        async with Scheduler(**options) as self.scheduler:
            self.runtime = self.scheduler._runtime
            self._ended = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            self._told.put((None, None))
            if not self._closing:  # read after `_loop` is written: see `end`
                await self._ended.wait()

    def issue(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """What a function of tensors gives, called on the loop's thread. Where the backlog is full it waits first."""
        assert self._loop is not None
        while True:
            try:
                return answered(ask(self._loop, partial(fn, *args, **options), self._context))
            except QueueFull:
                self.wait(drained, self.runtime, self.runtime.engine.root)

    def issue_after(self, wait: Callable[[Runtime], Coroutine[Any, Any, None]], fn: Callable[..., T], *args: Any) -> T:
        """The same, called at the end of a wait, before anything else is."""

        async def after() -> T:
            await wait(self.runtime)
            return self._context.run(fn, *args)

        return self.wait(after)

    def wait(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function on the scheduler's loop, block until it has ended, and return its result."""
        assert self._loop is not None
        return answered(ask_async(self._loop, partial(fn, *args)))

    def close(self) -> None:
        """Wait for all that was submitted, and end the thread.

        Raises:
            ExceptionGroup: of the failures that nobody has seen.
        """
        self.end()
        self._thread.join()
        try:
            answered(self._told)
        except BaseExceptionGroup as group:
            said = group.message.replace("nobody awaited them", "nobody has read their results")
            raise BaseExceptionGroup(said, group.exceptions) from None

    def end(self) -> None:
        """Close without waiting for it. A second call does nothing."""
        self._closing = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._ended.set)


class Kept:
    """The one scheduler of a room's functions, which is kept open between their calls.

    Args:
        name: whose it is, for messages.
        options: of `Scheduler`, as long as nobody has set others.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._options: Mapping[str, Any] = options or {}
        self._lock = Lock()
        self._current: Background | None = None
        self._parents: list[Background | None] = []  # in a child of a fork: what its parents have open
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def get(self) -> Background:
        """The one in use, started if there is none.

        Raises:
            ImplicitBarrierError: where the caller must not wait.
        """
        check_may_block(self._name)
        found = self._current
        if found is None:
            with self._lock:
                if self._current is None:
                    opened = Background(self._name)
                    opened.open(self._options)
                    self._current = opened
                found = self._current
        return found

    def replace(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Close what is open, and use these options from now on. Returns those before."""
        check_may_block(f"{self._name}.using")
        found = None
        try:
            with self._lock:
                before, self._options = self._options, options
                found, self._current = self._current, None
            if found is not None:
                found.close()
        except BaseException:  # a signal's, perhaps
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
        self._parents.append(self._current)  # to be dropped it would have to be closed, by a thread that is not here
        self._current, self._lock = None, Lock()


class Using:
    """Options of a kept scheduler: set at once, and as a context manager those before come back at the end.

    Raises:
        TypeError, ValueError: for options that `Scheduler` refuses; nothing has changed then.
    """

    def __init__(self, kept: Kept, options: Mapping[str, Any]) -> None:
        Scheduler(**options)  # raises what is wrong with them before anything is closed
        self._kept, self._before = kept, kept.replace(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.replace(self._before)


def check_may_block(what: str) -> None:
    """Raise where a caller would hold up an event loop, or a stream that it may wait for."""
    if in_stream_thread():
        raise ImplicitBarrierError(
            f"{what} inside a task would wait for other tasks: pass arrays as arguments, and use NumPy on them there"
        )
    if running_loop() is not None:
        raise ImplicitBarrierError(
            f"{what} blocks, and an event loop runs on this thread (as in a notebook): run such code on another thread,"
            " as by `asyncio.to_thread(fn)`, or use asyncsched's own functions"
        )
