"""Waiting for tasks: every `await` of a tensor, a scope or a scheduler leads here, and so does every end of one.

Theory of operation. A wait puts a `Waiter` on each task. *Then* it lets the engine take in completions, and only then
does it await a future. The order matters: a stream's thread that ends a task wakes the loop only if the task has a
waiter, so a waiter added after that check would never be woken. The engine calls the waiter at every change of its
tasks. The waiter counts the tasks that have reached its stage, and sets the future when they are enough.

Rejected: to resume the waiting coroutine in the same turn of the loop as the answer, not in the next. That saves 3 to
5% of a hop to a stream and back, but needs asyncio's private list of a future's callbacks.

The ends of scopes, windows and schedulers raise the failures that nobody has seen. A scheduler closes in one of three
ways: in order, when everything submitted has ended; after a failure or a cancellation, when the running tasks have
ended; or out of time, with bodies still running. Each time new work is refused first, and the devices are stopped last.
Finished results stay readable.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from threading import get_ident
from types import coroutine
from typing import Any, Final

from .._arguments import counted
from .._core.audit import launched
from .._core.model import DONE, LAUNCHED, Scope, Task
from ..errors import AsyncSchedError, add_note
from .life import Life
from .runtime import Runtime
from .threads import outlast, to_its_end

# Stages to wait for. A task is answered when it has ended, or when it was cancelled while its body still runs.
ADMITTED: Final = 0
ANSWERED: Final = 1
ENDED: Final = 2

# Turns of the loop until a woken coroutine has got a task's exception: one, or two if it waited for admission.
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
    """Wait until every task of the scope numbered under `before` has physically ended, and until those who await a
    failed one have its exception. Failures that nobody has seen by then may be reported.

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

    When it returns or raises, none is unfinished. (It looks again after each wait: others may have submitted to the
    scope in the turns of the loop in between.) But if the loop ends meanwhile, the wait ends. From then on, neither
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


async def close_in_order(runtime: Runtime, timeout: float | None) -> None:  # noqa: ASYNC109  # it ends in order, too
    """Wait for everything submitted, at most `timeout` seconds, and close. See `Scheduler.aclose`."""
    if runtime.life in (Life.NEW, Life.CLOSED):
        runtime.life = Life.CLOSED
        if runtime.interrupted is not None:  # the scheduler had closed itself
            await runtime.disconnect()
            finish(runtime.engine.root, "the scheduler", None)
        return
    if runtime.life is Life.FORKED:
        runtime.refuse()
    runtime.check_waiting()
    runtime.refuse_new()
    try:
        async with asyncio.timeout(timeout):
            await drained(runtime, runtime.engine.root)
    except TimeoutError:
        late = _give_up(runtime, timeout)
        await runtime.disconnect()
        raise late from None
    except BaseException:
        await abort(runtime, "aclose(), which was cancelled")
        raise
    if runtime.life in (Life.CLOSED, Life.FORKED):  # closed meanwhile by another task, which has reported the failures
        return
    runtime.close()
    await runtime.disconnect()
    finish(runtime.engine.root, "the scheduler", None)


async def abort(runtime: Runtime, by: str) -> None:
    """Drop the pending tasks, wait for the running ones, whoever cancels meanwhile, and close."""
    if runtime.life in (Life.CLOSED, Life.FORKED):
        if runtime.interrupted is not None:
            await runtime.disconnect()
        return
    runtime.refuse_new()
    runtime.cancel_all(runtime.engine.root.unfinished(), by)
    try:
        await shielded(runtime, runtime.engine.root)
    finally:
        runtime.close()
        await runtime.disconnect()


def _give_up(runtime: Runtime, timeout: float | None) -> TimeoutError:
    """Drop the pending tasks and close, though bodies still run. Returns the error that names them."""
    root = runtime.engine.root
    runtime.cancel_all(root.unfinished(), "aclose(), which ran out of time")
    running = ", ".join(task.name for task in launched(root))
    runtime.close()
    late = TimeoutError(
        f"after {timeout:g} s these tasks still run: {running} (they end by themselves, and their results are dropped)"
    )
    finish(root, "the scheduler", late)
    return late


def report(core: Scope, what: str, before: int | None = None) -> None:
    """Raise the failures under `core` that nobody has seen, as one group."""
    failures, lost = core.take_failures(before)
    if failures:
        more = f" (and {lost} more)" if lost else ""
        raise BaseExceptionGroup(
            f"{what}: {counted(len(failures), 'task')} failed{more}, and nobody awaited them",
            [failure.exception for failure in failures],
        )
    if lost:
        raise AsyncSchedError(f"{what}: {counted(lost, 'task')} failed unseen whose exceptions were not kept")


def finish(core: Scope, what: str, error: BaseException | None) -> None:
    """End a scope: raise the unseen failures, or note them on the exception that ended it."""
    if error is None:
        report(core, what)
        return
    failures, lost = core.take_failures()
    if failures or lost:
        kinds = ", ".join(sorted({failure.kind for failure in failures})) or "whose exceptions were not kept"
        add_note(error, f"{what}: besides, {counted(len(failures) + lost, 'task')} failed unseen ({kinds})")
