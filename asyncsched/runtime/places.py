"""Where an asyncio task waits: the user's line at the end of its chain of awaits."""

from __future__ import annotations

import asyncio
import types
from typing import Any, Final

from .._core.callsite import is_users

AWAITING: Final = ("cr_await", "gi_yieldfrom", "ag_await")  # what coroutines and generators have the next link under


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """A task, and where it waits."""
    return f"task {task.get_name()!r}, which waits {place_of(task)}"


def place_of(task: asyncio.Task[Any]) -> str:
    """The line of the user's at which a task waits: "at file:line in f"; where there is none, the coroutine it runs."""
    step: Any = task.get_coro()
    place = f"in {getattr(step, '__qualname__', type(step).__name__)}"
    while step is not None:
        frame = frame_of(step)
        if frame is not None and is_users(frame.f_code):
            place = f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        step = next((s for name in AWAITING if (s := getattr(step, name, None)) is not None), None)
    return place


def frame_of(coroutine: Any) -> types.FrameType | None:
    """The frame of a coroutine or a generator, asynchronous or not; None if it has ended, and for anything else."""
    return next(
        (f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coroutine, name, None)) is not None), None
    )
