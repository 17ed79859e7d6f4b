"""A look at waiting asyncio tasks: where and for what they wait, and what they hold.

Theory of operation. A suspended task has a chain of awaits, from its coroutine down to the future that it waits for.
The task waits at the last step that is the user's. `gc.get_referents` shows what a step holds.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import types
from typing import Any, Final

from .._core.callsite import is_users

# Classes for which Python has no names. If a name changes, less is found, and no deadlock is reported: then anybody may
# wake a task.
_AWAITED: Final = ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable")

# For each type: the attributes with the frame and the next link, and whether it is suspended.
_SUSPENDED: Final[dict[type, tuple[str, str, str]]] = {
    types.CoroutineType: ("cr_frame", "cr_await", "cr_suspended"),
    types.GeneratorType: ("gi_frame", "gi_yieldfrom", "gi_suspended"),
    types.AsyncGeneratorType: ("ag_frame", "ag_await", "ag_suspended"),
}


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """A task's name and the place where it waits, as text."""
    return f"task {task.get_name()!r}, which waits {place_of(task)}"


def place_of(task: asyncio.Task[Any]) -> str:
    """The user's line at which a task waits ("at file:line in f"), or else the coroutine that it runs."""
    step: Any = task.get_coro()
    place = f"in {getattr(step, '__qualname__', type(step).__name__)}"
    for step in steps_of(task):
        frame = frame_of(step)
        if frame is not None and is_users(frame.f_code):
            place = f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    return place


def steps_of(task: asyncio.Task[Any]) -> list[Any]:
    """The suspended coroutines and generators in a task's chain of awaits, outermost first."""
    found: list[Any] = []
    seen: set[int] = set()
    todo: list[Any] = [task.get_coro()]
    while todo:
        step = todo.pop()
        if step is None or id(step) in seen:
            continue
        seen.add(id(step))
        if type(step) in _SUSPENDED:
            found.append(step)
            todo.append(_next_link(step))
        elif type(step).__name__ in _AWAITED:
            todo += gc.get_referents(step)
    return found


def end_of(task: asyncio.Task[Any]) -> Any:
    """What the last of these steps awaits; without any step, what the task runs; None if it lets the loop turn once."""
    steps = steps_of(task)
    return _next_link(steps[-1]) if steps else task.get_coro()


def awaits(task: asyncio.Task[Any], frame: int) -> bool:
    """Whether a suspended task is in the coroutine or generator with the frame of this identity, or may be, since its
    chain of awaits goes on in C."""
    in_it = any(id(frame_of(step)) == frame for step in steps_of(task))
    return in_it or (end_of(task) is not None and awaits_unseen(task))


def awaited_by(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """The future that a task waits for; None if it waits for none, or if it cannot be seen."""
    end = end_of(task)
    held = () if end is task.get_coro() else gc.get_referents(end)  # that may hold any
    return next((one for one in held if isinstance(one, asyncio.Future)), None)


def awaits_unseen(task: asyncio.Task[Any]) -> bool:
    """Whether a task's chain of awaits ends in C: neither in a future, nor in an object of a class of Python's."""
    in_python = isinstance(getattr(type(end_of(task)), "send", None), types.FunctionType)
    return not in_python and awaited_by(task) is None


def frame_of(coroutine: Any) -> types.FrameType | None:
    """The frame of a coroutine or generator, asynchronous or not; None if it has ended, and for other objects."""
    names = _SUSPENDED.get(type(coroutine))
    return None if names is None else getattr(coroutine, names[0])


def _next_link(coroutine: Any) -> Any:
    """The object that a suspended coroutine or generator awaits; None if there is none, and for other objects.

    A running one is not asked: before Python 3.13, CPython may take any word of its frame for the answer, and crash.
    """
    names = _SUSPENDED.get(type(coroutine))
    # Python 3.11 does not tell of asynchronous generators: they are suspended, as is the step that leads to them.
    if names is None or not getattr(coroutine, names[2], True):
        return None
    return getattr(coroutine, names[1])


def variables_of(frame: types.FrameType, of: object = None) -> list[tuple[str, Any]]:
    """The names of the variables in a frame, with their values. Changes nothing of the user's.

    Before Python 3.13, reading a function's variables makes a snapshot in its frame, or renews the existing one: the
    dict that the function got from `locals()`, if it called that. So a snapshot that somebody else holds is left alone.
    A snapshot of our own, which would pin the values, is emptied.

    Args:
        of: the suspended coroutine or generator that the frame belongs to.
    """
    code = frame.f_code
    snapshot = sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED
    if snapshot and any(_is_kept(held, code) for held in gc.get_referents(of)):
        return []
    variables = frame.f_locals
    found = list(variables.items())
    if snapshot and sys.getrefcount(variables) <= 3:  # the frame, the variable, and the argument
        variables.clear()
    return found


def _is_kept(held: object, code: types.CodeType) -> bool:
    """Whether `held` may be the snapshot of a frame, held by somebody else."""
    if type(held) is not dict or sys.getrefcount(held) <= 5:  # a frame, a list, two variables and two arguments
        return False
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return all(type(key) is str and key in names for key in held)
