"""Where an asyncio task waits: the user's line at the end of its chain of awaits; and what its variables hold."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

from .._core.callsite import is_users

_SUSPENDED: Final = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_AWAITING: Final = ("cr_await", "gi_yieldfrom", "ag_await")  # what coroutines and generators have the next link under
_AWAITED: Final = ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable")


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


def _is_kept(held: object, code: types.CodeType) -> bool:
    """Whether this may be the snapshot of a frame, and somebody else holds it."""
    if type(held) is not dict or sys.getrefcount(held) <= 5:  # a frame, a list, two variables and two arguments
        return False
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return all(type(key) is str and key in names for key in held)
