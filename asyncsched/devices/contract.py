"""The contract of a device: all that the rooms above know of one.

A *stream* is a FIFO that runs tasks one after the other, and counts them. The point just after its `n`-th task is the
number `n`. A device has a fixed number of streams for work and one, the `copier`, for copies in.

The life of a task, as a device meets it:

1. It is *launched* on a stream, with the points of other streams for which it has to wait. `launch` returns its number
   at once. Its producers were launched before it, on any stream; those on its own stream are not among the waits.
2. When it is the first on the stream, the stream waits for those points, and runs the body: an operation by
   `memory.run_op`, a user's callable by `memory.run_callable` (`execution.run` does both, for every device). The body
   gives the task's value its array, or the task its failure. It sets `task.refund` to the charged bytes that are not
   needed. Nothing raises out of a stream.
3. When its end is known, the stream drops every reference to the task's operands, then counts it as finished, then
   reports it to the completions, from where the loop's thread takes it. In this order, so that the memory is free when
   the end is seen.
4. The value's array may be copied to the host (`fetch`), by the device's own copy stream (`offload`) or on a thread.
5. When nobody holds the value any more, the device's memory takes it back, on any thread (`memory.reclaim`).

A launched task that is cancelled keeps its place. Its body is skipped if it has not begun.

A *remote* device's arrays are in other processes, and its values hold references to them. It does all its work on the
event loop, also opening and closing, and never blocks: see `RemoteDevice`.

`devices.sim` is the shortest device that keeps all of this; start from it to write another.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any, Protocol

from .._blocks import contextmanager
from .._core.completions import Completions
from .._core.free_threading import FREE_THREADED
from .._core.model import Task, Waiter
from .._interrupts import Lock
from ..ops.program import Program


@dataclass(slots=True, eq=False, weakref_slot=True)
class Job:
    """Work for a stream outside admission: a copy to the host, which costs no tracked bytes.

    `waiters` are woken on the loop's thread. `result` or `error` is set by then.
    """

    function: Callable[[], Any] | None
    result: Any = None
    error: BaseException | None = None
    waiters: dict[Waiter, None] | None = None
    failure: None = None  # as a task's: the completions ask for it

    def run(self) -> None:
        """Call the function, keep its result or error, and drop the function."""
        function, self.function = self.function, None
        assert function is not None
        try:
            self.result = function()
        except BaseException as error:  # raised again where the job is awaited
            self.error = error


class Counter:
    """A count that one thread at a time increases, and for which any thread may wait. By it host threads wait for
    streams.

    Theory of operation. A stream counts its finished tasks, so the point after its `n`-th task is the number `n`.
    Whether the stream has passed it is a comparison, and a launch makes no object. Threads wait for few points, and
    most of these are in the past.

    `step` and `reach` share no lock on their quick paths. Their order keeps wake-ups from being lost:

    - `step` adds to the count first and reads the number of waiters second;
    - `reach` adds to the waiters first and reads the count second, with the condition's lock held.

    So the later one sees the other. Either the waiter finds the count reached. Or `step` finds a waiter and takes the
    lock to notify it, which it gets only when the waiter sleeps. This relies on the GIL: both threads see the two
    writes in one order. On a free-threaded build a store and a later load may change places. There `step` always takes
    the lock.

    Alternatives: a `threading.Event` for each launch, or a condition notified at each step. Both cost many times a
    `step`, and few launches are waited for: `python -m timeit -s 'import threading' 'threading.Event()'`.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.waiters: int = 0  # threads in `reach` that found the count too low
        self._lock = Lock()  # entered by itself: a signal may come in the middle of the condition's `__enter__`
        self._changed = threading.Condition(self._lock)

    def step(self, by: int = 1) -> None:
        """Add to the count."""
        if FREE_THREADED:
            with self._lock:
                self.count += by
        else:
            self.count += by
        if self.waiters:
            self.wake()

    def give_up(self) -> None:
        """Nothing more will be counted: all waiters go on."""
        self.count = sys.maxsize
        self.wake()

    def reach(self, count: int, unless: Callable[[], object] = bool) -> None:
        """Block until the count is at least `count`, or `unless()` is true. It is called again after each `wake`."""
        if self.count >= count:
            return
        with self._lock:
            self.waiters += 1
            while self.count < count and not unless():
                self._changed.wait()
            self.waiters -= 1

    def wake(self) -> None:
        """Have all waiters look again."""
        with self._lock:
            self._changed.notify_all()


class Stream(Protocol):
    """A FIFO of tasks."""

    name: str

    @property
    def finished(self) -> Counter:
        """Counts the tasks that have ended."""

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        """Queue a task behind points in other streams, and return its number. The host waits for nothing."""


class StreamDied(RuntimeError):
    """A stream's thread has ended by an exception that belongs to no task: see `stream_thread`."""


Point = tuple[Stream, int]  # just after this task of this stream


class Device(Protocol):
    """One place to compute. The methods here are the defaults of most devices.

    Attributes:
        kind: "cpu", "cuda", "sim".
        name: the kind, with a number where several are open: "cpu:1".
        xp: its array namespace, `numpy` or one like it.
        dlpack: its type and number in DLPack.
        inline: whether tiny operations may run on the loop's thread: if its arrays are NumPy's.
        remote: whether it is a `RemoteDevice`.
        owns_captures: whether a captured program keeps buffers for its intermediates as long as it lives.
        streams: compute streams, from `open` on.
        copier: the stream for host-to-device copies.
        hop: seconds that a stream needs to begin a task, when it is idle or waits for another; 0 if that is negligible.
        note_arguments: notes in a function's context which work is pending now on the user's own arrays among its
            arguments. Called on the loop's thread. None if there can be no such work.
        memory: a `devices.memory.Memory`. It runs operations, and knows the bytes of arrays, and the arrays that have
            left.
    """

    kind: str
    name: str
    xp: Any
    dlpack: tuple[int, int]
    inline: bool = False
    remote: bool = False
    owns_captures: bool = False
    streams: Sequence[Any]
    copier: Any
    hop: float = 0.0
    note_arguments: Callable[[Context, Sequence[Any]], None] | None = None
    memory: Any

    # -- opening, in this order; each once --------------------------------------------------------------------------

    def prepare(self) -> None:
        """The part of opening that may block: loading libraries, reading files. On a worker thread."""

    def default_bytes(self) -> int | None:
        """The limit in bytes if the user gives none; None for no limit."""

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        """Start the streams. On the loop's thread, so it must not block."""

    # -- a task, in the order of the calls --------------------------------------------------------------------------

    def adopt(self, source: Any) -> Any:
        """An array of this device over an array of another library that is not on the host, by DLPack, to be put."""
        raise TypeError(
            f"this {type(source).__name__} is on a device that the scheduler does not have: list it in"
            " Scheduler([...]), or copy the array to the host first"
        )

    def run_inline(self, task: Task) -> None:
        """Run a quick operation whose operands are there, or a tiny copy in, on this thread. Only if `inline`."""
        raise AssertionError(f"nothing runs on the loop's thread for {self.name}")

    def offload(self, job: Job) -> None:
        """Run a job on a stream for copies, and tell the completions of its end."""

    def fetch(self, array: Any) -> Any:
        """A host copy of an array of this device. May block: called only on worker threads, unless `inline`."""

    # -- a captured step --------------------------------------------------------------------------------------------

    def capture(self, program: Program, inputs: int) -> tuple[Callable[..., list[Any]], int, int]:
        """Make a captured step. Called in the submitter's context; takes no memory of the device.

        Returns:
            A function of (array namespace, arrays, arrays for the results), which runs the program. The first `inputs`
            arrays differ from run to run. On a device that `owns_captures`, a single result is given no array.
            The most bytes that its intermediates and results take at once in a run.
            The bytes that it owns as long as it lives, beside those of a run.
        """

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the streams once they have run all their tasks. Never blocks, and may be called again."""
        return  # some streams have nothing to stop

    def __repr__(self) -> str:
        return self.name


class RemoteDevice(Device, Protocol):
    """A device whose arrays are in other processes.

    Before `open` it is connected, after `close` it is disconnected. An array leaves it as a copy, by `bring`: so none
    ever escapes, and `offload` is never called. Its streams may run several tasks at a time.

    Attributes:
        serial: streams that run one task at a time, from `open` on.
    """

    serial: Sequence[Any]

    def offload(self, job: Job) -> None:
        raise AssertionError(f"arrays leave {self.name} by `bring`")

    async def connect(self) -> None:
        """The part of opening that needs the event loop. After `prepare`."""

    async def disconnect(self) -> None:
        """Undo `connect`. After `close`."""

    async def bring(self, array: Any) -> Any:
        """A copy here of a value's array, or of another result of a callable. The value is held meanwhile."""

    def place(self, task: Task) -> Any:
        """The lane, among the task's, that is nearest to its data. Called if there are several."""

    def stop(self, task: Task) -> None:
        """A launched task was cancelled: end it, if that is possible. Its end is reported as that of any other."""


_EXIT_SECONDS, _EXIT_LOOK = 2.0, 1e-3  # how long the interpreter's end waits at most, and between two looks. Guesses
# Threads that run task bodies. To await or read a tensor there would wait for a task that may stand behind it in the
# same stream, so it is refused with an error.
_stream_threads: set[int] = set()
if hasattr(os, "register_at_fork"):  # the child does not have these threads, and new threads may get their numbers
    os.register_at_fork(after_in_child=_stream_threads.clear)


@contextmanager
def stream_thread(name: str, completions: Completions, *counters: Counter) -> Iterator[None]:
    """The calling thread is a stream's while this is entered. It must not wait for tensors.

    An exception out of the block belongs to no task, and the tasks behind would never end. So the completions are told,
    and the scheduler gives up all unfinished tasks. Threads that wait for these counters go on.
    """
    _stream_threads.add(threading.get_ident())
    try:
        yield
    except BaseException as error:
        try:
            died: BaseException = StreamDied(f"the thread of {name} has ended by {type(error).__name__}: {error}")
        except MemoryError:
            died = error
        for counter in counters:
            counter.give_up()
        completions.died(died)
    finally:
        _stream_threads.discard(threading.get_ident())


def begin_no_more(queue: SimpleQueue[Any]) -> None:
    """Take from a stream's queue what waits there, and have its thread end. Called when the interpreter is about to
    end, which waits for such threads by `wait_at_exit`."""
    with suppress(Empty):
        while True:
            queue.get_nowait()
    queue.put(None)


def wait_at_exit(busy: Callable[[], object]) -> None:
    """Hold up the interpreter's end while threads are busy, for a short time at most."""
    until = monotonic() + _EXIT_SECONDS
    while busy() and monotonic() < until:
        sleep(_EXIT_LOOK)


def in_stream_thread() -> bool:
    """Whether the caller runs inside a task body."""
    return threading.get_ident() in _stream_threads
