"""A view of a scheduler in the terminal, while it runs.

Theory of operation. A timer on the loop reads a snapshot four times a second, and hands it to a thread, which draws. So
the loop's state is read only on its own thread, and drawing, which takes milliseconds, holds up nothing. The thread
restores the terminal when the view ends: with the scheduler, with the block, or with the interpreter, which waits for
it.
"""

from __future__ import annotations

import asyncio
import atexit
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from .._arguments import check_number, require_package
from .._system import log, start_thread
from ..runtime import context
from ..runtime.loop_work import LOOKING
from ..runtime.loops import comes
from .summary import Snapshot, Summary

if TYPE_CHECKING:
    from rich.console import Console


_LATE = 1.0  # seconds without a snapshot after which the view says so
_WITHOUT = 120, 40  # columns and lines of the picture if there is no terminal
_AT_EXIT = 2.0  # seconds that the interpreter waits for the terminal to be restored


class Live(Summary):
    """A view in the terminal: streams, slots and bytes against their limits, operations by time, and waiting
    coroutines.

    Give it to a scheduler, or use it as `with asc.observe.Live():` inside an open one. The program's own output appears
    above it. If standard error is no terminal, only the last picture is shown, at the end.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[asc.observe.Live()]) as s:
    ...         await s.call(sum, range(1000))
    >>> asc.run(main)

    Args:
        scheduler: for `with`; default the ambient one, or the only one open.
        every: seconds between two pictures.
        console: a console of rich; default standard error.

    Raises:
        ModuleNotFoundError: if the package rich is not installed.
        SchedulerClosed: by `with`, if no scheduler is open.
    """

    def __init__(self, scheduler: Any = None, *, every: float = 0.25, console: Console | None = None) -> None:
        super().__init__()
        require_package("asc.observe.Live", "rich", "live")
        self._given = scheduler
        self._every: float = check_number("every", every, "seconds")
        self._console = console
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._screen: _Screen | None = None

    def __enter__(self) -> Self:
        context.find(self._given).add_instrument(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self._loop is not None:  # else the scheduler has closed
            self._leave()

    def opened(self) -> None:
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True)
        self._loop = asyncio.get_running_loop()
        if self._console.is_interactive:
            self._screen = _Screen(self._console, self.read())
            self._tick()

    def detached(self) -> None:
        if self._loop is None:
            return
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        last = self.read()
        if self._screen is not None:
            self._screen.show(last)
            self._screen.end()
        else:
            from .view import draw

            assert self._console is not None
            self._console.print(draw(last, None, *_WITHOUT), soft_wrap=True)

    def _tick(self) -> None:
        if self._loop is not None and self._screen is not None:
            self._screen.show(self.read())
            self._timer = self._loop.call_later(self._every, self._tick)


LOOKING.add(Live._tick)


class _Screen:
    """A thread that draws the last picture it was given."""

    def __init__(self, console: Console, first: Snapshot) -> None:
        self._console = console
        self._last = first
        self._over = False
        self._fresh: SimpleQueue[None] = SimpleQueue()  # at most one item. Not an event: see `runtime.loops`
        self._thread = start_thread(self._run, "live")
        atexit.register(self._finish)

    def show(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        self._wake()

    def end(self) -> None:
        """End after the present picture. Does not wait."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._fresh.empty():
            self._fresh.put(None)

    def _finish(self) -> None:
        self.end()
        self._thread.join(_AT_EXIT)

    def _run(self) -> None:
        try:
            self._draw()
        except Exception:
            log.exception("the live view ended")
        finally:
            atexit.unregister(self._finish)

    def _draw(self) -> None:
        from rich.live import Live as Display

        from .view import draw

        now, before, came, over = self._last, None, perf_counter(), False
        with Display(console=self._console, auto_refresh=False, vertical_overflow="crop") as display:
            while not over:
                late = 0.0
                if comes(self._fresh, _LATE):
                    over = self._over
                    now, before, came = self._last, now, perf_counter()
                else:
                    late = perf_counter() - came
                size = self._console.size
                text = draw(now, None if over else before, size.width, size.height - 1, late)
                if over:
                    text.append("\n")  # later output appears below it
                display.update(text, refresh=True)
