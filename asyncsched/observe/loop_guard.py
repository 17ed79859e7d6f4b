"""Reporting the code that blocks the event loop, while it is blocked.

Theory of operation. A watchdog thread asks the loop for a sign, several times in each threshold. If none comes within
the threshold, it reads the stack of the loop's thread, while that is still blocked. Then it waits for the sign, to
learn how long the block was. If the stack shows no callback, the loop goes on just now, or the whole process was
stopped: that is no block.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from os.path import dirname, join
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from .._arguments import check_number
from .._core.instrument import Instrument
from .._log import log
from .._threads import start_thread
from ..runtime.loops import comes

_SIGNS = 4  # signs for which the loop is asked in a threshold
_EVERY = 1.0  # seconds after a block in which no other is reported, for a short log
_PACKAGE = join(dirname(dirname(__file__)), "")
_CALLBACK, _TURN, _RUNNER = [  # of asyncio: the function that calls a callback, its caller, and the caller of uvloop
    (join(dirname(asyncio.__file__), file), name)
    for file, name in (("events.py", "_run"), ("base_events.py", "_run_once"), ("runners.py", "run"))
]


class LoopGuard(Instrument):
    """An instrument that logs (as "asyncsched") when the event loop's thread was blocked, and by which line.

    The stack is taken while the loop is blocked. When it goes on, the log says how long the block was. Blocks within
    the next second are not reported.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard()]) as s:
    ...         await s.call(sum, range(10))  # `sum(range(10**8))` here would be logged
    >>> asc.run(main)

    Args:
        threshold: after so many seconds without a turn the loop counts as blocked. Some blocks that are less than a
            quarter longer are missed.

    Raises:
        ValueError, TypeError: for a threshold that is not above 0, or no number.
        RuntimeError: when given to a second scheduler while the first has it.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        check_number("threshold", threshold, "seconds")
        self._threshold = threshold
        self._stopped: SimpleQueue[None] | None = None  # gets an item when the scheduler closes

    def attached(self, scheduler: Any) -> None:
        if self._stopped is not None:
            raise RuntimeError("this LoopGuard has a scheduler already: make another")
        self._stopped = SimpleQueue()

    def opened(self) -> None:
        assert self._stopped is not None
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        run = partial(watch, loop, thread, self._threshold, self._stopped)
        start_thread(run, "loop guard")

    def detached(self) -> None:
        assert self._stopped is not None
        self._stopped.put(None)
        self._stopped = None


def watch(loop: asyncio.AbstractEventLoop, thread: int, threshold: float, stopped: SimpleQueue[None]) -> None:
    """Report each block of a loop, which runs on the thread of this number, until there is an item in `stopped`."""
    pause = threshold / _SIGNS
    while not (comes(stopped, pause) or loop.is_closed()):
        pause = threshold / _SIGNS
        if not loop.is_running():
            continue
        asked = perf_counter()
        sign: SimpleQueue[None] = SimpleQueue()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(sign.put, None)
        if comes(sign, threshold) or not loop.is_running() or (stack := stack_of(thread)) is None:
            continue
        last = next((frame for frame in reversed(stack) if not frame.filename.startswith(_PACKAGE)), None)
        where = (
            f"{last.filename}:{last.lineno} in {last.name}" if last else "the scheduler's own" if stack else "C code"
        )
        log.warning(
            "the event loop is blocked, since %.3f s, at %s\n%sPut long work into a task: `await s.call(fn, ...)`,"
            " or `await asyncio.to_thread(fn, ...)`",
            perf_counter() - asked,
            where,
            "".join(traceback.format_list(stack)),
        )
        while not comes(sign, threshold):
            if not stopped.empty() or loop.is_closed():
                return
        log.warning("the event loop was blocked for %.3f s, at %s", perf_counter() - asked, where)
        pause = _EVERY


def stack_of(thread: int) -> list[traceback.FrameSummary] | None:
    """The stack of the callback that a loop's thread runs, the outermost frame first; None if it runs none.

    As text, since a kept frame would keep its tensors.
    """
    frame = sys._current_frames().get(thread)
    found = list(traceback.extract_stack(frame)) if frame is not None else []
    del frame
    places = [(summary.filename, summary.name) for summary in found]
    for below in (_CALLBACK, _TURN, _RUNNER):
        if below in places:
            return None if below is _TURN else found[len(places) - places[::-1].index(below) :]
    return found
