"""Timers that will end asyncio tasks: of `asyncio.timeout`, `wait_for`, anyio's cancel scopes, a scope's deadline.

Theory of operation. A coroutine that waits in a `with` block holds the manager of that block, and this the timer;
`gc.get_referents` shows both. So no timer need be registered here. (The loop's own timers lead nowhere: nobody can see
what their callbacks are bound to.) When one fires, its task is cancelled, and with that what the task awaits, gathers,
or has in a task group. What it started otherwise goes on.
"""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from time import thread_time
from typing import Any, Final

from anyio import CancelScope
from anyio.abc import TaskGroup

from .places import frame_of, steps_of

_WAIT_FOR: Final = asyncio.wait_for.__code__  # before Python 3.12 it runs what it awaits in a task of its own
_MOST: Final = 300  # objects to look at for one coroutine. A guess
_THROUGH: Final = (dict, types.MethodType, types.GeneratorType, types.AsyncGeneratorType)  # from a manager to others


@dataclass(frozen=True)
class Timer:
    """One that is armed.

    Attributes:
        seconds: until it fires.
        task: whose it is.
        ends: the tasks that end by it.
    """

    seconds: float
    task: asyncio.Task[Any]
    ends: frozenset[asyncio.Task[Any]]


def timers_of(loop: asyncio.AbstractEventLoop, deadline: float) -> list[Timer] | None:
    """Every timer that will end a task of the loop, the next first; None if they cannot be found by `deadline`."""
    found: dict[int, Timer] = {}
    for task in asyncio.all_tasks(loop):
        if thread_time() > deadline:
            return None
        for step in steps_of(task):
            for held in (*_managers(step), *_of_wait_for(step)):
                when = _when(held)
                if when < inf and id(held) not in found:
                    whose = next((part for part in _parts(held) if isinstance(part, asyncio.Task)), task)
                    found[id(held)] = Timer(when - loop.time(), whose, frozenset(_ended_with(whose)))
    return sorted(found.values(), key=lambda timer: timer.seconds)


def _when(held: Any) -> float:
    """When a timer fires, by the clock of the loop; never, if it is none, or not armed."""
    if isinstance(held, asyncio.Timeout):
        return inf if held.expired() else held.when() or inf
    if isinstance(held, CancelScope):
        return inf if held.cancel_called else held.deadline
    if type(held).__name__ == "TimerHandle":  # asyncio's or uvloop's
        return inf if held.cancelled() else float(held.when())
    return inf


def _managers(step: Any) -> Iterator[Any]:
    """The managers of the `with` blocks in which a coroutine waits, and those that they hold themselves."""
    todo, seen = [(held, False) for held in gc.get_referents(step)], set[int]()
    while todo and len(seen) < _MOST:
        held, inside = todo.pop()
        kind = type(held)
        if id(held) in seen:
            continue
        seen.add(id(held))
        if hasattr(kind, "__exit__") or hasattr(kind, "__aexit__"):
            yield held
        elif kind is not types.MethodType and not (inside and kind in _THROUGH):
            continue
        todo += [(part, True) for part in gc.get_referents(held)]


def in_wait_for(task: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
    """The tasks that a task awaits by `asyncio.wait_for`, which is woken by these, or by its timer."""
    return {held for step in steps_of(task) for held in _of_wait_for(step) if isinstance(held, asyncio.Task)}


def _of_wait_for(step: Any) -> list[Any]:
    """What `asyncio.wait_for` has in its variables, if this is its coroutine: a timer, and the task that it awaits."""
    frame = frame_of(step)
    return gc.get_referents(step) if frame is not None and frame.f_code is _WAIT_FOR else []


def _parts(held: Any) -> list[Any]:
    """What the attributes of an object refer to."""
    parts = gc.get_referents(held)
    return [*parts, *(value for part in parts if type(part) is dict for value in part.values())]


def _ended_with(task: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
    """A task, and those that are cancelled with it."""
    found, todo = {task}, [task]
    while todo:
        task = todo.pop()
        awaited = getattr(task, "_fut_waiter", None)
        children = [awaited, *getattr(awaited, "_children", ()), *in_wait_for(task)]  # those of `gather`, too
        for step in steps_of(task):
            for held in _managers(step):
                if isinstance(held, (asyncio.TaskGroup, TaskGroup)):
                    children += [child for part in _parts(held) if type(part) is set for child in part]
        fresh = {child for child in children if isinstance(child, asyncio.Task) and not child.done()} - found
        found |= fresh
        todo += fresh
    return found
