"""Event loops for synchronous code: running one, and asking one on another thread.

The asking thread waits for the answer in a queue that is written in C. The locks of `concurrent.futures.Future` and
`threading.Event` are taken and released by Python functions: a signal's exception there, as by Ctrl-C, leaves the lock
held, and the loop's thread would wait for it for ever. The queue holds no such lock: only the answer is lost.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

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
