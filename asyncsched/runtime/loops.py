"""Event loops from outside: running one, asking one on another thread, and waking one when there is a report.

*Asking.* The asking thread waits for the answer in a queue that is written in C. `concurrent.futures.Future` and
`threading.Event` have locks that Python functions take and release: a signal's exception there, as by Ctrl-C, leaves
the lock held, and the loop's thread would wait for it for ever. With the queue only the answer is lost.

*Waking.* `loop.call_soon_threadsafe` works everywhere and is expensive: it makes a handle and writes a byte to a socket
of the loop, and asyncio reads that socket until an exception says that it is empty. On Linux, with a loop that supports
`add_reader`, the loop watches an event counter of ours instead, an `eventfd`: one write, one read, and the reader is
the callback. (On asyncio this saves a tenth of a hop to a stream and back; on uvloop little.)

The loop holds the `Wakeup` while it watches, and a thread holds it while it wakes the loop. The descriptor is closed
with the last reference, so no thread writes to a descriptor whose number belongs to another file by then. The `Wakeup`
holds the scheduler only by a weak reference, so that an abandoned scheduler can be collected. Then the loop stops
watching. The child of a fork shares the counter with its parent, and the parent's loop watches it. So the child neither
writes nor reads: see `forget`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

from .._interrupts import finaliser
from .life import running_loop
from .threads import taken

T = TypeVar("T")

Answer: TypeAlias = "SimpleQueue[tuple[T, None] | tuple[None, BaseException]]"

_running: set[asyncio.Task[Any]] = set()  # strong references: a loop keeps none


def run(main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run `main`, a coroutine function or a coroutine, in a new event loop; in uvloop's if it is installed.

    To pass arguments, write `asc.run(main(20))`. Returns the result of `main`, and raises its exceptions. RuntimeError
    if a loop runs already: there write `await main()`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         return await asc.arange(3).sum().item()
    >>> asc.run(main)
    3
    """
    if running_loop() is not None:
        raise RuntimeError(
            "asyncsched.run starts an event loop, and one runs on this thread already (as in a notebook):"
            " write `await main()`"
        )
    with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
        return runner.run(main() if callable(main) else main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def comes(sign: SimpleQueue[None], seconds: float) -> bool:
    """Whether a sign comes within `seconds`. Only for a thread that runs no loop."""
    with suppress(Empty):
        sign.get(timeout=seconds)
        return True
    return False


def ask(loop: asyncio.AbstractEventLoop, fn: Callable[[], T], context: Context | None = None) -> Answer[T]:
    """Let a loop call a function."""
    answer: Answer[T] = SimpleQueue()
    loop.call_soon_threadsafe(_call, answer, fn, context=context)
    return answer


def ask_async(
    loop: asyncio.AbstractEventLoop,
    fn: Callable[[], Coroutine[Any, Any, T]],
    then: Callable[[], object] | None = None,
) -> Answer[T]:
    """Let a loop run a coroutine function; once the answer is there, it calls `then`."""
    answer: Answer[T] = SimpleQueue()
    loop.call_soon_threadsafe(_start, answer, fn, then)
    return answer


def answered(answer: Answer[T]) -> T:
    """Wait for the answer, and return or raise it."""
    found, error = taken(answer)
    if error is None:
        return found  # type: ignore[return-value]
    try:
        raise error
    finally:
        del error  # the exception holds this frame


def _call(answer: Answer[T], fn: Callable[[], T]) -> None:
    try:
        answer.put((fn(), None))
    except BaseException as error:
        answer.put((None, error))


def _start(answer: Answer[T], fn: Callable[[], Coroutine[Any, Any, T]], then: Callable[[], object] | None) -> None:
    task = asyncio.ensure_future(_caught(fn))
    _running.add(task)
    task.add_done_callback(partial(_ended, answer, then))


async def _caught(fn: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, None] | tuple[None, BaseException]:
    try:
        return await fn(), None
    except BaseException as error:
        return None, error


def _ended(
    answer: Answer[T],
    then: Callable[[], object] | None,
    task: asyncio.Task[tuple[T, None] | tuple[None, BaseException]],
) -> None:
    _running.discard(task)
    # A loop that ends may cancel the task before it has begun.
    answer.put((None, asyncio.CancelledError()) if task.cancelled() else task.result())
    if then is not None:
        then()


class Wakes(Protocol):
    """The target of a wake-up: `on_wake` is called on its loop's thread."""

    loop: asyncio.AbstractEventLoop | None

    def on_wake(self) -> None: ...


def plain_wakeup(target: Wakes) -> Callable[[], None]:
    """A function that schedules `target.on_wake()` by `call_soon_threadsafe`. It may be called on any thread.

    It holds the target only by a weak reference.
    """
    reference = weakref.ref(target)

    def wake() -> None:
        target = reference()
        if target is not None and target.loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to wake
                target.loop.call_soon_threadsafe(_on_wake, target)

    return wake


def _on_wake(target: Wakes) -> None:
    try:
        target.on_wake()
    except BaseException:  # perhaps a signal's: the remaining work is done if the loop goes on
        plain_wakeup(target)()  # a new one, since one that held itself would be a cycle for the collector
        raise


class Wakeup:
    """Schedules `target.on_wake()` on the running loop's thread. It may be called on any thread.

    Raises:
        NotImplementedError, OSError: there are no event counters or none is left, or the loop watches no files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Wakes) -> None:
        self._fd = -1
        if not hasattr(os, "eventfd"):
            raise NotImplementedError
        self._loop: asyncio.AbstractEventLoop | None = loop
        self._target: Callable[[], Wakes | None] = weakref.ref(target, self.stop)
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._fd, self._read)

    def __call__(self) -> None:
        if self._loop is not None:
            os.eventfd_write(self._fd, 1)

    def _read(self) -> None:
        try:
            try:  # noqa: SIM105  # `suppress` takes longer than the rest of this
                os.eventfd_read(self._fd)
            except BlockingIOError:
                pass
            target = self._target()
            if target is not None:
                target.on_wake()
        except BaseException:  # perhaps a signal's: the remaining work is done if the loop goes on
            self()
            raise

    def forget(self) -> None:
        """Leave everything to the parent: this is the child of a fork."""
        self._loop = None

    @finaliser()
    def stop(self, _: object = None) -> None:
        """Stop calling the target. On any thread, and in the middle of anything."""
        self._target = lambda: None  # breaks a cycle: the weak reference holds its callback, which holds this object
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it watches nothing
                self._loop.call_soon_threadsafe(self._unwatch)

    def _unwatch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)

    @finaliser()
    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
