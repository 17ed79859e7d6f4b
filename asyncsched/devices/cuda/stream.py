"""CUDA streams: one thread that issues, one that watches for completion.

Theory of operation. A task goes through two FIFOs. The *issuer* takes it from the first, makes the stream wait for
events of other streams, runs its body (which only enqueues kernels), records an event, and puts it into the second.
The *watcher* sleeps in `eventSynchronize`, which releases the GIL, until the host has seen the event; only then are the
task's references dropped and its completion posted. So a chain is issued with no host round trip, nothing that a
kernel still reads is ever freed, and whatever blocks (compiling a kernel, a pageable copy, growing the pool) blocks the
issuer and never the event loop.

Waiting for a producer on another stream is two steps: the issuer waits, on the host, until the producer has been
*issued*, since waiting on an event that was never recorded does nothing; then the stream waits on the event, on the
device.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..._core.model import Task
from .. import execution as body
from ..contract import Event, Job, enter_stream_thread, leave_stream_thread
from ..counter import Counter

if TYPE_CHECKING:
    from .device import CUDADevice

_Item = tuple[Task, Sequence[Event], "Mark"] | Job | None


class Mark:
    """An event: the point after the `number`-th launch of a stream.

    `cuda` is the CUDA event, from when it is recorded until the host has seen it; then it goes back to the pool. So
    whoever reads it just before that may wait on it after it was recorded again: too long, never too short.
    """

    __slots__ = ("cuda", "number", "span", "stream")

    def __init__(self, stream: CUDAStream, number: int) -> None:
        self.stream = stream
        self.number = number
        self.cuda: Any = None
        self.span: Any = None  # its NVTX range

    def done(self) -> bool:
        return self.stream.finished.count >= self.number

    def wait(self) -> None:
        self.stream.finished.reach(self.number)


class CUDAStream:
    """A non-blocking CUDA stream with its two threads."""

    def __init__(self, device: CUDADevice, name: str) -> None:
        self.name = name
        self.launched = 0
        self.issued = Counter()
        self.finished = Counter()
        self.device = device
        self.cuda = device.cupy.cuda.Stream(non_blocking=True)
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._flying: SimpleQueue[tuple[Task, Mark] | None] = SimpleQueue()

    def open(self) -> None:
        """Start the threads."""
        for work, what in ((self._issue_all, "issuer"), (self._watch, "watcher")):
            threading.Thread(target=work, name=f"asyncsched {self.name} {what}", daemon=True).start()

    def close(self) -> None:
        """Let the threads end once they have run what they were given."""
        self._queue.put(None)

    def launch(self, task: Task, waits: Sequence[Event]) -> Mark:
        """Queue a task; or issue it here and now, if the device is told to and nothing could block."""
        self.launched += 1
        mark = Mark(self, self.launched)
        if not (
            self.device.inline_launch and self._may_issue_here(task, waits) and self._issue_here(task, waits, mark)
        ):
            self._queue.put((task, waits, mark))
        return mark

    def offload(self, job: Job) -> None:
        """Run a job on the issuer, behind what is queued."""
        self._queue.put(job)

    # -- issuing ------------------------------------------------------------------------------------------------

    def _may_issue_here(self, task: Task, waits: Sequence[Event]) -> bool:
        return (
            self.issued.count == self.launched - 1
            and self.device.memory.warm(task)
            and all(type(wait) is Mark and wait.stream.issued.count >= wait.number for wait in waits)
        )

    def _issue_here(self, task: Task, waits: Sequence[Event], mark: Mark) -> bool:
        try:
            with self.device.here():
                self._issue(task, waits, mark)
        except body.MustBlock:
            self.device.end_range(mark.span)
            return False
        return True

    def _issue_all(self) -> None:
        enter_stream_thread()
        get, completions = self._queue.get, self.device.memory.completions
        with self.device.here():
            while (item := get()) is not None:
                if isinstance(item, Job):
                    item.run()
                    completions.completed(item, True)
                else:
                    self._issue(*item)
                item = None
        self._flying.put(None)
        leave_stream_thread()

    def _issue(self, task: Task, waits: Sequence[Event], mark: Mark) -> None:
        """Enqueue a task's kernels. Runs with this device current."""
        device = self.device
        mark.span = device.start_range(task.name)
        try:
            with self.cuda:
                self._wait_for(waits)
                if device.fault is None:  # asked only now: a producer that was skipped is issued as well
                    body.run(task, device.memory)
                event = device.take_event()
                event.record(self.cuda)
                mark.cuda = event
        except Exception as error:  # a task's own are its failure by now: the stream itself is lost
            device.poison(error, task)
        self._flying.put((task, mark))
        del task  # as in `body.run`
        self.issued.step()

    def _wait_for(self, waits: Sequence[Event]) -> None:
        for wait in waits:
            if type(wait) is not Mark or wait.stream.device is not self.device:
                wait.wait()  # on the host: a copy between devices goes through it, unless it can reach straight across
                continue
            wait.stream.issued.reach(wait.number)
            event = wait.cuda
            if event is not None:
                self.cuda.wait_event(event)

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        get = self._flying.get
        with self.device.here():
            while (item := get()) is not None:
                self._finish(*item)
                item = None
            self.device.stream_closed()

    def _finish(self, task: Task, mark: Mark) -> None:
        device, event = self.device, mark.cuda
        if event is not None:
            try:
                self._sleep(event)
            except device.errors as error:
                device.poison(error, task)
        mark.cuda = None
        if device.fault is None:
            device.give_event(event)
        else:
            body.void(task, device.fault.passed_to(task.name, task.site))
        device.end_range(mark.span)
        body.release(task)
        self.finished.step()
        device.memory.completions.completed(task, self._flying.empty() and self._queue.empty())

    def _sleep(self, event: Any) -> None:
        """Block until the host sees the event: a query first, a short spin if asked for, then asleep."""
        device = self.device
        until = perf_counter() + device.spin if device.spin else 0.0
        while not device.passed(event):
            if perf_counter() >= until:
                device.runtime.eventSynchronize(event.ptr)
                return
