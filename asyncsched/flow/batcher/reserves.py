"""Callers that have reserved bytes, and a batch that finds none.

Theory of operation. A caller in `s.scope(reserve=)` keeps its reserve until it is answered. Where callers have reserved
so much that a batch of theirs would lack bytes even if everybody else let go of all they hold, nothing ever moves: they
wait for the batch, and it for them. That needs no search for holders. When the scheduler is stuck, the caller that came
last is told, and what it leaves answers the others.

Only a reserve counts whose scope the awaiting coroutine has entered itself: that of a coroutine which merely started
this one may be left sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..._core.model import Account, Scope, Task
from ...errors import MemoryDeadlockError, TaskTooLarge
from ...runtime.context import Ambient
from ...runtime.runtime import Runtime
from .queue import Waiting


def reserved(here: Ambient | None) -> tuple[Account, ...]:
    """The accounts of the reserves that this coroutine keeps while it waits."""
    task, found = asyncio.current_task(), []
    while here is not None:
        if here.core.reserve and here.by is not None and here.by() is task:
            found.append(here.core.account)
        here = here.outer
    return tuple(found)


def check_reserve(reserve: int, limit: int | None, what: str) -> None:
    """Raise TaskTooLarge for what could never be granted."""
    if limit is not None and reserve > limit:
        raise TaskTooLarge(
            f"{what} needs {reserve:,} bytes, and the limit is {limit:,}: reserve less, or raise max_bytes (or the"
            " reserve of the scope around)",
            reserve,
            limit,
        )


def lacking(runtime: Runtime, batch: Scope | None) -> Task | None:
    """The first task of a batch that lacks bytes, where the scheduler is stuck: the batch cannot end before it."""
    stuck = {task.scope.account for task in runtime.engine.admission.stuck()}
    for task in runtime.engine.admission.tasks():
        scope: Scope | None = task.scope
        while scope is not None and scope is not batch:
            scope = scope.parent
        if scope is not None and not task.blockers and task.scope.account in stuck:
            return task
    return None


def tell_last(task: Task, callers: Iterable[Waiting], name: str) -> bool:
    """Tell the last caller with a reserve, if those of all keep a batch's task from ever going. Returns whether."""
    account = task.scope.account
    holders: dict[Account, list[Waiting]] = {}
    for waiting in callers:
        for held in waiting.reserves if not waiting.future.done() else ():
            if held.parent is account and not held.closed:
                holders.setdefault(held, []).append(waiting)
    taken, limit = sum([held.limit or 0 for held in holders]), account.limit
    if limit is None or not holders or taken + task.cost <= limit:
        return False
    error = MemoryDeadlockError(
        f"a batch of {name} lacks {task.cost:,} bytes for {task.name}, while the reserves of callers that wait for it"
        f" take {taken:,} of {limit:,}: have fewer callers or smaller reserves at a time, give the batch bytes of its"
        f" own (`Batcher(reserve=)`), or raise the limit to {taken + task.cost:,}",
        taken + task.cost,
        limit,
    )
    for waiting in holders.popitem()[1]:
        waiting.settle(error)
    return True
