"""Streams that help each other: idle streams take parts of a large operation from the stream that has it.

Theory of operation. The stream whose task it is puts the parts where all see them, wakes streams that have nothing to
do, and then takes parts itself until none is left. So it never waits for help: whoever comes late finds nothing to do.
A stream looks for parts before it sleeps: for want of a task, or because its next one waits for another stream's. In a
training step that is most of the time of all but one, since each layer needs the one before. When there is a task for
it, or what it waited for has ended, it takes no more of them. Parts take about a millisecond, but for those of products
of matrices, see `ops.cut`. At the end the stream that has the operation waits for the parts that others have begun. A
task that is cut is one task: it has one slot, one charge, and one end, told by its own stream.

No word gets lost between who shares and who goes to sleep: the one shows its parts first and looks for sleepers second,
the other says first that it is about to sleep, and looks for parts second.

Who helps drops what it was given before it tells of the end, as a stream does with a task: reference counts decide who
may write over what.

Not taken: a pool of threads for parts alone. It would fight with the streams for the processors, as the threads of a
BLAS do, which spin for 25 to 100 ms after each product; with several streams those are one for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from ..._core.model import Task
from ...ops.op import Op
from ...ops.parallel import Part
from ...ops.traits import Blas
from . import blas


class Helper(Protocol):
    """A stream, as its neighbours see it."""

    def idle(self) -> bool:
        """Whether it has nothing to do, as far as can be seen from another thread."""

    def wake(self, shared: Shared) -> None:
        """If it sleeps, have it help with parts."""


class Shared:
    """Parts that nobody has begun, and word of those that have ended."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(reversed(parts))
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def left(self) -> bool:
        """Whether there are parts that nobody has begun."""
        return bool(self._parts)

    def help(self, enough: Callable[[], bool] | None = None) -> None:
        """Run parts until none is left, or it is `enough`, which is asked before each. Raises nothing."""
        while enough is None or not enough():
            try:
                # With no name for the error: its traceback leads to this frame, which would hold it in turn.
                self._ends.put(_error_of(self._parts.pop()))
            except IndexError:  # all are begun
                return

    def wait(self, count: int) -> None:
        """Wait until so many parts have ended. Raises what one of them raised."""
        errors = [error for error in (self._ends.get() for _ in range(count)) if error is not None]
        if errors:
            raise errors.pop()  # and no longer held by this frame, to which its traceback leads


class Team:
    """The streams of one device: `size` of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.streams: Sequence[Helper] = ()
        self._open: deque[Shared] = deque()  # what has parts left, and perhaps some that has none any more

    def before_launch(self, task: Task) -> None:
        """Give BLAS as many threads as suit a task that is about to be launched. On the loop's thread."""
        call, product = task.call, False
        if isinstance(call, Op):
            product = call.blas is not Blas.NONE
            if (call.out or call.view) and not product:
                return
        # A product has a stream's part, whatever else runs: its bits must not depend on that. A library's function or a
        # user's may use them all.
        blas.compute(self, product or not all(stream.idle() for stream in self.streams))

    def run(self, parts: Sequence[Part]) -> None:
        """Run parts on the calling stream and on those that would sleep. Raises what one of them raised."""
        shared = Shared(parts)
        self._open.append(shared)
        for stream in self.streams:
            stream.wake(shared)
        shared.help()
        self._open.remove(shared)
        shared.wait(len(parts))

    def open(self) -> Shared | None:
        """An operation with parts that nobody has begun; None if there is none."""
        # A list: to make a tuple may begin a garbage collection, whose finalisers let others change what it is made of.
        return next((shared for shared in list(self._open) if shared.left()), None)


def _error_of(part: Part) -> BaseException | None:
    try:
        part()
    except BaseException as error:  # raised again by the stream that has the task
        return error
    return None
