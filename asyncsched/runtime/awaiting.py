"""What is seen of asyncio tasks that wait: where, for what, with what in their variables, and what timers end them.

Theory of operation. A suspended task has a chain of awaits, from its coroutine down to the future that it waits for.
The last step of it that is the user's is where the task waits. A coroutine that waits in a `with` block holds the
manager of that block, and this the timer of an `asyncio.timeout`, a cancel scope of anyio's, a scope's deadline;
`gc.get_referents` shows both. So no timer need be registered here. (The loop's own timers lead nowhere: nobody can see
what their callbacks are bound to.) When one fires, its task is cancelled, and with that what the task awaits, gathers,
or has in a task group. What it started otherwise goes on.

All of these do not end at once. A task that was cancelled unwinds when the loop comes to it, at its next turn, and only
then does its task group cancel others, which unwind at a turn after that. Meanwhile the timer is none any more, and the
others wait as before. So whoever is about to unwind counts as a timer that is due. That is never for long: who catches
the cancellation, and waits again, waits like anybody.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from time import thread_time
from typing import Any, Final

from anyio import CancelScope
from anyio.abc import TaskGroup

from .._core.callsite import is_users

# Classes that Python gives no other names. Where a name is another less is found, and nobody is accused: a task may be
# woken by anybody then.
_AWAITED: Final = ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable")
_ARMED: Final = "TimerHandle"  # asyncio's or uvloop's
_HANDLES: Final = (_ARMED, "Handle")

_WAIT_FOR: Final = asyncio.wait_for.__code__  # before Python 3.12 it runs what it awaits in a task of its own
_SUSPENDED: Final = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_AWAITING: Final = ("cr_await", "gi_yieldfrom", "ag_await")  # what coroutines and generators have the next link under
_MOST: Final = 300  # objects to look at for one coroutine. A guess
_THROUGH: Final = (dict, types.MethodType, types.GeneratorType, types.AsyncGeneratorType)  # from a manager to others


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """A task, and where it waits."""
    return f"task {task.get_name()!r}, which waits {place_of(task)}"


def place_of(task: asyncio.Task[Any]) -> str:
    """The line of the user's at which a task waits: "at file:line in f"; where there is none, the coroutine it runs."""
    step: Any = task.get_coro()
    place = f"in {getattr(step, '__qualname__', type(step).__name__)}"
    for step in steps_of(task):
        frame = frame_of(step)
        if frame is not None and is_users(frame.f_code):
            place = f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    return place


def steps_of(task: asyncio.Task[Any]) -> Iterator[Any]:
    """The suspended coroutines and generators in the chain of awaits of a task, from the outermost on."""
    seen: set[int] = set()
    todo: list[Any] = [task.get_coro()]
    while todo:
        step = todo.pop()
        if step is None or id(step) in seen:
            continue
        seen.add(id(step))
        if isinstance(step, _SUSPENDED):
            yield step
            todo += [getattr(step, name, None) for name in _AWAITING]
        elif type(step).__name__ in _AWAITED:
            todo += gc.get_referents(step)


def awaited_by(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """The future that a task waits for; None if it waits for none, or that is not seen."""
    *_, last = None, *steps_of(task)
    iterators = [getattr(last, name, None) for name in _AWAITING]
    return next((one for one in gc.get_referents(*iterators) if isinstance(one, asyncio.Future)), None)


def frame_of(coroutine: Any) -> types.FrameType | None:
    """The frame of a coroutine or a generator, asynchronous or not; None if it has ended, and for anything else."""
    return next(
        (f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coroutine, name, None)) is not None), None
    )


def variables_of(frame: types.FrameType, of: object = None) -> list[tuple[str, int]]:
    """The names of the variables in a frame, with the identities of what they hold. Nothing of a user's is changed.

    Before Python 3.13 a look at a function's variables makes a snapshot in its frame, and renews one that is there:
    the dict which the function got from `locals()`, if it called that. So one that somebody else holds is left alone,
    and one that pins what is in it is emptied.

    Args:
        of: the suspended coroutine or generator whose frame it is.
    """
    code = frame.f_code
    snapshot = sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED
    if snapshot and any(_is_kept(held, code) for held in gc.get_referents(of)):
        return []
    variables = frame.f_locals
    found = [(name, id(held)) for name, held in list(variables.items())]
    if snapshot and sys.getrefcount(variables) <= 3:  # the frame, the variable, and the argument
        variables.clear()
    return found


def referents(thing: Any) -> Iterable[int]:
    """The identities of what an object refers to: each as often as it has a counted reference to that, or less often.

    From Python 3.14 on what a generator has on its stack where it yields may be borrowed from a variable of its own:
    shown twice, and counted once. Shown only there, it has a reference of its own. What is on the stack where something
    is awaited always has: the compiler borrows nothing across branches.
    """
    shown = map(id, gc.get_referents(thing))
    frame = frame_of(thing) if sys.version_info >= (3, 14) and type(thing) in _SUSPENDED else None
    if frame is None or any(getattr(thing, name, None) is not None for name in _AWAITING):
        return shown
    plain = set(frame.f_code.co_varnames).difference(frame.f_code.co_cellvars)  # what is in a cell is held by that
    variables = [(name, held) for name, held in variables_of(frame) if name in plain]
    borrowed = _borrowed_before(frame)
    doubtful = {held for name, held in variables if name in borrowed}
    return [*(held for _, held in variables if held in doubtful), *(key for key in shown if key not in doubtful)]


def _borrowed_before(frame: types.FrameType) -> set[str]:
    """The variables from which the code borrows between the last branch and where it stands."""
    names = set[str]()
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti:
            break
        if step.is_jump_target:  # nothing that is borrowed outlasts a branch
            names.clear()
        if "BORROW" in step.opname:
            names.update([step.argval] if isinstance(step.argval, str) else step.argval)
    return names


def _is_kept(held: object, code: types.CodeType) -> bool:
    """Whether this may be the snapshot of a frame, and somebody else holds it."""
    if type(held) is not dict or sys.getrefcount(held) <= 5:  # a frame, a list, two variables and two arguments
        return False
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return all(type(key) is str and key in names for key in held)


@dataclass(frozen=True)
class Timer:
    """One that is armed; or what ends a task in any case.

    Attributes:
        seconds: until it fires; zero or less where it is due, or the task is about to unwind.
        task: whose it is.
        ends: the tasks that end by it.
    """

    seconds: float
    task: asyncio.Task[Any]
    ends: frozenset[asyncio.Task[Any]]


def timers_of(loop: asyncio.AbstractEventLoop, deadline: float) -> list[Timer] | None:
    """Every timer that will end a task of the loop, and whatever ends one now, the next first; None if they cannot be
    found by `deadline`."""
    found: dict[int, Timer] = {}
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        if thread_time() > deadline:
            return None
        held = [held for step in steps_of(task) for held in (*_managers(step), *_of_wait_for(step))]
        for one in held:
            when = _when(one)
            if when < inf and id(one) not in found:
                whose = next((part for part in _parts(one) if isinstance(part, asyncio.Task)), task)
                found[id(one)] = Timer(when - loop.time(), whose, frozenset(_ended_with(whose)))
        if _unwinds(task, held):
            found[id(task)] = Timer(0.0, task, frozenset(_ended_with(task)))
    ending = {task for timer in found.values() if timer.seconds <= 0 for task in timer.ends}
    # Who awaits one that ends so unwinds after it.
    while ending and (after := [task for task in tasks - ending if not ending.isdisjoint(_tasks_awaited_by(task))]):
        for task in after:
            found[id(task)] = Timer(0.0, task, frozenset(_ended_with(task)))
            ending |= found[id(task)].ends
    return sorted(found.values(), key=lambda timer: timer.seconds)


def _when(held: Any) -> float:
    """When a timer fires, by the clock of the loop; never, if it is none, or not armed.

    A manager is armed while it holds a handle of the loop's: not before or after its block, and not once it has fired.
    But a cancel scope of anyio's cancels again at each turn, until its tasks have left it.
    """
    if isinstance(held, (asyncio.Timeout, CancelScope)):
        if not any(type(part).__name__ in _HANDLES for part in _parts(held)):
            return inf
        if isinstance(held, CancelScope):
            return -inf if held.cancel_called else held.deadline
        return inf if (when := held.when()) is None else when
    if type(held).__name__ == _ARMED:
        return inf if held.cancelled() else float(held.when())
    return inf


def _unwinds(task: asyncio.Task[Any], held: list[Any]) -> bool:
    """Whether a task that has these managers goes on with an exception, or will be cancelled by its task group, once
    the loop comes to that."""
    awaited = awaited_by(task)
    gathered = _gathered_by(awaited)
    goes_on = awaited is None or awaited.done() or (gathered and all(child.done() for child in gathered))
    if goes_on and (task.cancelling() or any(_failed(future) for future in (awaited, *gathered))):
        return True
    return any(_failed(child) for group in held for child in _children_of(group))


def _failed(awaited: asyncio.Future[Any] | None) -> bool:
    """Whether a future has ended otherwise than with a result."""
    return awaited is not None and awaited.done() and (awaited.cancelled() or awaited.exception() is not None)


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
    """What `asyncio.wait_for` has in its variables, if this is its coroutine: a timer, and the task that it awaits.

    The timer only until it has fired: then it waits in another coroutine, for that task to end.
    """
    frame = frame_of(step)
    held = gc.get_referents(step) if frame is not None and frame.f_code is _WAIT_FOR else []
    fired = held and isinstance(step.cr_await, types.CoroutineType)
    return [one for one in held if not fired or type(one).__name__ != _ARMED]


def _parts(held: Any) -> list[Any]:
    """What the attributes of an object refer to."""
    parts = gc.get_referents(held)
    return [*parts, *(value for part in parts if type(part) is dict for value in part.values())]


def _ended_with(task: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
    """A task, and those that are cancelled with it."""
    found, todo = {task}, [task]
    while todo:
        task = todo.pop()
        children = [child for step in steps_of(task) for held in _managers(step) for child in _children_of(held)]
        fresh = {child for child in (*_tasks_awaited_by(task), *children) if not child.done()} - found
        found |= fresh
        todo += fresh
    return found


def _tasks_awaited_by(task: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
    """The tasks that a task awaits, gathers, or has in `asyncio.wait_for`."""
    awaited = awaited_by(task)
    several = (awaited, *_gathered_by(awaited))
    return {child for child in several if isinstance(child, asyncio.Task)} | in_wait_for(task)


def _gathered_by(awaited: asyncio.Future[Any] | None) -> list[asyncio.Future[Any]]:
    """What a future waits for that `asyncio.gather` made; nothing, if it did not."""
    parts = [child for part in _parts(awaited) if type(part) is list for child in part]
    return [child for child in parts if isinstance(child, asyncio.Future)]


def _children_of(held: Any) -> list[asyncio.Task[Any]]:
    """The tasks of a task group, asyncio's or anyio's; none, if it is something else."""
    if not isinstance(held, (asyncio.TaskGroup, TaskGroup)):
        return []
    children = [child for part in _parts(held) if type(part) is set for child in part]
    return [child for child in children if isinstance(child, asyncio.Task)]
