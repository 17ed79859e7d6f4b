"""Bounding how far a loop runs ahead of its results.

Theory of operation. Each iteration is a scope of the engine. Leaving the block waits for nothing: the scope is marked
as over (`ended`), and queued. Entering the iteration `depth` later takes the oldest one from the queue, waits until its
tasks have physically ended, and reports what failed in it unseen. It leaves the queue only when that wait is over. So a
coroutine that is cancelled while it waits loses nothing, and waits for the same iteration next time.

An iteration shares the queue and the account of the scope around it: it is waited for, and not scheduled. With a queue
of its own it would alternate with the iteration before it. A loop gains nothing from that, since its tasks should run
in the order in which they were submitted. The engine takes an iteration out of its tree when it opens a later one and
finds nothing unfinished or unreported in it, at the latest with the scope around it.

Alternatives. A bound on tasks (`max_pending`) says nothing of iterations, whose numbers of tasks differ. A barrier per
iteration, or per `depth` of them, lets the streams run dry each time. Without a window, a user awaits the loss of
`depth` iterations ago. That misses all tasks on which the loss does not depend, such as the optimiser's step. A
semaphore that the last task releases needs to know which task that is, and that task may end before the block is left.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from typing import Any, Self

from .._arguments import check_int
from .._core.model import Scope as CoreScope
from .._instead import OnlyAsync
from ..pictures.record import Record, Seconds
from ..runtime.context import Ambient, current_scope, enter
from ..runtime.runtime import Runtime
from ..runtime.waiting import drained, report


@dataclass(frozen=True, repr=False)
class WindowStatistics(Record):
    """A snapshot of a window."""

    depth: int
    """The most iterations in flight."""
    iterations: int
    """Iterations begun."""
    in_flight: int
    """Iterations begun and not known to be finished."""
    wait_seconds: Seconds
    """Seconds for which entering has waited for an earlier iteration, added up."""


class Window(OnlyAsync):
    """At most `depth` iterations in flight. Made by `s.window(depth)`; belongs to one coroutine.

    `async with window:` around the body of a loop makes what the body submits one iteration. Entering waits until the
    iteration `depth` before is finished, and raises its failures that nobody has seen. Cancelled while it waits, it
    loses nothing.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         window, x = s.window(2), await s.put(np.ones(3))
    ...         for _ in range(4):
    ...             async with window:
    ...                 x = x + 1
    ...         print(window.statistics().iterations, await x)
    >>> asc.run(main)
    4 [5. 5. 5.]
    """

    def __init__(self, runtime: Runtime, depth: int) -> None:
        check_int("the depth of a window", depth)
        self._runtime = runtime
        self._depth = depth
        # A weak reference: a task that failed holds its exception, which holds the frames it passed, and their tensors.
        self._owner: weakref.ref[asyncio.Task[Any]] | None = None
        self._current: Ambient | None = None  # of the iteration that is entered
        self._behind: deque[CoreScope] = deque()  # iterations left, the oldest first
        self._ended_early = 0  # iterations that ended with a dropped generator, and whose blocks will be left later
        self._begun = 0
        self._waited = 0.0

    async def __aenter__(self) -> Self:
        runtime = self._runtime
        if runtime.thread != get_ident() or not runtime.loop.is_running():  # type: ignore[union-attr]  # it has a thread
            runtime.check()
        task = asyncio.current_task()
        assert task is not None
        if self._owner is None:
            self._owner = weakref.ref(task)
        if self._current is not None and self._current.left_early:
            self._end(self._current)
            self._ended_early += 1
        if self._owner() is not task or self._current is not None:
            raise RuntimeError(
                "a window belongs to one coroutine, one block at a time: make another with `s.window(depth)`"
            )
        waited = False
        if len(self._behind) >= self._depth:
            oldest, started = self._behind[0], perf_counter()
            over = oldest.closed or oldest.over()  # there is nothing to wait for, or to report
            waited = not over and await drained(runtime, oldest)
            self._behind.popleft()
            self._waited += perf_counter() - started
            if not over:
                report(oldest, "window")
        if not waited:  # one turn of the loop for each iteration
            await asyncio.sleep(0)
        around = current_scope(runtime)
        self._begun += 1
        core = runtime.engine.scopes.open(f"iteration {self._begun}", around, None)
        self._current = enter(runtime, core, task, passing=True)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._owner is not None
        if self._ended_early and asyncio.current_task() is not self._owner():  # the loop closes a dropped generator
            self._ended_early -= 1
            return
        assert self._current is not None
        self._end(self._current)

    def _end(self, link: Ambient) -> None:
        self._current = None
        link.leave()
        self._runtime.engine.end_scope(link.core)
        self._behind.append(link.core)

    def statistics(self) -> WindowStatistics:
        """A snapshot."""
        in_flight = len(self._behind) + (self._current is not None)
        return WindowStatistics(self._depth, self._begun, in_flight, self._waited)
