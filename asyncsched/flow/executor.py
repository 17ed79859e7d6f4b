"""A scheduler as an executor of `concurrent.futures`: the functions it is given are tasks like any other.

Theory of operation. `submit` may be called on any thread, but a function joins the backlog on the loop's thread. If
that is the caller's, it does so at once, so that leaving the scheduler in the same step waits for it. An asyncio task
then waits for it, as `call` does. A future must be told exactly once that its function begins, or was cancelled before.
The stream's thread tells it when it begins the function; the loop tells it when the task ends without having begun. Of
the two only the first to take the turn does so (`_take_turn`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from .._arguments import is_coroutine_function, label_of
from ..errors import ImplicitBarrierError, passable
from ..runtime.life import running_loop
from ..runtime.runtime import Runtime
from .tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")


class SchedulerExecutor(Executor):
    """Made by `s.as_executor()`. `submit` may be called on any thread, and never waits. A function waits while there is
    no room for it.

    Cancelling a future whose function has not begun cancels the task. (This process does not learn when a function on a
    cluster begins: it counts as not begun until it ends.) `shutdown` refuses new work, and leaves the scheduler open.
    """

    def __init__(self, tasks: Tasks, runtime: Runtime) -> None:
        self._tasks = tasks
        self._runtime = runtime
        self._futures: set[Future[Any]] = set()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` on a stream. Tensors among the arguments are replaced by their arrays.

        Raises:
            RuntimeError: after `shutdown`.
            SchedulerClosed: if the scheduler is closed.
        """
        if self._closed:
            raise RuntimeError("the executor was shut down: make another by `s.as_executor()`")
        if is_coroutine_function(fn):
            raise TypeError(f"{fn} is a coroutine function: await it; streams run plain functions")
        loop, future = self._runtime.loop, _Future()
        start = partial(self._start, _Work(fn, future), future, args, kwargs)
        if loop is None or loop.is_closed():
            self._runtime.refuse()
        elif running_loop() is loop:
            self._runtime.check()
            start()
        else:
            loop.call_soon_threadsafe(start)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work. With `wait`, wait for what was submitted; but not on the loop's thread, where leaving the
        scheduler waits."""
        self._closed = True
        futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait and (running_loop() is None or running_loop() is not self._runtime.loop):
            wait_for(futures)

    def _start(self, work: _Work, future: Future[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        loop, call = asyncio.get_running_loop(), None
        ended: asyncio.Future[Any]
        try:
            call = self._tasks._begin_call(work, args, kwargs, name=work.name)
            ended = loop.create_task(call)
        except Exception as error:  # perhaps a task factory's; the caller may be on another thread
            if call is not None:
                call.close()
            ended = loop.create_future()
            ended.set_exception(error)
        ended.add_done_callback(work.end)

        def cancel(future: Future[Any]) -> None:
            if future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(ended.cancel)

        future.add_done_callback(cancel)


class _Future(Future[Any]):
    """Refuses to block an event loop, which may be the very one that it waits for."""

    def result(self, timeout: float | None = None) -> Any:
        self._check("result()", timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check("exception()", timeout)
        error = super().exception(timeout)
        if error is not None and sys._getframe(1).f_globals.get("__name__") == "asyncio.futures":
            return _wrapped(error)  # before Python 3.12 a future that got a StopIteration there was never done
        return error

    def _get_snapshot(self) -> tuple[bool, bool, Any, BaseException | None]:
        """From Python 3.15 on asyncio calls this in place of `exception()`."""
        done, cancelled, result, error = super()._get_snapshot()  # type: ignore[misc]
        return done, cancelled, result, None if error is None else _wrapped(error)

    def _check(self, what: str, timeout: float | None) -> None:
        if not self.done() and running_loop() is not None and (timeout is None or timeout > 0):
            raise ImplicitBarrierError(
                f"{what} of a future that is not done would block the event loop:"
                " use `await asyncio.wrap_future(future)`, or wait on another thread"
            )


@dataclass(frozen=True)
class _Raised:
    """An exception that would end the event loop, or cannot pass through `await`. It is returned, and not raised."""

    error: BaseException


def _apply(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except BaseException as error:  # the future's holder gets it, perhaps on another thread
        if isinstance(error, KeyboardInterrupt | SystemExit) or _wrapped(error) is not error:
            return _Raised(error)
        raise


def _wrapped(error: BaseException) -> BaseException:
    return passable(error, "the function raised")


class _Work:
    """A function and its future. The future is dropped once it has its outcome: an exception in it refers back here."""

    def __init__(self, fn: Callable[..., Any], future: Future[Any]) -> None:
        self.name = label_of(fn)
        self._fn: Callable[..., Any] | None = fn
        self._future: Future[Any] | None = future
        self._turn = [future]

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run it, on a stream's thread."""
        fn, self._fn = self._fn, None
        if not (future := self._take_turn()) or not future.set_running_or_notify_cancel():
            return None
        del future
        assert fn is not None
        return _apply(fn, args, kwargs)

    def __reduce__(self) -> Any:
        """Another process gets only the function. The future stays here, and `end` tells it."""
        return partial, (_apply, self._fn)

    def end(self, task: asyncio.Future[Any]) -> None:
        """The asyncio task that waited for it is done, or could not be made."""
        future, self._future = self._future, None
        assert future is not None
        if self._take_turn():  # it has not begun
            if task.cancelled():
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
        elif not future.running() and not future.done():  # its thread has the turn, and is about to say that it runs
            self._future = future
            task.get_loop().call_soon(self.end, task)
            return
        if not future.running():  # it was cancelled just before it began
            return
        error = CancelledError() if task.cancelled() else task.exception()
        found = None if error is not None else task.result()
        if isinstance(found, _Raised):
            error = found.error
        if error is None:
            future.set_result(found)
            return
        try:
            future.set_exception(error)
        finally:
            del error, found

    def _take_turn(self) -> Future[Any] | None:
        """The future for the first caller, None for the second. The callers may be on two threads."""
        with contextlib.suppress(IndexError):
            return self._turn.pop()
        return None
