"""Reporting what blocks the event loop, while it is blocked.

Theory of operation. A heartbeat: a timer of the loop beats at regular times. A watchdog thread sleeps until a beat is
late by the threshold, and then reads the stack of the loop's thread, while it is still blocked. While the loop is not
late that costs one wake-up of the thread per threshold.

An idle loop is woken less and less: a beat that finds that next to no processor time was used since the last one
doubles the next pause, up to ten thresholds; one that finds work makes it short again. So an idle process is woken
twice a second. What may be missed is a block that begins and ends between two beats of an idle loop.

If the watchdog is late, too, the loop was not blocked by a callback: the process was stopped, by a debugger, say, or
the machine slept. A call that keeps the GIL makes both late as well, but that uses a processor.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from os.path import dirname, join
from time import perf_counter, process_time, thread_time
from typing import Any

from .._arguments import check_number
from .._core.instrument import Instrument
from .._log import Log

log = Log("asyncsched")

_RESTING = 0.01  # the share of the time since the last beat that a loop at rest uses of a processor
_LONGEST = 10  # thresholds between two beats
_SHORTEST = 0.001  # seconds, which is what uvloop rounds to
_EVERY = 1.0  # seconds between two blocks that are logged
_DEBUGGERS = ("bdb.py", "pydevd", "debugpy")
_PACKAGE = join(dirname(dirname(__file__)), "")
_CALLBACK, _TURN, _RUNNER = [  # of asyncio: who calls a callback, who calls that, and who calls uvloop
    (join(dirname(asyncio.__file__), file), name)
    for file, name in (("events.py", "_run"), ("base_events.py", "_run_once"), ("runners.py", "run"))
]

Clock = Callable[[], float]


class LoopGuard(Instrument):
    """An instrument that logs (as "asyncsched") when the thread of the event loop was blocked, and by which line.

    The stack is taken while the loop is blocked; when it goes on, the log says how long it took, and how much of that
    on a processor: next to nothing if it waited for something, all if it computed, and in between if others had the
    processors. Blocks less than a second after one that was logged are counted alone. A debugger that has stopped the
    program is no block.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard()]) as s:
    ...         await s.call(sum, range(10))  # `sum(range(10**8))` here would be logged
    >>> asc.run(main)

    Args:
        threshold: seconds without a turn of the loop from which on it counts as blocked.

    Raises:
        ValueError, TypeError: for a threshold that is not above 0, or no number.
        RuntimeError: when given to a second scheduler while the first has it.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        check_number("threshold", threshold, "seconds")
        self._threshold = threshold
        self._taken = False
        self._watch: Watch | None = None

    def attached(self, scheduler: Any) -> None:
        if self._taken:
            raise RuntimeError("this LoopGuard has a scheduler already: make another")
        self._taken = True

    def opened(self) -> None:
        self._watch = Watch(asyncio.get_running_loop(), self._threshold)
        self._watch.start()

    def detached(self) -> None:
        self._taken = False
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


class Watch:
    """Watches the loop whose thread makes it.

    Args:
        clock, thread_used, process_used: seconds: of the clock, and of processors by the thread that asks and by all.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threshold: float,
        clock: Clock = perf_counter,
        thread_used: Clock = thread_time,
        process_used: Clock = process_time,
    ) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._threshold = threshold
        self._clock, self._thread_used, self._process_used = clock, thread_used, process_used
        self._stopped = threading.Event()
        # Written by the loop's thread alone: the beats.
        self._pause = max(_SHORTEST, threshold / 4)
        self._last = clock(), thread_used()
        self._due = 0, self._last[0] + self._pause  # the number of the next beat, and when; replaced as a whole
        self._lateness = 0.0, 0.0  # of the last beat that was late, and what the thread used of a processor meanwhile
        self._timer: asyncio.TimerHandle | None = None
        # Written by the watching thread alone.
        self._since = clock()  # lateness before that is not the loop's
        self._look_at, self._look_used = self._since + threshold, process_used()
        self._told: tuple[int, str] | None = None  # the beat for which a block was reported, and its place
        self._quiet_until = self._since
        self._untold = 0
        self._counted = -1

    def start(self) -> None:
        """Start the beats on the loop, and the thread that watches them."""
        self._timer = self._loop.call_later(self._pause, self.beat)
        threading.Thread(target=self._run, name="asyncsched loop guard", daemon=True).start()

    def stop(self) -> None:
        """On the loop's thread. The other one ends by itself."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()

    # -- on the loop's thread ----------------------------------------------------------------------------------------

    def beat(self) -> None:
        """A beat: the loop turns, and this is called by it at short intervals."""
        now, used = self._clock(), self._thread_used()
        (number, due), (then, used_then) = self._due, self._last
        if now - due >= self._threshold:
            self._lateness = now - due, used - used_then
        rests = used - used_then < _RESTING * (now - then) and now - due < self._threshold
        least = max(_SHORTEST, self._threshold / 4)
        self._pause = min(2 * self._pause, max(least, _LONGEST * self._threshold)) if rests else least
        self._last = now, used
        self._due = number + 1, now + self._pause
        self._timer = self._loop.call_later(self._pause, self.beat)

    # -- on the watching one ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._threshold
        while not (self._stopped.wait(pause) or self._loop.is_closed()):
            pause = self.look()
        if self._untold:
            log.warning("the event loop was blocked %d more times", self._untold)

    def look(self) -> float:
        """Whether a beat is late. Returns the seconds until the next look."""
        now, used = self._clock(), self._process_used()
        overslept = now - self._look_at
        if overslept > self._threshold and used - self._look_used < overslept / 2:  # the process was stopped
            self._since = now
        if not self._loop.is_running():
            self._since = now
        number, due = self._due
        if self._told is not None and self._told[0] != number:
            text = "the event loop was blocked for %.3f s (%.3f s of a processor), at %s"
            log.warning(text, *self._lateness, self._told[1])
            self._told = None
        late = now - max(due, self._since)
        if late >= self._threshold:
            self._late(number, late, now)
        pause = self._threshold - late if late < self._threshold else self._threshold
        self._look_at, self._look_used = now + pause, used
        return pause

    def _late(self, number: int, late: float, now: float) -> None:
        """Report a block: once, and not too often."""
        if self._counted == number:
            return
        self._counted = number
        if now < self._quiet_until:
            self._untold += 1
            return
        stack = stack_of(self._thread)
        if stack is None or self._due[0] != number:  # the loop went on meanwhile
            return
        if any(debugger in frame.filename for frame in stack for debugger in _DEBUGGERS):
            return
        last = next((frame for frame in reversed(stack) if not frame.filename.startswith(_PACKAGE)), None)
        where = (
            f"{last.filename}:{last.lineno} in {last.name}" if last else "the scheduler's own" if stack else "C code"
        )
        self._told = number, where
        self._quiet_until = now + _EVERY
        more = f" ({self._untold} more times since the last that was told)" if self._untold else ""
        self._untold = 0
        log.warning(
            "the event loop is blocked, since %.3f s, at %s%s\n%sWhat takes long belongs in a task: `await s.call(fn,"
            " ...)`, or `await asyncio.to_thread(fn, ...)`",
            late,
            where,
            more,
            "".join(traceback.format_list(stack)),
        )


def stack_of(thread: int) -> list[traceback.FrameSummary] | None:
    """What the callback does that a loop's thread is in, the outermost first; None where it is in none.

    As text: a frame that was kept would keep its tensors.
    """
    frame = sys._current_frames().get(thread)
    found = list(traceback.extract_stack(frame)) if frame is not None else []
    del frame
    places = [(summary.filename, summary.name) for summary in found]
    for below in (_CALLBACK, _TURN, _RUNNER):
        if below in places:
            return None if below is _TURN else found[len(places) - places[::-1].index(below) :]
    return found
