"""The ends of scopes, windows and schedulers, which raise the failures that nobody has seen.

A scheduler closes in one of three ways:

- in order, when everything submitted has ended;
- by a failure or a cancellation, when the running tasks have ended;
- out of time, with bodies still running.

In each, new work is refused first, and the devices are stopped last. Finished results stay readable.
"""

from __future__ import annotations

import asyncio

from .._arguments import counted
from .._core.audit import launched
from .._core.model import Scope as CoreScope
from ..errors import AsyncSchedError, add_note
from .life import Life
from .runtime import Runtime
from .waiting import drained, shielded


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
    running = ", ".join(task.name for task in launched(runtime.engine.root))
    runtime.close()
    late = TimeoutError(
        f"after {timeout:g} s these tasks still run: {running} (they end by themselves, and their results are dropped)"
    )
    finish(root, "the scheduler", late)
    return late


def report(core: CoreScope, what: str, before: int | None = None) -> None:
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


def finish(core: CoreScope, what: str, error: BaseException | None) -> None:
    """End a scope: raise the unseen failures, or note them on the exception that ended it."""
    if error is None:
        report(core, what)
        return
    failures, lost = core.take_failures()
    if failures or lost:
        kinds = ", ".join(sorted({failure.kind for failure in failures})) or "whose exceptions were not kept"
        add_note(error, f"{what}: besides, {counted(len(failures) + lost, 'task')} failed unseen ({kinds})")
