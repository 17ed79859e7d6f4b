"""A scheduler's life, and the rule of who may use it: only code of its event loop, on that loop's thread."""

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
    BACKLOG_ONLY = auto()  # only those that wait in the backlog
    ALWAYS = auto()


class Life(Enum):
    """The state of a scheduler in its life."""

    NEW = auto()
    OPEN = auto()
    CLOSING = auto()  # takes no new work
    CLOSED = auto()  # its devices have stopped
    FORKED = auto()  # in the child process of a fork: the threads and the loop are the parent's


OPEN: Final = "`async with asyncsched.Scheduler() as s`, or in a notebook `s = await asyncsched.open()`"
_CLOSED: Final = f"the scheduler is closed: open another by {OPEN}"
_INTERRUPTED: Final = "{} came in the middle of the scheduler's own bookkeeping"
DROPPED: Final = (
    "nothing referred to the open scheduler any more, so it has closed: unfinished work is lost, results that are done"
    f" can be read. Keep the variable that holds it as long as you use its tensors, and open another by {OPEN}"
)
_CLOSES: Final = (
    "So it has closed: unfinished work is lost, results that are done can be read. `await s.aclose()` it or leave its"
    " block, and open another"
)
_REFUSALS: Final = {
    Life.NEW: f"the scheduler is not open yet: use {OPEN}",
    Life.CLOSING: _CLOSED,
    Life.CLOSED: _CLOSED,
    Life.FORKED: "a scheduler does not survive a fork: open one in the child, or use the 'spawn' start method",
}


class OnOneLoop:
    """An object that is opened on one event loop, and refuses any use elsewhere, earlier or later."""

    def __init__(self) -> None:
        self.life: Life = Life.NEW
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int = 0  # the loop's thread while open; 0 sends every call to `refuse`
        self.inline: InlineMode = InlineMode.NEVER  # whether quick operations may run on that thread
        self.interrupted: Failure | None = None  # why the scheduler closed itself, see `_core.engine`

    def check(self) -> None:
        """Raise unless this thread, on this event loop, may submit work."""
        loop = self.loop
        if threading.get_ident() != self.thread or loop is None or not (loop.is_running() or _may_run_again(loop)):
            self.refuse()

    def check_waiting(self) -> None:
        """Raise unless the calling thread may wait. Waiting is allowed also while the scheduler closes, and after."""
        if self.life is not Life.CLOSED and (self.life is not Life.CLOSING or running_loop() is not self.loop):
            self.check()

    def refuse(self) -> None:
        """Raise the reason why this thread may not submit work now."""
        if self.interrupted is not None:
            self.interrupted.rethrow()
        if self.life in _REFUSALS:
            raise SchedulerClosed(_REFUSALS[self.life])
        assert self.loop is not None
        if self.loop.is_closed():
            raise SchedulerClosed("the scheduler's event loop is closed: open a scheduler in the running loop")
        if threading.get_ident() == self.thread:
            raise RuntimeError(
                "a scheduler belongs to the event loop on which it was opened, and another one runs now: open a"
                " scheduler on this loop, or keep to one loop (`asyncio.run` makes a new one each time)"
            )
        if in_stream_thread():
            raise RuntimeError(
                "only the thread of a scheduler's event loop may use it, and this is a task's thread: pass tensors to"
                " the task as arguments, which arrive as arrays, and compute with NumPy's functions there"
            )
        raise RuntimeError(
            "only the thread of a scheduler's event loop may use it: from another thread use"
            " `asyncio.run_coroutine_threadsafe(coroutine, loop)`, and in a server `async def` handlers"
        )

    def _interruption(self, error: BaseException) -> Failure:
        """The failure of everything after an exception in the bookkeeping, or one that ended a stream's thread."""
        told = str(error) if isinstance(error, StreamDied) else _INTERRUPTED.format(type(error).__name__)
        return Failure(SchedulerClosed(f"{told}. {_CLOSES}"), "the scheduler", None)

    def _move_on(self, life: Life) -> None:
        self.life = life
        self.thread, self.inline = 0, InlineMode.NEVER


def _may_run_again(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop that does not run may run again, and no other loop runs. Called on the loop's thread.

    A thread runs one loop at a time. `running_loop` takes five times as long (on CPython 3.11) as `loop.is_running`.
    """
    return not (loop.is_closed() or running_loop())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs on this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
