"""Streams that help each other: idle streams take parts of a large operation from the stream that has it.

Theory of operation. The stream that has the task puts the parts where all see them, wakes idle streams, and then takes
parts itself until none is left. So it never waits for help: a stream that comes late finds nothing to do. A stream
looks for parts before it sleeps: because it has no task, or because its next task waits for another stream's. In a
training step that is most of the time of all but one stream, since each layer needs the one before. When the stream
gets a task, or the wait is over, it takes no more parts. Parts take about a millisecond, except those of products of
matrices, see `ops.cut`. At the end the stream that has the operation waits for the parts that others have begun. A task
that is cut is one task: it has one slot, one charge, and one end, which its own stream reports.

No wake-up is lost between a stream that shares parts and one that goes to sleep. The first shows its parts first and
looks for sleepers second. The other says first that it is about to sleep, and looks for parts second.

A helper drops its part before it reports the end, as a stream does with a task: bytes return with the last reference.

Not taken: a pool of threads only for parts. It would compete with the streams for the processors, as the threads of a
BLAS do, which spin for 25 to 100 ms after each product. (With several streams BLAS has one thread for each.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from ...ops.parallel import Part
from ..counter import Counter


class Helper(Protocol):
    """A stream, as its neighbours see it."""

    launched: int  # tasks so far
    finished: Counter

    def wake(self, shared: Shared) -> None:
        """If it sleeps, have it help with parts."""


class Shared:
    """The parts of an operation that nobody has begun, and a count of those that have ended."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(reversed(parts))
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def left(self) -> bool:
        """Whether there are parts that nobody has begun."""
        return bool(self._parts)

    def help(self, enough: Callable[[], bool] | None = None) -> None:
        """Run parts until none is left, or `enough()` is true. It is called before each part. Raises nothing."""
        while enough is None or not enough():
            try:
                # The error gets no name here: its traceback holds this frame, which would hold the error in turn.
                self._ends.put(_error_of(self._parts.pop()))
            except IndexError:  # all are begun
                return

    def wait(self, count: int) -> None:
        """Wait until so many parts have ended. Raises an exception of one of them."""
        errors = [error for error in (self._ends.get() for _ in range(count)) if error is not None]
        if errors:
            raise errors.pop()  # and this frame, which its traceback holds, drops it


class Team:
    """The streams of one device: `size` of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.streams: Sequence[Helper] = ()
        self.parts: list[Shared] = []  # operations with parts that nobody has begun, and perhaps some without

    def run(self, parts: Sequence[Part]) -> None:
        """Run parts on the calling stream and on idle ones. Raises an exception of one of them."""
        shared = Shared(parts)
        self.parts.append(shared)
        for stream in self.streams:
            stream.wake(shared)
        shared.help()
        self.parts.remove(shared)
        shared.wait(len(parts))

    def open(self) -> Shared | None:
        """An operation with parts that nobody has begun; None if there is none."""
        if not self.parts:  # as most often
            return None
        # A copy of a list is made in one step, with the GIL and without it.
        return next((shared for shared in list(self.parts) if shared.left()), None)


def _error_of(part: Part) -> BaseException | None:
    try:
        part()
    except BaseException as error:  # raised again by the stream that has the task
        return error
    return None
