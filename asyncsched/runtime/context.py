"""The scheduler and the scope that a line of code is in.

Theory of operation. Operators have no argument for a scope, so it is *ambient*: kept in a context variable. asyncio
gives each task it starts a copy of the context. So a scope holds for the coroutine that entered it and for the tasks
started inside, but not for other coroutines that run on the loop at the same time.

The value is a linked list, the innermost scope first. Several schedulers may be open at once, and their scopes nested
in any order. The scope of an operation is the innermost one *of its operands' scheduler*, which need not be the last
one entered. Entering makes one link, whose `outer` is the previous link; leaving restores that link. A link never
changes, so a task keeps what it inherited when it was started. If the scope has been closed since, its link says so,
and submitting there is an error, since nobody would wait for the task. A window's iteration may close while tasks
started in it go on: its link lets them pass to the next one outwards (`passing`).

An async generator runs in the context of its consumer, so its blocks are left in any order, and perhaps in the context
of another task. Four rules:

1. Leaving takes the link out of the context that leaves, wherever it stands there. Links above it are made anew.
2. A generator that nobody refers to any more is closed a turn of the loop later, in a task of the loop. But Python
   calls the hook for this (`sys.set_asyncgen_hooks`) in the middle of the line that dropped it, so in the consumer's
   context. `_blocks` puts a hook before the loop's own, which marks all blocks of the generator as left by the
   consumer's task. So what the consumer issues after its `break` is not cancelled with the generator.
3. If a block is left by another task all the same, the task that entered it skips the link from then on. So do tasks
   that were started after that (`entered_earlier` lists the others).
4. Entering starts from the links that still hold, so they do not pile up.

Alternatives. A context variable per scheduler: contexts refer to their variables strongly, so a program that opens
schedulers one after the other may never be rid of them (the documentation of `contextvars` warns of it). A dict from
scheduler to scope in one variable: each entry has to copy it, and most programs have one link or two. A list used as a
stack: tasks that inherit it share it, and would pop each other's scopes. An attribute of the scheduler: any other
coroutine would submit into it.

A fork copies all of this into the child. The streams' threads do not exist there, and the event loop is the parent's.
So a hook marks each open scheduler in the child as forked: everything that would submit or wait raises, instead of
waiting for ever. Nothing is closed or freed in the child: a CUDA context does not survive a fork, and the parent's
threads may have held any lock. The parent does not notice. A set of weak references lists the schedulers for this hook
and for `find`, so the list keeps none alive. Each loop's thread adds its own scheduler. A reader copies the set, which
is one step, with the GIL and without it. (Reading a `WeakSet` takes many, and raises if it grew meanwhile.)
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR
from math import inf
from threading import get_ident
from types import FrameType
from typing import Any

from .._blocks import AWAITS, Dropped, current_task, note, set_variable
from .._core.model import Scope as CoreScope
from ..errors import SchedulerClosed
from .life import OPEN, Life, running_loop
from .runtime import Runtime

_opened: set[weakref.ref[Runtime]] = set()


@dataclass(slots=True, eq=False)
class Ambient:
    """The scope that a context is in: the innermost, with a link to the next one outwards."""

    runtime: Runtime
    core: CoreScope
    outer: Ambient | None
    passing: bool = False  # once closed, it passes new tasks to `outer` instead of refusing them
    noted: Dropped | None = None  # the hook that knows of it, if it was entered in async generators
    frames: tuple[int, ...] = ()  # those of the generators, by identity
    left_early: bool = False  # by the task that entered it, when its generator was dropped

    def leave(self) -> None:
        """Leave the scope: see the rules above."""
        if self.noted is not None:
            self.noted.forget(self)
        outer = self.outer
        if ambient.get() is self and (outer is None or not (outer.core.closed or outer.left_early)):
            set_variable(ambient, outer)
        else:
            set_variable(ambient, _without(ambient.get(), lambda link: link.core is self.core or link.left()))
        by = None if self.passing or self.left_early or self.core.entered_by is None else self.core.entered_by()
        if by is not None and not by.done() and by is not asyncio.current_task(by.get_loop()):
            self.core.entered_earlier = weakref.WeakSet(asyncio.all_tasks(by.get_loop()))

    def leave_early(self) -> None:
        """Leave the scope, if this is the task that entered it. Its block will be left later.

        Called in the middle of anything. So the link stays in the context, and is passed over: before Python 3.12 the
        collector may run within `ContextVar.set`, and to set a variable then crashes the interpreter.
        """
        by, task = self.core.entered_by, current_task()
        if task is not None and by is not None and by() is task:
            self.core.entered_earlier = weakref.WeakSet(asyncio.all_tasks(task.get_loop()))
            self.left_early = True

    def left(self, task: asyncio.Task[Any] | None = None) -> bool:
        """Whether an asyncio task skips this link: then its new work goes to `outer`. Default: the task that runs.

        It does if the scope is over, and the task entered it, or was started after it was left early or by another.
        """
        core = self.core
        if not self.over or core.entered_by is None or (task := task or current_task()) is None:
            return False
        return core.entered_by() is task or (core.entered_earlier is not None and task not in core.entered_earlier)

    @property
    def over(self) -> bool:
        """Whether the scope was left early, or it or its scheduler is closed."""
        return self.core.closed or self.left_early or self.runtime.life is Life.CLOSED


ambient: contextvars.ContextVar[Ambient | None] = contextvars.ContextVar("asyncsched.ambient", default=None)


def enter(runtime: Runtime, core: CoreScope, task: asyncio.Task[Any] | None, *, passing: bool = False) -> Ambient:
    """Enter a scope in this context and task. Returns the link, whose `leave` leaves it."""
    outer = ambient.get()
    if outer is not None and (outer.outer is not None or outer.core.closed or outer.left_early):
        outer = innermost()
    core.entered_by = None if task is None else weakref.ref(task)
    link = Ambient(runtime, core, outer, passing)
    set_variable(ambient, link)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (flags := frame.f_code.co_flags) & AWAITS and not flags & CO_ASYNC_GENERATOR:
        frame = frame.f_back
    if (frame is not None and flags & CO_ASYNC_GENERATOR) or type(sys.get_asyncgen_hooks().finalizer) is not Dropped:
        note(link, frame)
    return link


def deadline(here: Ambient | None, task: asyncio.Task[Any] | None = None) -> float:
    """The earliest deadline of a link and those around it, by time.monotonic; infinity if there is none.

    Links that the asyncio task skips do not count. Default: the task that runs.
    """
    earliest = inf
    while here is not None:
        if here.core.deadline < earliest and not here.left(task):
            earliest = here.core.deadline
        here = here.outer
    return earliest


def current_scope(runtime: Runtime, here: Ambient | None = None) -> CoreScope:
    """The scope of new work: the innermost ambient one of a scheduler, or else its root. Searches from `here` outwards,
    if given.

    Raises:
        SchedulerClosed: if that scope is closed, and this context inherited it.
        RuntimeError, SchedulerClosed: if this thread, on this event loop, may not submit work: see `OnOneLoop.check`.
    """
    if runtime.thread != get_ident() or not runtime.loop.is_running():  # type: ignore[union-attr]  # it has a thread
        runtime.check()
    here = here or ambient.get()
    if here is not None and (here.core.closed or here.left_early):
        here = innermost()
    while here is not None:
        if here.runtime is runtime:
            closed = here.core.closed
            if not closed and not (here.left_early and here.left()):
                return here.core
            if closed and not (here.passing or here.left()):
                raise SchedulerClosed(
                    f"scope {here.core.name!r} is closed, and this coroutine inherited it: "
                    "wait for such coroutines inside the scope, or start them outside of it, by "
                    "`asyncio.create_task(..., context=contextvars.Context())`"
                )
        here = here.outer
    return runtime.engine.root


def innermost() -> Ambient | None:
    """The innermost link, without those that this asyncio task skips. Changes no context, since finalisers ask, too."""
    link = here = ambient.get()
    while link is not None and not link.over:
        link = link.outer
    return here if link is None else _without(here, Ambient.left)  # None almost always


def _without(here: Ambient | None, gone: Callable[[Ambient], bool]) -> Ambient | None:
    """The links from `here` outwards without those that are gone. A link whose `outer` changes is made anew."""
    links = list[Ambient]()
    while here is not None:
        links.append(here)
        here = here.outer
    for link in reversed(links):
        if not gone(link):
            here = link if link.outer is here else Ambient(link.runtime, link.core, here, link.passing)
    return here


def register(runtime: Runtime) -> None:
    """Enter a scheduler that was opened, for `find` and for forks."""
    _opened.add(weakref.ref(runtime, _opened.discard))


def opened() -> list[Runtime]:
    """The schedulers that are open or about to close. On any thread."""
    return [runtime for runtime in _alive() if runtime.life in (Life.OPEN, Life.CLOSING)]


def _alive() -> list[Runtime]:
    return [runtime for reference in _opened.copy() if (runtime := reference()) is not None]


def find(scheduler: Any = None) -> Runtime:
    """The runtime to use if no operand names one.

    It is that of `scheduler` (which may be a runtime itself), or the ambient one, or the only one open on this loop.
    """
    if isinstance(scheduler, Runtime):
        return scheduler
    if scheduler is not None:
        runtime = getattr(scheduler, "_runtime", None)
        if not isinstance(runtime, Runtime):
            raise TypeError(f"scheduler= takes a Scheduler or a scope, not {type(scheduler).__name__}")
        return runtime
    here = innermost()
    if here is not None:
        return here.runtime
    loop = running_loop()
    found = [r for r in _alive() if r.loop is loop and r.life is not Life.CLOSED] if loop is not None else []
    if len(found) == 1:
        return found[0]
    for runtime in _alive() if not found else ():
        if runtime.loop is loop and runtime.interrupted is not None:
            runtime.refuse()
    raise SchedulerClosed(
        f"{'no scheduler is' if not found else 'several schedulers are'} open on this loop: "
        f"{'open one by ' + OPEN if not found else 'work inside the block of one'}, or pass `scheduler=`"
    )


def _after_fork() -> None:
    for runtime in _alive():
        if runtime.life is not Life.CLOSED:
            runtime.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
