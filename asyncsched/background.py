"""Schedulers for code that cannot `await`: each with its event loop in a thread of its own.

One is started at its first use, and closed at exit. Whatever a caller asks for is done on the loop's thread while the
caller waits. A child of a fork starts its own at its first use.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from .devices.contract import in_stream_thread
from .devices.host.log import Log
from .errors import ImplicitBarrierError, QueueFull
from .runtime.life import running_loop
from .runtime.runtime import Runtime
from .runtime.waiting import drained
from .scheduler import Scheduler

log = Log("asyncsched")
T = TypeVar("T")


class Background:
    """An open scheduler with its thread."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        from anyio.from_thread import start_blocking_portal

        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(name=f"asyncsched {name}"))
            self.scheduler: Scheduler = stack.enter_context(
                self._portal.wrap_async_context_manager(Scheduler(**options))
            )
            self._leave = stack.pop_all()
        self.runtime: Runtime = self.scheduler._runtime
        assert self.runtime.loop is not None
        self._loop = self.runtime.loop
        self._context = contextvars.Context()  # outside of whatever scope its caller is in

    def issue(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """What a function of tensors gives, called on the loop's thread. Where the backlog is full it waits first."""
        while True:
            found: Future[T] = Future()
            self._loop.call_soon_threadsafe(_run, found, fn, args, options, context=self._context)
            try:
                return found.result()
            except QueueFull:
                self.wait(drained, self.runtime, self.runtime.engine.root)

    def wait(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run a coroutine function on the scheduler's loop, block until it has ended, and return its result."""
        return self._portal.call(fn, *args)

    def close(self) -> None:
        """Wait for all that was submitted, and end the thread.

        Raises:
            ExceptionGroup: of the failures that nobody has seen.
        """
        self._leave.close()


def _run(found: Future[Any], fn: Callable[..., Any], args: Any, options: Any) -> None:
    try:
        found.set_result(fn(*args, **options))
    except BaseException as error:
        found.set_exception(error)
    finally:
        del found  # its exception holds this frame


class Kept:
    """The one scheduler of a room's functions, which is kept open between their calls.

    Args:
        name: whose it is, for messages.
        options: of `Scheduler`, as long as nobody has set others.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._options: Mapping[str, Any] = options or {}
        self._lock = threading.Lock()
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
                    self._current = Background(self._name, self._options)
                found = self._current
        return found

    def replace(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Close what is open, and use these options from now on. Returns those before."""
        check_may_block(f"{self._name}.using")
        with self._lock:
            before, self._options = self._options, options
            found, self._current = self._current, None
        if found is not None:
            found.close()
        return before

    def _at_exit(self) -> None:
        try:
            self.replace(self._options)
        except ExceptionGroup as failures:
            log.error("%s: operations failed, and nobody has read their results: %s", self._name, failures.exceptions)

    def _after_fork(self) -> None:
        self._parents.append(self._current)  # to be dropped it would have to be closed, by a thread that is not here
        self._current, self._lock = None, threading.Lock()


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
            f"{what} blocks, and an event loop runs on this thread (as in a notebook): use asyncsched's own functions"
            " and `await`, or run such code by `await asyncio.to_thread(fn)`"
        )
