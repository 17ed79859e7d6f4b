"""The CPU: NumPy, with worker threads as streams.

Theory of operation. A stream is one daemon thread with a FIFO. It counts its finished tasks. An event is a number on
that count, for which other streams wait. When a body has run, three things happen, in this order:

1. *Let go* (`execute`): of the task's inputs, arguments and result. Its holds on them decide which buffer is written
   over, and the last reference decides when bytes return. So the end must not be visible while this thread still holds
   something. Otherwise a stream that waited would find one holder too many, and take a new buffer.
2. *Count* (`finished.step`): the streams that wait for this one go on, without the event loop.
3. *Report* (`completions`): the loop takes it in, perhaps later, together with others. If the loop knows that a task
   has ended, all streams may rely on that, so dependents are launched without a wait.

For the same reason the thread's loop sets its variables to None before it wakes the event loop, and before it sleeps in
`get`. Otherwise they would hold the last task until the next one comes, which may be never.

Alternatives, by argument and not by measurement. `concurrent.futures`: a future with a lock and a condition per task,
no order within a stream, and the event loop woken for each end. One queue for all threads would balance better, but
then no two tasks have an order for free, and each dependent waits for a count. Processes: every array would have to be
in shared memory, and NumPy releases the GIL in long operations anyway. The threads are daemons, since a body cannot be
stopped, and must not keep a program from ending that gave up on it (see `_leave`).

Measured on two processors, without a gain: to wake the stream's thread before a function's task is made, and the loop's
thread before the function's end is reported. To call `sched_yield` before a stream's thread sleeps spares 8% of a
call's processor time where the two threads share a processor, but ten calls at once take 1.34 times theirs. To wake the
loop without releasing the GIL (`ctypes.PyDLL`) costs 4% more.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final
from weakref import WeakSet

import numpy as np

from .._core.completions import Completions
from .._core.free_threading import FREE_THREADED, LOOK
from .._core.model import Task
from .._system import start_thread
from ..ops.op import Blas, Op
from ..ops.parallel import PART_SECONDS, Part, share_by
from .contract import Counter, Job, Point, begin_no_more, stream_thread, wait_at_exit
from .host import blas
from .host.allowed import allowed_processors
from .host.memory import HostDevice, HostMemory, execute
from .host.slices import take_long_slices

_MOST: Final = 8  # most streams by default: beyond that memory is the bound, not processors


class Shared:
    """The parts of an operation: those that nobody has begun, and the ends of the others."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: list[Part] = list(reversed(parts))  # that nobody has begun
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def help(self, enough: Callable[[], bool] | None = None) -> None:
        """Run parts until none is left, or `enough()` is true. It is called before each part. Raises nothing."""
        while enough is None or not enough():
            try:
                # The error gets no name here: its traceback holds this frame, which would hold the error in turn.
                self._ends.put(_error_of(self.parts.pop()))
            except IndexError:  # all are begun
                return

    def wait(self, count: int) -> None:
        """Wait for the ends of `count` parts. Raises the exception of one of them."""
        errors = [error for error in (self._ends.get() for _ in range(count)) if error is not None]
        if errors:
            raise errors.pop()  # and this frame, which its traceback holds, drops it


class Team:
    """The streams of one device, `size` of them, which help each other: idle streams take parts of a large operation
    from the stream that has it.

    Theory of operation. The stream that has the task puts the parts where all see them, wakes idle streams, and then
    takes parts itself until none is left. So it never waits for help: a stream that comes late finds nothing to do. A
    stream looks for parts before it sleeps: because it has no task, or because its next task waits for another
    stream's. In a training step that is most of the time of all but one stream, since each layer needs the one before.
    When the stream gets a task, or the wait is over, it takes no more parts. Parts take about a millisecond, except
    those of products of matrices, see `ops.cut`. At the end the stream that has the operation waits for the parts that
    others have begun. A task that is cut is one task: it has one slot, one charge, and one end, which its own stream
    reports.

    No wake-up is lost between a stream that shares parts and one that goes to sleep. The first shows its parts first
    and looks for sleepers second. The other says first that it is about to sleep, and looks for parts second.

    A helper drops its part before it reports the end, as a stream does with a task: bytes return with the last
    reference.

    Not taken: a pool of threads only for parts. It would compete with the streams for the processors, as the threads of
    a BLAS do, which spin for 25 to 100 ms after each product. (With several streams BLAS has one thread for each.)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.streams: Sequence[CPUStream] = ()
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
        return next((shared for shared in list(self.parts) if shared.parts), None)


def _error_of(part: Part) -> BaseException | None:
    try:
        part()
    except BaseException as error:  # raised again by the stream that has the task
        return error
    return None


_Item = tuple[Task, Sequence[Point]] | Job | Shared | None
_LOOK_UP: Final = Shared(())  # wakes a stream that sleeps, and gives it nothing to do


def _share_blas(team: Team, task: Task) -> None:
    """Give BLAS the threads that suit a task which is about to be launched. On the loop's thread."""
    call = task.call
    product = isinstance(call, Op) and call.blas is not Blas.NONE
    if product or not (isinstance(call, Op) and (call.out or call.view)):
        # A product has one stream's part of the threads, whatever else runs: its bits must not depend on that. A
        # library's or a user's function may use all threads while no other stream works.
        narrow = product or False in [one.finished.count == one.launched for one in team.streams]
        if narrow or blas.computing or len(blas.devices) > 1:  # else it has all threads, as most functions
            blas.compute(team, narrow)


class CPUStream:
    """A worker thread with a FIFO."""

    def __init__(self, name: str, memory: HostMemory, team: Team | None = None) -> None:
        self.name = name
        self.launched: int = 0
        self.finished: Counter = Counter()
        self.queue: SimpleQueue[_Item] = SimpleQueue()
        self._memory = memory
        self._team = team
        self._waits_for: Counter | None = None
        self._waits_until = 0
        self.looks_up: bool = False  # now and then: see `_rest`
        self.worker: threading.Thread = start_thread(self._run, name)
        _streams.add(self)

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        if self._team is not None:
            _share_blas(self._team, task)
        self.launched += 1
        self.queue.put((task, waits))
        return self.launched

    def idle(self) -> bool:
        """Whether it has nothing to do, as seen from another thread."""
        return self.finished.count == self.launched and self.queue.empty()

    def wake(self, shared: Shared) -> None:
        """If it sleeps, have it help with parts. Called on another stream's thread."""
        counter = self._waits_for
        if counter is not None:
            counter.wake()
        elif self.idle():
            self.queue.put(shared)

    def computes(self) -> bool:
        """Whether its thread lives, and does not wait for another stream's task that may never end."""
        counter = self._waits_for
        return self.worker.is_alive() and (counter is None or counter.count >= self._waits_until)

    def _run(self) -> None:
        take_long_slices()
        with stream_thread(self.name, self._memory.completions, self.finished):
            self._serve()

    def _serve(self) -> None:
        np.seterr(all="ignore")
        if self._team is not None:
            share_by(self._team.run, self._team.size)
        memory, completions = self._memory, self._memory.completions
        team, rest = self._team, self._rest if FREE_THREADED else self.queue.get
        item: _Item
        # While it has no task, it helps with parts of other streams' operations.
        while (item := (team is not None and team.parts and self.queue.empty() and team.open()) or rest()) is not None:
            if isinstance(item, tuple):
                task, waits = item
                for stream, number in waits:
                    self._reach(stream.finished, number)
                execute(task, memory)
                self.finished.step()
                wake = completions.completed(task, self.queue.empty())
                task = waits = None  # type: ignore[assignment]
            elif isinstance(item, Job):
                item.run()
                wake = completions.completed(item, True)
            else:
                item.help(lambda: not self.queue.empty())  # its own tasks come first
                wake = False
            item = None
            if wake:
                completions.notify()

    def _rest(self) -> _Item:
        """The next item. While arrays are out that a task here may have made, the thread looks up now and then: see
        `_core.free_threading`."""
        while True:
            self.looks_up = bool(self._memory.escapes)
            with suppress(Empty):
                return self.queue.get(timeout=LOOK if self.looks_up else None)

    def _reach(self, counter: Counter, number: int) -> None:
        """Wait for another stream, and help meanwhile."""
        team = self._team
        if team is None:
            counter.reach(number)
            return
        self._waits_until, self._waits_for = number, counter
        while counter.count < number:
            counter.reach(number, team.open)
            shared = team.open() if counter.count < number else None
            if shared is not None:
                shared.help(lambda: counter.count >= number)
                shared = None
        self._waits_for = None


_streams: Final[WeakSet[CPUStream]] = WeakSet()  # as long as their threads run, which refer to them


@atexit.register
def _leave() -> None:
    """Streams end before the interpreter does, unless their bodies take long.

    A process that ends its BLAS while a thread is in it crashes or hangs: OpenBLAS waits for its own threads, and a
    product that begins meanwhile makes one of them forget that it has to end. Python does not wait for streams, which
    are daemons. So a body that still runs when the program ends could keep the process from ending.
    """
    left = [stream for stream in _streams if stream.worker.is_alive()]
    for stream in left:
        begin_no_more(stream.queue)
    wait_at_exit(lambda: any(stream.computes() for stream in left))


class CPUDevice(HostDevice):
    """NumPy on `streams` compute threads and one copy thread; by default as many as processors, and at most 8.

    With one stream nothing is cut, and BLAS keeps all its threads. With several, large operations are cut into parts
    for idle streams. While several streams run, BLAS has its part of the processors, see `host.blas`.
    """

    kind = "cpu"

    def __init__(self, name: str = "cpu", streams: int | None = None) -> None:
        self.name = name
        self.inline = True  # on the instance, where CPython finds it in one step: each operation reads it
        self._count = streams or 0  # by default it is known when prepared, since counting processors reads files
        self.streams: list[CPUStream] = []
        self._running: list[CPUStream] = []  # the copier, too
        self._team: Team | None = None

    def prepare(self) -> None:
        super().prepare()
        self._count = self._count or min(allowed_processors(), _MOST)
        if self._count > 1:
            blas.look()

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        team = self._team = Team(self._count) if self._count > 1 else None
        self.memory: HostMemory = HostMemory(completions, max_bytes)
        self.memory.threads = self._count
        if team is not None:
            blas.share(team, self._count, completions.at_rest)
            self.hop = PART_SECONDS
        for i in range(self._count):  # appended one by one: if a thread cannot start, `close` ends those before it
            self._running.append(CPUStream(f"{self.name} stream {i}", self.memory, team))
        self.streams = list(self._running)
        if team is not None:
            team.streams = self.streams
        self.copier: CPUStream = CPUStream(f"{self.name} copies", self.memory)
        self._running.append(self.copier)
        if FREE_THREADED:
            self.memory.on_escape = self._look_up

    def _look_up(self) -> None:
        """Arrays are out: have the streams' threads look up from now on. On any thread."""
        for stream in self._running:
            if not stream.looks_up and stream.idle():
                stream.queue.put(_LOOK_UP)

    def run_inline(self, task: Task) -> None:
        if task.plan.seconds and self._team is not None:
            _share_blas(self._team, task)  # `Runtime.spend` has the setting undone in the loop's next turn
        execute(task, self.memory)
        self.memory.completions.ending = False

    def offload(self, job: Job) -> None:
        self.copier.queue.put(job)

    def close(self) -> None:
        if self._team is not None:
            self._team.streams = ()  # breaks a circle, which would keep the descriptor open that wakes the loop
            blas.unshare(self._team)
            self._team = None
        self.streams = []
        if FREE_THREADED and self._running:
            self.memory.on_escape = None
        for stream in self._running:
            stream.queue.put(None)
        self._running.clear()  # afterwards: an interrupted close may be called again
