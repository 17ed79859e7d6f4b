"""Where a scheduler is in its life, and who may use it: the code of one event loop alone, on its thread."""

from __future__ import annotations

import asyncio
import threading
from enum import Enum, auto
from typing import Final

from .._core.failure import Failure
from ..devices.contract import StreamDied, in_stream_thread
from ..errors import SchedulerClosed


class InlineMode(Enum):
    """Whether quick operations may run on the event loop's thread."""

    NEVER = auto()
    BACKLOG_ONLY = auto()  # those alone that wait already
    ALWAYS = auto()


class Life(Enum):
    """Where a scheduler is in its life."""

    NEW = auto()
    OPEN = auto()
    CLOSING = auto()  # takes nothing new
    CLOSED = auto()  # its devices have stopped
    FORKED = auto()  # this is the child process of a fork: its threads are not here, and its loop is the parent's


OPEN: Final = "`async with asyncsched.Scheduler() as s`, or in a notebook `s = await asyncsched.open()`"
_CLOSED: Final = f"the scheduler is closed: open another by {OPEN}"
_INTERRUPTED: Final = "{} came in the middle of the scheduler's own bookkeeping"
_CLOSES: Final = (
    "So it has closed: what was unfinished is lost, what is done can be read. `await s.aclose()` it or leave its block,"
    " and open another"
)
_REFUSALS: Final = {
    Life.NEW: f"the scheduler is not open yet: use {OPEN}",
    Life.CLOSING: _CLOSED,
    Life.CLOSED: _CLOSED,
    Life.FORKED: "a scheduler does not survive a fork: open one in the child, or use the 'spawn' start method",
}


class OnOneLoop:
    """What is opened on an event loop, and refuses to be used elsewhere, before or after."""

    def __init__(self) -> None:
        self.life: Life = Life.NEW
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int = 0  # the loop's thread while open; 0 makes every call ask `refuse` why
        self.inline: InlineMode = InlineMode.NEVER  # whether quick operations may run on it
        self.interrupted: Failure | None = None  # why it closed itself, see `_core.engine`

    def check(self) -> None:
        """Raise unless this thread, on this event loop, may submit."""
        loop = self.loop
        if threading.get_ident() != self.thread or loop is None or not (loop.is_running() or _rests(loop)):
            self.refuse()

    def check_waiting(self) -> None:
        """Raise unless the calling thread may wait, as it may also while the scheduler closes, and after."""
        if self.life is not Life.CLOSED and (self.life is not Life.CLOSING or running_loop() is not self.loop):
            self.check()

    def refuse(self) -> None:
        """Raise why this thread, at this moment, may not submit anything."""
        if self.interrupted is not None:
            self.interrupted.rethrow()
        if self.life in _REFUSALS:
            raise SchedulerClosed(_REFUSALS[self.life])
        assert self.loop is not None
        if self.loop.is_closed():
            raise SchedulerClosed("the scheduler's event loop is closed: open a scheduler in the running loop")
        if threading.get_ident() == self.thread:
            raise RuntimeError(
                "a scheduler is used on the event loop on which it was opened, and another one runs now: open a"
                " scheduler on this loop, or keep to one loop (`asyncio.run` makes a new one each time)"
            )
        if in_stream_thread():
            raise RuntimeError(
                "a scheduler is used from its event loop's thread alone, and this is a task's: give it tensors as"
                " arguments, which arrive as arrays, and compute with NumPy's functions there"
            )
        raise RuntimeError(
            "a scheduler is used from its event loop's thread alone: from elsewhere use"
            " `asyncio.run_coroutine_threadsafe(coroutine, loop)`, and in a server `async def` handlers"
        )

    def _interruption(self, error: BaseException) -> Failure:
        """Why it closes itself: an exception in the middle of its bookkeeping, or one that ended a stream's thread."""
        told = str(error) if isinstance(error, StreamDied) else _INTERRUPTED.format(type(error).__name__)
        return Failure(SchedulerClosed(f"{told}. {_CLOSES}"), "the scheduler", None)

    def _move_on(self, life: Life) -> None:
        self.life = life
        self.thread, self.inline = 0, InlineMode.NEVER


def _rests(loop: asyncio.AbstractEventLoop) -> bool:
    """Called on the thread of a loop that does not run: whether it may run again, and no other runs in its place.

    A thread runs one loop at a time. To ask for that one takes five times as long (on CPython 3.11) as to ask whether
    this one does.
    """
    return not (loop.is_closed() or running_loop())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs on this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
