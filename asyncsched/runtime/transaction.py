"""Issuing several tasks together: all of them join the backlog, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .._core.model import Task, Value
from ..errors import QueueFull
from .commits import commit
from .life import InlineMode
from .runtime import Runtime


@contextmanager
def transaction(
    runtime: Runtime,
    what: str,
    *,
    expedited: bool = False,
    captured: bool = False,
    versions: Mapping[Value, Value | None] | None = None,
) -> Iterator[None]:
    """What is issued inside joins the backlog at the end: all, or nothing if anything raises. `dispatch` launches.

    A tiny operation may run at once all the same, but in a commit: if the rest is dropped, so is its result.

    Args:
        what: for the message.
        expedited: queue it before the rest of its scope.
        captured: it may be part of a captured step, since it moves no handle: what is recorded has no value.
        versions: make it a commit, with these versions (see `commits`); filled inside.

    Raises:
        QueueFull: if the backlog has no room for all.
    """
    runtime.check()
    if runtime.sink is not None:
        if not captured:
            runtime.sink.refuse(what)
        yield
        return
    engine, gathered, inline = runtime.engine, _Gathered(runtime), runtime.inline
    tasks = gathered.tasks
    # No function is entered between here and `try`, nor in `finally`, where a signal could be handled.
    runtime.sink, runtime.submit = gathered, gathered.submit
    if versions is not None:
        runtime.inline = InlineMode.NEVER
    try:
        try:
            yield
        finally:
            runtime.sink, runtime.submit, runtime.inline = None, engine.submit, inline
        runtime.dispatch()
        if versions is not None:
            tasks.insert(0, commit(what, tasks, versions, runtime.lanes[next(iter(versions)).device].compute))
            engine.require(tasks[0])
        _require_room(runtime, what, len(tasks))
    except BaseException:
        for task in tasks:
            task.let_go()
        raise
    try:
        for task in tasks:
            task.expedited = expedited
            engine.submit(task, bounded=False, hold=True)
    except BaseException as error:  # some of the tasks have joined, and others not
        runtime.on_interrupted(error)
        raise


def _require_room(runtime: Runtime, what: str, count: int) -> None:
    limit = runtime.ledger.limits.max_pending
    room = limit and limit - runtime.ledger.pending
    if room is not None and count > room:
        raise QueueFull(
            f"{what} takes {count:,} tasks and the backlog (max_pending) has room for {room:,}:"
            " `await s.barrier()` first, bound the run-ahead with `async with s.window(2)`, or raise max_pending"
        )


class _Gathered:
    """The tasks of a transaction."""

    def __init__(self, runtime: Runtime) -> None:
        self.tasks: list[Task] = []
        self._runtime = runtime

    def submit(self, task: Task, **_: bool) -> None:
        self._runtime.engine.require(task)
        self._runtime.inline = InlineMode.NEVER  # what follows may depend on it
        self.tasks.append(task)

    def refuse(self, what: str) -> None:
        raise RuntimeError(f"{what} inside another transaction: issue one after the other")
