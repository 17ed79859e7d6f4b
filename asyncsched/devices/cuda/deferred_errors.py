"""Errors that only the device can detect, such as an index out of range, and how they are reported without a wait.

Theory of operation. To check for such an error at once, the host would wait for the device, and nothing could be issued
ahead. So the numbers that tell of an error are copied to the host behind the operation's kernels. Until they are there,
the operation has a *deferred error*: it may have failed or not. Every task that is issued on its result meanwhile takes
over the deferred error, and runs on the values that are there. When the host sees the end of any of these tasks, the
numbers have arrived, since the device passed the operation before. If they say that it failed, each of these tasks
fails with the operation's error, before its end is reported.

Two kinds of tasks must not run on wrong values: a callable, which may do anything with its arguments; and the gate of a
commit, since a version never fails. They wait on the host until the deferred errors of their inputs are settled. They
wait for those operations only. Tasks issued behind these, such as a whole backward pass, keep the device busy.

Not taken: passing the numbers to the kernels of a commit, which would write only where there is no error. That spares
the wait, but each kernel would need an output of its own, since it could not write over its input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._core.failure import Failure
from ..._core.model import Task, Value
from ..._interrupts import Lock
from ...ops.kernels.checks import Check, Judge
from ..contract import Point

_SLOT, _SLOTS = 8, 256  # bytes for a number, and how many such slots are pinned at a time

Number = tuple[Any, Any]  # a slot of pinned memory, and the dtype of the number there
_settling = Lock()


class DeferredError:
    """The outcome of one operation, which is known later.

    Attributes:
        point: just after the operation, on its stream.
        settled: whether it is known.
        failure: of the operation, once it is known, if it failed.
    """

    def __init__(self, task: Task, point: Point, judge: Judge, numbers: Sequence[Number], slots: deque[Any]) -> None:
        self._name, self._site = task.name, task.site
        self._judge, self._numbers, self._slots = judge, numbers, slots
        self.point: Point = point
        self.settled: bool = False
        self.failure: Failure | None = None

    def settle(self) -> Failure | None:
        """Decide, once the device has passed the operation. Returns its failure, if it failed. On any thread."""
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
        """Block until the device has passed the operation. Returns its failure, if it failed."""
        if not self.settled:
            stream, number = self.point
            stream.finished.reach(number)
        return self.failure


class DeferredErrors:
    """The deferred errors of one device."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._slots: deque[Any] = deque()
        self.any: bool = False  # whether there ever was a deferred error

    def raised(self, task: Task, stream: Any, checks: Sequence[Check]) -> None:
        """An operation was issued whose errors will be known later."""
        value: Any = task.value
        for numbers, judge in checks:
            copied = [self._copied(number, stream.cuda) for number in numbers]
            deferred = DeferredError(task, (stream, stream.issued.count + 1), judge, copied, self._slots)
            value.deferred_errors = (*getattr(value, "deferred_errors", ()), deferred)
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
        """The deferred errors of a task that was issued: its own, and those of its inputs."""
        value = task.value
        if value is None:
            return ()
        above = {
            deferred
            for v in task.inputs
            for deferred in getattr(v, "deferred_errors", ())
            if not deferred.settled or deferred.failure
        }
        if above:
            value.deferred_errors = (*getattr(value, "deferred_errors", ()), *above)
        found: tuple[DeferredError, ...] = getattr(value, "deferred_errors", ())
        for taken in task.takes:
            taken[1].deferred_errors = found
        return found


def certain(values: Sequence[Value]) -> Failure | None:
    """Block until the deferred errors of these are settled. Returns the failure of one that has failed."""
    for value in values:
        for deferred in getattr(value, "deferred_errors", ()):
            failure: Failure | None = deferred.wait()
            if failure is not None:
                return failure
    return None
