"""Waiting, in all its forms: what every `await` of a tensor, a scope or a scheduler comes down to.

Theory of operation. Who waits puts a `Waiter` on each task, *then* has the engine take in what has ended, and only then
sleeps on a future: a stream's thread that ends a task wakes the loop if it sees a waiter there, so a waiter put after
that look would sleep for ever. The waiter is told of every change of its tasks, decides for itself whether that is what
it waits for, and settles the future when enough have got there; in a callback of the loop's the runtime does that for
it, when all else is done (`resuming`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from threading import get_ident
from types import coroutine
from typing import Any, Final

from .._core.model import DONE, LAUNCHED, Scope, Task
from .cancellation import to_its_end
from .runtime import Runtime

# What is waited for. An answer is there when a task ended, and when it was cancelled while it still runs.
ADMITTED: Final = 0
ANSWERED: Final = 1
ENDED: Final = 2


class Waiter:
    """Settles a future when `count` tasks have got as far as `stage`; if `eager`, also when one has failed."""

    __slots__ = ("count", "eager", "future", "runtime", "stage")

    def __init__(self, runtime: Runtime, count: int, future: asyncio.Future[None], stage: int, eager: bool) -> None:
        self.runtime = runtime
        self.count = count
        self.future = future
        self.stage = stage
        self.eager = eager

    def __call__(self, task: Task) -> bool:
        """Whether the task has got there: then it need not be told of again."""
        if task.state < DONE:
            answered = task.cancelled and self.stage < ENDED
            if not answered and not (task.state == LAUNCHED and self.stage == ADMITTED):
                return False
        self.count -= 1
        if (self.count <= 0 or (self.eager and task.failure is not None)) and not self.future.done():
            to_resume = self.runtime.answered
            if to_resume is None:
                self.future.set_result(None)
            else:
                to_resume.append(self.future)
        return True


def wait(
    runtime: Runtime,
    tasks: Sequence[Task],
    stage: int = ANSWERED,
    *,
    eager: bool = False,
    others: Sequence[Runtime] = (),
) -> Generator[Any, None, None]:
    """Wait until every task has got as far as `stage`, or (`eager`) one has failed. Passes through the loop once, at
    least. If cancelled, the tasks go on.

    The tasks are those of `runtime`, and of `others` if there are any.
    """
    if runtime.thread != get_ident():
        runtime.check_waiting()
    for other in others:
        other.check_waiting()
    loop = runtime.loop
    assert loop is not None
    future: asyncio.Future[None] = loop.create_future()
    waiter, observer = Waiter(runtime, len(tasks), future, stage, eager), runtime.engine.observer
    for task in tasks:
        if not waiter(task):
            task.waiters = [waiter] if task.waiters is None else [*task.waiters, waiter]
    runtime.dispatch()
    for other in others:
        other.dispatch()
    if observer is not None:
        observer.wait_began(tasks)
    try:
        if future.done():
            runtime.catch_up()  # nothing woke the loop for it
            yield
        else:
            if not loop.is_running():  # another one does
                runtime.refuse()
            runtime.parked[future] = (asyncio.current_task(loop), tasks)
            for other in others:
                other.parked[future] = runtime.parked[future]
            yield from future
    finally:
        if observer is not None:
            observer.wait_ended(tasks)
        runtime.parked.pop(future, None)
        for other in others:
            other.parked.pop(future, None)
        for task in tasks:
            if task.waiters is not None and waiter in task.waiters:
                task.waiters.remove(waiter)


awaited: Callable[..., Awaitable[None]] = coroutine(wait)  # the same for `async def`: it may be awaited, too


async def drained(runtime: Runtime, scope: Scope, before: int = sys.maxsize) -> bool:
    """Wait until every task of the scope numbered under `before` has physically ended. Returns whether that took a
    wait, and so a turn of the loop."""
    waited = False
    runtime.dispatch()
    while tasks := [task for task in scope.unfinished() if task.seq < before]:
        # The youngest alone: a waiter on each would wake the loop for each.
        await awaited(runtime, tasks[-1:], ENDED)
        waited = True
    return waited


async def shielded(runtime: Runtime, scope: Scope) -> None:
    """Wait until a scope's tasks have ended, whoever cancels meanwhile; then let the cancellation through.

    If the loop ends meanwhile it waits no longer, and nobody after it does: neither the scopes around it nor closing.
    """
    runtime.dispatch()
    if isinstance(sys.exc_info()[1], KeyboardInterrupt):  # which ends the loop, wherever it was raised
        runtime.abandoned = True
    if scope.unfinished() and not runtime.abandoned:
        await to_its_end(_until_loop_ends(runtime, scope))


async def _until_loop_ends(runtime: Runtime, scope: Scope) -> None:
    try:
        await drained(runtime, scope)
    except (asyncio.CancelledError, KeyboardInterrupt):  # who knows this task cancels all
        runtime.abandoned = True
        raise


@coroutine
def checkpoint() -> Generator[None, None, None]:
    """Let others run once."""
    yield
