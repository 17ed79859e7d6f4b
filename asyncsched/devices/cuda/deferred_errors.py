"""Errors that only the device can detect, such as an index out of range, and how they are reported without a wait.

Theory of operation. To check would be to wait for the device, and nothing could be issued ahead. So the numbers that
decide are copied to the host behind the row's kernels, and every task that is issued on its result meanwhile inherits
the *doubt*: it runs on whatever is there. When the host sees the end of any of them, the numbers have arrived, since
the device has passed the row before. Then those that must fail do, with the row's error, before their end is reported.

Two kinds of tasks must not run on wrong values, and wait on the host until there is no doubt: a callable, which may do
anything with its arguments; and the gate of a commit, since a version never fails. Both wait for the doubtful row only:
tasks issued behind it, such as a whole backward pass, keep the device busy meanwhile.

Alternative: pass the flags to the kernels of a commit, which would write only where there is none. It spares the wait,
but each kernel would need room for an output that may not be written over its input.
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
    """What a doubt needs of a stream."""

    issued: Counter
    finished: Counter
    cuda: Any


class DeferredError:
    """The doubt about one row.

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
        """Decide, once the device has passed the row. Returns the failure, if it failed. On any thread."""
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
        """Block until the device has passed the row. Returns its failure, if it failed."""
        if not self.settled:
            self.stream.finished.reach(self.number)
        return self.failure


class DeferredErrors:
    """The deferred_errors about values of one device."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._slots: deque[Any] = deque()
        self.any = False  # whether there ever was one

    def raised(self, task: Task, value: Value, stream: Stream, checks: Sequence[Check]) -> None:
        """A row was issued whose errors will be known later."""
        for numbers, judge in checks:
            doubt = DeferredError(
                task, stream, judge, [self._copied(number, stream.cuda) for number in numbers], self._slots
            )
            value.deferred_errors = (*getattr(value, "deferred_errors", ()), doubt)
            self.any = True

    def _copied(self, number: Any, stream: Any) -> Number:
        """Start copying an array of one number to the host. Returns where it will be."""
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

    def taken_over(self, task: Task) -> Sequence[DeferredError]:
        """The deferred_errors of a task that was issued: its row's own, and those about what it reads."""
        value = task.value
        if value is None:
            return ()
        above = {
            doubt
            for v in task.inputs
            for doubt in getattr(v, "deferred_errors", ())
            if not doubt.settled or doubt.failure
        }
        if above:
            value.deferred_errors = (*getattr(value, "deferred_errors", ()), *above)
        found: tuple[DeferredError, ...] = getattr(value, "deferred_errors", ())
        return found


def certain(values: Sequence[Value]) -> Failure | None:
    """Block until there is no doubt about any of these. Returns the failure of one that has failed."""
    for value in values:
        for doubt in getattr(value, "deferred_errors", ()):
            failure: Failure | None = doubt.wait()
            if failure is not None:
                return failure
    return None
