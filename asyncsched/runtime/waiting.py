"""Waiting for tasks: every `await` of a tensor, a scope or a scheduler leads here.

Theory of operation. A wait puts a `Waiter` on each task. *Then* it lets the engine take in completions, and only then
does it await a future. The order matters: a stream's thread that ends a task wakes the loop only if the task has a
waiter, so a waiter added after that check would never be woken. The engine calls the waiter at every change of its
tasks. The waiter counts the tasks that have reached its stage, and sets the future when they are enough.

Rejected: to resume the waiting coroutine in the same turn of the loop as the answer, not in the next. That saves 3 to
5% of a hop to a stream and back, but needs asyncio's private list of a future's callbacks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from threading import get_ident
from types import coroutine
from typing import Any, Final

from .._core.model import DONE, LAUNCHED, Scope, Task
from .runtime import Runtime
from .threads import outlast, to_its_end

# Stages to wait for. A task is answered when it has ended, or when it was cancelled while its body still runs.
ADMITTED: Final = 0
ANSWERED: Final = 1
ENDED: Final = 2

# Turns of the loop until a coroutine that is woken has a task's exception: one, or two if it waited for admission.
_DELIVERED: Final = 2


@dataclass(slots=True, eq=False)
class Waiter:
    """Sets a future when `count` tasks have reached `stage`; if `eager`, also when one has failed."""

    count: int
    future: asyncio.Future[None]
    stage: int
    eager: bool

    def __call__(self, task: Task) -> bool:
        """Note a change of a task. Returns True once the task has reached the stage and need not be reported again."""
        if task.state < DONE:
            answered = task.cancelled and self.stage < ENDED
            if not answered and not (task.state == LAUNCHED and self.stage == ADMITTED):
                return False
        self.count -= 1
        if (self.count <= 0 or (self.eager and task.failure is not None)) and not self.future.done():
            self.future.set_result(None)
        return True


def wait(
    runtime: Runtime,
    tasks: Sequence[Task],
    stage: int = ANSWERED,
    *,
    eager: bool = False,
    others: Sequence[Runtime] = (),
) -> Generator[Any, None, None]:
    """Wait until every task has reached `stage`, or (`eager`) until one has failed.

    Passes through the loop at least once. If the wait is cancelled, the tasks go on. The tasks belong to `runtime` and
    to `others`.
    """
    runtimes = (runtime, *others)
    for each in runtimes:
        if each.thread != get_ident():
            each.check_waiting()
    loop = runtime.loop
    assert loop is not None
    future: asyncio.Future[None] = loop.create_future()
    waiter, observer = Waiter(len(tasks), future, stage, eager), runtime.ledger.observer
    for task in tasks:
        if not waiter(task):
            if task.waiters is None:
                task.waiters = {waiter: None}
            else:
                task.waiters[waiter] = None
    for each in runtimes:
        each.dispatch()
    if observer is not None:
        observer.wait_began(tasks)
    try:
        if future.done():
            runtime.on_wake()  # no wake-up was sent for it
            yield
        else:
            if not loop.is_running():  # this code runs on another loop
                runtime.refuse()
            if runtime.interrupted is not None:  # the task was lost
                runtime.interrupted.rethrow()
            for each in runtimes:
                each.parked[future] = (asyncio.current_task(loop), tasks)
            yield from future
    finally:
        if observer is not None:
            observer.wait_ended(tasks)
        for each in runtimes:
            each.parked.pop(future, None)
        for task in tasks:
            if task.waiters is not None:
                task.waiters.pop(waiter, None)


awaited: Callable[..., Awaitable[None]] = coroutine(wait)  # the same for `async def`


async def drained(runtime: Runtime, scope: Scope, before: int | None = None) -> bool:
    """Wait until every task of the scope numbered under `before` has physically ended, and whoever awaits one that
    failed has its exception: what nobody has seen then may be reported.

    Returns whether it had to wait, and so passed through the loop.
    """
    waited, turns = False, _DELIVERED
    runtime.dispatch()
    while True:
        if task := next(reversed(scope.unfinished(before)), None):
            # only for a late task: a waiter on each would wake the loop for each
            await awaited(runtime, [task], ENDED)
        elif turns and scope.has_unseen():
            turns -= 1
            await asyncio.sleep(0)
        else:
            return waited
        waited = True


async def shielded(runtime: Runtime, scope: Scope) -> None:
    """Wait until a scope's tasks have ended, in spite of cancellation. Then raise the cancellation.

    When it returns or raises, none is unfinished: others may submit to the scope in the turns of the loop in which the
    end of the wait is passed on, so this looks again. If the loop ends meanwhile, the wait ends. From then on, neither
    outer scopes nor `aclose` wait either.
    """
    runtime.dispatch()
    if isinstance(sys.exc_info()[1], KeyboardInterrupt):  # it will end the loop
        runtime.abandoned = True
    await outlast(
        lambda: bool(scope.unfinished()) and not runtime.abandoned,
        lambda: to_its_end(_until_loop_ends(runtime, scope)),
    )


async def _until_loop_ends(runtime: Runtime, scope: Scope) -> None:
    try:
        await drained(runtime, scope)
    except (asyncio.CancelledError, KeyboardInterrupt):  # only the end of the loop cancels this task
        runtime.abandoned = True
        raise
