"""CUDA streams: one thread that issues, one that watches for completion.

Theory of operation. A task goes through two FIFOs.

1. The *issuer* takes it from the first. It makes the stream wait for events of other streams, runs the task's body
   (which only enqueues kernels), records an event, and puts the task into the second FIFO.
2. The *watcher* sleeps in `eventSynchronize`, which releases the GIL, until the host has seen the event. Only then does
   it drop the task's references and tell of its completion.

So a chain is issued without a round trip to the host. Memory that a kernel still reads is never freed. Calls that block
(compiling a kernel, a pageable copy, growing the pool) block the issuer and never the event loop.

A task may read a value that another stream of the device makes. To wait for that takes two steps, since waiting for a
CUDA event that was never recorded does nothing. First the issuer waits, on the host, until the producer has been
*issued*. Then its stream waits for the producer's event, on the device. No lock is taken between the two streams. The
order of writes makes it right:

- The producer's issuer puts the recorded event into `recorded` first, and counts the task as issued second. The reader
  waits for the count first and looks into `recorded` second. So an event that it finds there, of the task's burst or of
  a later one, was recorded after the task. If it finds none, the watcher has seen the end of the burst (or the device
  is lost). Or the task is in a burst that is not over. Then the reader's stream waits for all that the producer's has
  been given by now.
- The watcher takes the event out of `recorded` first and gives it back to the pool of events second. A reader that took
  the event just before may find it recorded anew, by a later task. Then it waits too long, but never too short. Nor
  does it wait for ever: the later task was issued before the reader, so that task does not wait for the reader.

An event for each task would cost more than many a task: recording it, and waking the watcher, which takes the GIL. So
small operations that are issued one right after the other share an event, behind the last of them: a *burst*. Their
ends are reported together, late for all but the last. Three bounds keep that from holding up tasks that wait for their
bytes:

- A burst has at most `BURST` tasks, and by estimate these take a card at most `BURST_SECONDS` together. A task that
  somebody awaits when it is issued ends its burst.
- A burst does not wait for tasks: when the queue is empty, it is over.
- The issuer ends a burst before anything but the issuing of an operation that is compiled and states its launches,
  since anything else may take long: a function, a first call, a wait for another stream, a commit, which waits for the
  holders of its buffers.

So the last task that was issued always has an event when the issuer is idle, or waits.

Not taken: CUDA's callbacks on the host (`launch_host_func`), which wait for the GIL while the driver holds its own
lock, and are not called after a fault; `Event.done`, which says no for ever after a fault; one watcher for all streams,
which would have to ask them in turn, and each question holds the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final

from ..._core.failure import Failure
from ..._core.model import Task
from ...ops.kernels.signal import forget_all_plans
from .. import execution
from ..contract import Counter, Job, Point, begin_no_more, stream_thread
from . import threads
from .context import CUDAContext, Times
from .deferred_errors import DeferredError
from .driver import capturing
from .memory import CUDAMemory
from .pool import Spares

BURST: Final = 32  # tasks at most: half of those in flight by default
BURST_SECONDS: Final = 1e-4  # a guess: the time for issuing some of them


class _Burst:
    """Tasks whose kernels are enqueued, before the event behind them.

    Attributes:
        last: the number of its last task; until the burst is over, of the last one before it.
        seconds: an estimate of what they take the card.
        details: their waits, numbers, times, and what only the device can rule out; of tasks that have any.
    """

    __slots__ = ("details", "last", "seconds", "tasks")

    def __init__(self, last: int) -> None:
        self.tasks: list[Task] = []
        self.last: int = last
        self.seconds: float = 0.0
        self.details: dict[Task, _Details] = {}


_Details = tuple[Sequence[Point], int, Times | None, Sequence[DeferredError]]
_NOTHING: Final[_Details] = ((), 0, None, ())


class CUDAStream:
    """A non-blocking CUDA stream with its two threads.

    Args:
        context: of its device, which is current.
        name: for its threads, too.
        spin: as of `CUDADevice`.
    """

    def __init__(self, context: CUDAContext, name: str, *, spin: float = 0.0) -> None:
        self.name = name
        self.context = context
        self.cuda: Any = context.cupy.cuda.Stream(non_blocking=True)
        self.launched: int = 0  # tasks given to the stream; the loop's thread counts them
        self.issued: Counter = Counter()  # tasks whose kernels are enqueued
        self.finished: Counter = Counter()  # tasks whose end the host has seen
        # By the number of a burst's last task, its event: for bursts between the two.
        self.recorded: dict[int, Any] = {}
        self._spin = spin
        # Tasks, those that wait for other streams with their points.
        self._queue: SimpleQueue[Task | tuple[Task, Sequence[Point]] | Job | None] = SimpleQueue()
        self._in_flight: SimpleQueue[tuple[_Burst, Any] | None] = SimpleQueue()  # bursts, with their events
        self._burst = _Burst(0)  # issued, and not yet followed by an event

    def open(self, memory: CUDAMemory, ended: Callable[[CUDAStream], None]) -> None:
        """Start the threads, which run tasks with `memory`. The last of the two to end calls `ended`."""
        self._memory = memory
        self.spares: Spares = memory.pool.spares_of(self.cuda)
        self._ended = ended
        for work, name in zip((self._issue_all, self._watch), self.threads, strict=True):
            threads.run(work, name)

    @property
    def threads(self) -> tuple[str, str]:
        """The names of its threads."""
        return f"asyncsched {self.name} issuer", f"asyncsched {self.name} watcher"

    def close(self) -> None:
        """Let the threads end once they have run all their tasks."""
        self._queue.put(None)

    def leave(self) -> None:
        """Issue nothing more. Called when the interpreter is about to end."""
        begin_no_more(self._queue)

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        """Queue a task."""
        self.launched += 1
        self._queue.put((task, waits) if waits else task)  # few objects: a backlog may be long
        return self.launched

    def offload(self, job: Job) -> None:
        """Run a job on the issuer's thread, behind the queued tasks."""
        self._queue.put(job)

    # -- issuing ------------------------------------------------------------------------------------------------

    def _issue_all(self) -> None:
        get, completions = self._queue.get, self._memory.completions
        with stream_thread(self.name, completions, self.issued, self.finished), self.context.on_own_thread(), self.cuda:
            while (item := get()) is not None:
                if isinstance(item, Task):
                    self._issue(item)
                elif isinstance(item, tuple):
                    self._issue(*item)
                else:
                    self._end_burst()
                    item.run()
                    if completions.completed(item, True):
                        item = None
                        completions.notify()
                item = None
            self._end_burst()
            if self.context.fault is None:  # also users' plans: the thread lives on, the pool does not
                with capturing:
                    forget_all_plans(self.context.cupy)
        self._in_flight.put(None)

    def _issue(self, task: Task, waits: Sequence[Point] = ()) -> None:
        """Enqueue a task's kernels. Runs with this device and the stream current."""
        context, memory = self.context, self._memory
        small = not waits and memory.may_share_an_event(task)
        if not small:
            self._end_burst()
        observer, times, issued = memory.observer, None, True
        if observer is not None:
            observer.body_began(task)
            times = Times(context)
        try:
            if waits:
                self._wait_for(waits)
            if times is not None:
                times.record(self.cuda)
            if context.fault is None:  # checked after the wait, since a producer that was skipped counts as issued, too
                execution.run(task, memory)
            if times is not None:
                times.record(self.cuda)
        except Exception as error:  # not the body's error, which is the task's failure by now. No event: see `_finish`
            issued = small = False
            context.explain(error)
            execution.fail(task, Failure.of(error, task.name, task.site, frames=False))
        burst, errors = self._burst, memory.deferred_errors
        # Before the task counts as issued, since from then on others take over its deferred errors. Not in a commit:
        # its gate has waited until those were settled, and its members never fail.
        deferred = errors.taken_over(task) if errors.any and task.move is None else ()
        if waits or deferred or times is not None:
            burst.details[task] = waits, self.issued.count + 1, times, deferred
        burst.tasks.append(task)
        burst.seconds += task.plan.on_card_seconds
        full = len(burst.tasks) >= BURST or burst.seconds > BURST_SECONDS
        if full or not small or task.waiters or self._queue.empty():
            self._end_burst(issued)
        self.issued.step()
        del task  # as in `execution.run`

    def _end_burst(self, issued: bool = True) -> None:
        """Record an event behind the tasks issued since the last one, and have the watcher wait for it.

        Args:
            issued: whether all of them were. If not, there is no event: see `_finish`.
        """
        burst, event = self._burst, None
        if not burst.tasks:
            return
        burst.last += len(burst.tasks)
        self._burst = _Burst(burst.last)
        try:
            if issued:
                event = self.context.take_event()
                event.record(self.cuda)
        except Exception as error:
            event, last = None, burst.tasks[-1]
            self.context.explain(error)
            execution.fail(last, Failure.of(error, last.name, last.site, frames=False))
            del last
        if event is not None:
            self.recorded[burst.last] = event
        self._in_flight.put((burst, event))

    def _wait_for(self, waits: Sequence[Point]) -> None:
        for other, number in waits:
            if not isinstance(other, CUDAStream) or other.context is not self.context:
                # The producer is on another device: the host waits. A copy from there goes through host memory, if the
                # two are no peers.
                _reach(other.finished, number)
                continue
            _reach(other.issued, number)
            if other.finished.count >= number:
                continue
            # A copy, in one step: two other threads change it.
            event = next((event for last, event in other.recorded.copy().items() if last >= number), None)
            if event is not None:
                self.cuda.wait_event(event)
            elif not self.context.follow(self.cuda, other.cuda.ptr):
                # A user's function captures there. It began after that burst had ended, so its event is recorded.
                _reach(other.finished, number)

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

    def _finish(self, burst: _Burst, event: Any) -> bool:
        """Settle tasks that have ended, and report them. Returns whether to wake the event loop."""
        context, tasks, details = self.context, burst.tasks, burst.details
        try:
            if event is not None:
                self._sleep_until(event)
            else:  # there is no event: the device is lost, or it was full and only this task has failed
                self.cuda.synchronize()
        except context.runtime.CUDARuntimeError as error:
            context.lose(error, tasks[0])
        self.recorded.pop(burst.last, None)
        well = event is not None and context.fault is None
        if well:
            context.give_event(event)
        for task in details if well else tasks:
            self._settle(task, details.get(task, _NOTHING), event is None)
        observer = self._memory.observer
        for task in tasks:
            execution.release(task)
            if observer is not None and (times := details.get(task, _NOTHING)[2]) is not None:
                observer.body_ended(task, *times.read(context.fault is None))
        self.finished.step(len(tasks))
        dry = self._in_flight.empty() and self._queue.empty()
        wake = [self._memory.completions.completed(task, dry) for task in tasks]
        return any(wake)

    def _settle(self, task: Task, details: _Details, without_event: bool) -> None:
        """Give a task that has ended the failure that the device found.

        The tasks for which it waited have ended, too, though another watcher may be late to see that. This waits for
        that watcher, so that no task is done before its input: the input could still be cancelled. It does so first: if
        the stream could not wait for a task, the device may not have passed what the deferred errors tell.
        """
        context, (waits, number, _, errors) = self.context, details
        for other, passed in waits:
            _reach(other.finished, passed)
        if context.fault is None:
            if without_event and task.failure is not None:
                execution.void(task, task.failure)
            for deferred in errors:
                if (failure := deferred.settle()) is not None:
                    mine = deferred.point == (self, number)
                    execution.fail(task, failure if mine else failure.passed_to(task.name, task.site))
        else:
            context.lost(task)

    def _sleep_until(self, recorded: Any) -> None:
        """Block until the host sees the event. With `spin`, ask for a moment first: each question holds the GIL."""
        context = self.context
        if self._spin:
            until = perf_counter() + self._spin
            while perf_counter() < until:
                if context.passed(recorded):
                    return
        context.runtime.eventSynchronize(recorded.ptr)


def _reach(counter: Counter, count: int) -> None:
    if counter.count < count:
        threads.resting(counter.reach, count)
