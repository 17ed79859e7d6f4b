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

An async generator runs in the context of its consumer, so its blocks are left in any order. If it is abandoned, a task
of the loop leaves them, and that task cannot restore the previous link. So leaving restores the link only if its own
link is the innermost. And the asyncio task that entered a block skips its link once the block is left.

Alternatives. A context variable per scheduler: contexts refer to their variables strongly, so a program that opens
schedulers one after the other may never be rid of them (the documentation of `contextvars` warns of it). A dict from
scheduler to scope in one variable: each entry has to copy it, and most programs have one link or two. A list used as a
stack: tasks that inherit it share it, and would pop each other's scopes. An attribute of the scheduler: any other
coroutine would submit into it.

A fork copies all of this into the child. The streams' threads do not exist there, and the event loop is the parent's.
So a hook marks each open scheduler in the child as forked: everything that would submit or wait raises, instead of
waiting for ever. Nothing is closed or freed in the child: a CUDA context does not survive a fork, and the parent's
threads may have held any lock. The parent does not notice. A set of weak references lists the schedulers for this hook
and for `find`, so the list keeps none alive. Each loop's thread enters its own, and it is copied to be read: that is
one step, with the GIL and without it. (A `WeakSet` is read in many, and raises if it grew meanwhile.)
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import weakref
from math import inf
from typing import Any

from .._core.model import Scope as CoreScope
from ..errors import SchedulerClosed
from .life import OPEN, Life, running_loop
from .runtime import Runtime

_opened: set[weakref.ref[Runtime]] = set()


class Ambient:
    """The scope that a context is in: the innermost, with a link to the next one outwards."""

    __slots__ = ("by", "core", "outer", "passing", "runtime", "until")

    def __init__(
        self,
        runtime: Runtime,
        core: CoreScope,
        outer: Ambient | None,
        *,
        passing: bool = False,
        until: float = inf,
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        self.runtime: Runtime = runtime
        self.core: CoreScope = core
        self.outer: Ambient | None = outer
        # The earliest deadline, by time.monotonic: a loop's own clock may stand still during a callback.
        self.until: float = until if outer is None or until < outer.until else outer.until
        self.passing: bool = passing  # once closed, it passes new tasks to `outer` instead of refusing them
        if task is None and running_loop() is not None:  # otherwise this is a thread that was given this context
            task = asyncio.current_task()
        # The task that entered it
        self.by: weakref.ref[asyncio.Task[Any]] | None = None if task is None else weakref.ref(task)

    def leave(self) -> None:
        """Leave the scope, unless it was entered in another context or is not the innermost any more: see `left`."""
        if ambient.get() is self:
            ambient.set(self.outer)
            if self.outer is not None and self.outer.core.closed:
                innermost()

    def left(self) -> bool:
        """Whether this asyncio task entered the scope, and it is closed: then new tasks go to `outer`."""
        if not (self.core.closed or self.runtime.life is Life.CLOSED) or self.by is None or running_loop() is None:
            return False
        return self.by() is asyncio.current_task()


ambient: contextvars.ContextVar[Ambient | None] = contextvars.ContextVar("asyncsched.ambient", default=None)


def current_scope(runtime: Runtime, here: Ambient | None = None) -> CoreScope:
    """The innermost ambient scope of a scheduler, or else its root. Searches from `here` outwards, if given.

    Raises:
        SchedulerClosed: if that scope is closed, and this context inherited it.
    """
    here = here or ambient.get()
    if here is not None and here.core.closed:
        here = innermost()
    while here is not None:
        if here.runtime is runtime:
            if not here.core.closed:
                return here.core
            if not (here.passing or here.left()):
                raise SchedulerClosed(
                    f"scope {here.core.name!r} is closed, and this coroutine inherited it: "
                    "wait for such coroutines inside the scope, or start them outside of it, by "
                    "`asyncio.create_task(..., context=contextvars.Context())`"
                )
        here = here.outer
    return runtime.engine.root


def innermost() -> Ambient | None:
    """The innermost link, without those that this asyncio task has left. New tasks inherit none of these."""
    found = here = ambient.get()
    while here is not None and here.left():
        here = here.outer
    if here is not found:
        ambient.set(here)
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
