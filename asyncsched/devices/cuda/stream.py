"""CUDA streams: one thread that issues, one that watches for completion.

Theory of operation. A task goes through two FIFOs.

1. The *issuer* takes it from the first. It makes the stream wait for events of other streams, runs the task's body
   (which only enqueues kernels), records an event, and puts the task into the second FIFO.
2. The *watcher* sleeps in `eventSynchronize`, which releases the GIL, until the host has seen the event. Only then does
   it drop the task's references and tell of its completion.

So a chain is issued with no round trip to the host. Nothing that a kernel still reads is ever freed. Whatever blocks
(compiling a kernel, a pageable copy, growing the pool) blocks the issuer and never the event loop.

A task may read what another stream of the device makes. To wait for that takes two steps, since to wait for a CUDA
event that was never recorded does nothing. First the issuer waits, on the host, until the producer has been *issued*.
Then its stream waits for the producer's event, on the device. No lock is taken between the two streams. The order of
writes makes it right:

- The producer's issuer puts the recorded event into `recorded` first, and counts the task as issued second. The reader
  waits for the count first and looks into `recorded` second. So an event that it finds was recorded. If it finds none,
  the watcher has seen the task's end (or the device is lost), and there is nothing to wait for.
- The watcher takes the event out of `recorded` first and gives it back to the pool of events second. A reader that took
  the event just before may find it recorded anew, by a later task. Then it waits too long, but never too short. Nor
  does it wait for ever: the later task was issued before the reader, so that task does not wait for the reader.

Issuing on the loop's thread (`inline_launch`) goes past the first FIFO. The loop does so only when the issuer has
issued all it was given, and only the loop gives it more. So the two never issue at the same time, and the order stays.
A task counts as issued before the watcher gets it, so the loop never hears of the end of a task that does not.

Not taken: CUDA's callbacks on the host (`launch_host_func`), which wait for the GIL while the driver holds its own
lock, and are not called after a fault; `Event.done`, which says no for ever after a fault; one watcher for all streams,
which would have to ask them in turn, and each question holds the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from ..._core.failure import Failure
from ..._core.model import Task
from .. import execution
from ..contract import Job, Point, stream_thread
from ..counter import Counter
from . import threads
from .clock import Times
from .context import CUDAContext
from .deferred_errors import DeferredError
from .memory import CUDAMemory

_Issued = tuple[Task, Sequence[Point], int, Times | None, Sequence[DeferredError]]  # as `_finish` takes it


class CUDAStream:
    """A non-blocking CUDA stream with its two threads.

    Args:
        context: its device's. The device is current.
        name: what its threads are called after.
        inline_launch, spin: as of `CUDADevice`.
    """

    def __init__(self, context: CUDAContext, name: str, *, inline_launch: bool = False, spin: float = 0.0) -> None:
        self.name = name
        self.context = context
        self.cuda: Any = context.cupy.cuda.Stream(non_blocking=True)
        self.launched: int = 0  # tasks given to the stream; the loop's thread counts them
        self.issued: Counter = Counter()  # tasks whose kernels are enqueued
        self.finished: Counter = Counter()  # tasks whose end the host has seen
        self.recorded: dict[int, Any] = {}  # by a task's number, the CUDA event after it: for tasks between the two
        self._inline_launch = inline_launch
        self._spin = spin
        self._queue: SimpleQueue[tuple[Task, Sequence[Point], int] | Job | None] = SimpleQueue()
        self._in_flight: SimpleQueue[_Issued | None] = SimpleQueue()

    def open(self, memory: CUDAMemory, ended: Callable[[CUDAStream], None]) -> None:
        """Start the threads, which run tasks with `memory`. The last of the two to end calls `ended`."""
        self._memory = memory
        self._ended = ended
        for work, what in ((self._issue_all, "issuer"), (self._watch, "watcher")):
            threads.run(work, f"asyncsched {self.name} {what}")

    def close(self) -> None:
        """Let the threads end once they have run what they were given."""
        self._queue.put(None)

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        """Queue a task. Or issue it here and now, if `inline_launch` asks for that and nothing could block."""
        self.launched += 1
        number = self.launched
        if not (self._inline_launch and self._issued_here(task, waits, number)):
            self._queue.put((task, waits, number))
        return number

    def offload(self, job: Job) -> None:
        """Run a job on the issuer's thread, behind what is queued."""
        self._queue.put(job)

    # -- issuing ------------------------------------------------------------------------------------------------

    def _issued_here(self, task: Task, waits: Sequence[Point], number: int) -> bool:
        """Issue a task on the loop's thread, unless something could block. Returns whether it did."""
        if (
            self.issued.count < number - 1
            or not self._memory.may_run_on_the_loop(task)
            or any(not isinstance(other, CUDAStream) or other.issued.count < point for other, point in waits)
        ):
            return False
        try:
            with self.context.here():
                self._issue(task, waits, number)
        except execution.MustBlock:
            return False
        return True

    def _issue_all(self) -> None:
        get, completions = self._queue.get, self._memory.completions
        with stream_thread(self.name, completions, self.issued, self.finished), self.context.on_own_thread():
            while (item := get()) is not None:
                wake = False
                if isinstance(item, Job):
                    item.run()
                    wake = completions.completed(item, True)
                else:
                    self._issue(*item)
                item = None
                if wake:
                    completions.notify()
        self._in_flight.put(None)

    def _issue(self, task: Task, waits: Sequence[Point], number: int) -> None:
        """Enqueue a task's kernels. Runs with this device current."""
        context = self.context
        observer, times = self._memory.observer, None
        if observer is not None:
            observer.body_began(task)
            times = Times(context.clock)
        try:
            with self.cuda:
                self._wait_for(waits)
                if times is not None:
                    times.record(self.cuda)
                if context.fault is None:  # asked after the wait: a producer that was skipped counts as issued, too
                    execution.run(task, self._memory)
                if times is not None:
                    times.record(self.cuda)
                event = context.take_event()
                event.record(self.cuda)
                self.recorded[number] = event
        except execution.MustBlock:
            raise
        except Exception as error:  # not the body's, which is the task's failure by now. No event: see `_finish`
            execution.fail(task, Failure.of(error, task.name, task.site, frames=False))
        # Before the task counts as issued: from then on others take these over. None in a commit: its gate has waited
        # until those were settled, and its members never fail.
        errors = self._memory.deferred_errors
        deferred = errors.taken_over(task) if errors.any and task.move is None else ()
        self.issued.step()
        self._in_flight.put((task, waits, number, times, deferred))
        del task  # as in `execution.run`

    def _wait_for(self, waits: Sequence[Point]) -> None:
        for other, number in waits:
            if not isinstance(other, CUDAStream) or other.context is not self.context:
                # On another device: the host waits. A copy from there goes through host memory, if these are no peers.
                other.finished.reach(number)
                continue
            other.issued.reach(number)
            event = other.recorded.get(number)
            if event is not None:
                self.cuda.wait_event(event)

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        get = self._in_flight.get
        with stream_thread(self.name, self._memory.completions, self.finished), self.context.on_own_thread():
            while (item := get()) is not None:
                wake = self._finish(*item)
                item = None
                if wake:
                    self._memory.completions.notify()
        self._ended(self)

    def _finish(
        self, task: Task, waits: Sequence[Point], number: int, times: Times | None, deferred: Sequence[DeferredError]
    ) -> bool:
        """Take in that a task has ended, and report it. Returns whether to wake the event loop.

        What the task waited for has ended, too, though another watcher may be late to see it. That is waited for here,
        so that no task is done before one that it read, which could still be cancelled.
        """
        context, event = self.context, self.recorded.get(number)
        try:
            if event is not None:
                self._sleep_until(event)
            else:  # there is no event: the device is lost, or so full that this task alone has failed
                self.cuda.synchronize()
        except context.runtime.CUDARuntimeError as error:
            context.lose(error, task)
        self.recorded.pop(number, None)
        if context.fault is None:
            if event is not None:
                context.give_event(event)
            elif task.failure is not None:
                execution.void(task, task.failure)
            for one in deferred:
                if (failure := one.settle()) is not None:
                    mine = one.stream is self and one.number == number
                    execution.fail(task, failure if mine else failure.passed_to(task.name, task.site))
        else:
            context.lost(task)
        for other, passed in waits:
            other.finished.reach(passed)
        execution.release(task)
        observer = self._memory.observer
        if observer is not None and times is not None:
            observer.body_ended(task, *times.read(context.fault is None))
        self.finished.step()
        return self._memory.completions.completed(task, self._in_flight.empty() and self._queue.empty())

    def _sleep_until(self, recorded: Any) -> None:
        """Block until the host sees the event. With `spin`, ask for a moment first: each question holds the GIL."""
        context = self.context
        if self._spin:
            until = perf_counter() + self._spin
            while perf_counter() < until:
                if context.passed(recorded):
                    return
        context.runtime.eventSynchronize(recorded.ptr)
