"""Rows of which only the device can tell whether they failed: an index that is out of range.

Theory of operation. To ask would be to wait for the device, and nothing could be issued ahead. So what decides is
copied to the host behind the row's kernels, and everything that is issued on its result meanwhile takes over the
*doubt*: it runs on whatever is there. When the host sees the end of any of them, the numbers are there, since the
device has passed the row before: then each of them fails that must, with the row's error, before its end is told.

Two things cannot run on what may be wrong, and wait on the host until there is no doubt: a callable, which may do
anything with what it is given; and the gate of a commit, since a version never fails. Both wait for the doubtful row
alone: what was issued behind it, such as a whole backward pass, keeps the device busy meanwhile.

Not taken: to hand the doubts to the kernels of a commit, which would write only where there is none. It spares the
wait, but each of them would need room for what it does not write over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..._core.failure import Failure
from ..._core.model import Task, Value
from ...ops.kernels.checks import Check, Judge
from ..counter import Counter

_SLOT, _SLOTS = 8, 256  # bytes for a number, and how many are pinned at a time

Number = tuple[Any, Any]  # a slot of pinned memory, and the dtype of what is there
_settling = threading.Lock()


class Stream(Protocol):
    """What is asked of a stream."""

    issued: Counter
    finished: Counter
    cuda: Any


class Doubt:
    """One row's.

    Attributes:
        stream, number: which task of which stream.
        settled: whether it is over.
        failure: then, the row's, if it failed.
    """

    def __init__(self, task: Task, stream: Stream, judge: Judge, numbers: Sequence[Number], slots: deque[Any]) -> None:
        self._name, self._site = task.name, task.site
        self._judge, self._numbers, self._slots = judge, numbers, slots
        self.stream, self.number = stream, stream.issued.count + 1
        self.settled = False
        self.failure: Failure | None = None

    def settle(self) -> Failure | None:
        """Judge, once the device has passed the row. Returns why it failed, if it did. On any thread."""
        with _settling:
            if not self.settled:
                error = self._judge(*[int(slot.view(dtype)[0]) for slot, dtype in self._numbers])
                if error is not None:
                    self.failure = Failure.of(error, self._name, self._site)
                self._slots.extend([slot for slot, _ in self._numbers])
                self._numbers = ()
                self.settled = True
        return self.failure

    def wait(self) -> Failure | None:
        """The same, after the device has passed it. Blocks."""
        if not self.settled:
            self.stream.finished.reach(self.number)
        return self.failure


class Doubts:
    """Those of one device's memory."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._slots: deque[Any] = deque()
        self.any = False  # whether there ever was one

    def raised(self, task: Task, value: Value, stream: Stream, checks: Sequence[Check]) -> None:
        """A row was issued that tells later."""
        for numbers, judge in checks:
            doubt = Doubt(task, stream, judge, [self._copied(number, stream.cuda) for number in numbers], self._slots)
            value.doubts = (*getattr(value, "doubts", ()), doubt)
            self.any = True

    def _copied(self, number: Any, stream: Any) -> Number:
        """Where the host will see an array of one number."""
        runtime = self._cupy.cuda.runtime
        try:
            slot = self._slots.pop()
        except IndexError:
            memory = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(_SLOT * _SLOTS), np.uint8, _SLOT * _SLOTS)
            slot, *more = memory.reshape(_SLOTS, _SLOT)
            self._slots.extend(more)
        place = slot.ctypes.data
        runtime.memcpyAsync(place, number.data.ptr, number.itemsize, runtime.memcpyDeviceToHost, stream.ptr)
        return slot, number.dtype

    def taken_over(self, task: Task) -> Sequence[Doubt]:
        """The doubts of a task that was issued: its row's own, and those about what it reads."""
        value = task.value
        if value is None:
            return ()
        above = {doubt for v in task.inputs for doubt in getattr(v, "doubts", ()) if not doubt.settled or doubt.failure}
        if above:
            value.doubts = (*getattr(value, "doubts", ()), *above)
        found: tuple[Doubt, ...] = getattr(value, "doubts", ())
        return found


def certain(values: Sequence[Value]) -> Failure | None:
    """Wait until there is no doubt about any of these. Returns why one will not be there, if one will not."""
    for value in values:
        for doubt in getattr(value, "doubts", ()):
            failure: Failure | None = doubt.wait()
            if failure is not None:
                return failure
    return None
