"""`Trace` records what a scheduler does: for a viewer, for a reader and for a replay.

The file of a trace, and the thread that writes it.

Theory of operation. The scheduler's threads only append to deques. A few times a second the file's thread takes some
thousand notes at a time, makes text of them and writes it. It writes whole events, so the file is valid wherever it
ends. Making the text takes the interpreter for a third of the time of issuing. So the thread keeps up with a loop that
never rests, and leaves it half of the time; then some ten thousand notes wait. If the disk falls behind for long, notes
beyond the bound are dropped (`bound`), and the file says so.
"""

from __future__ import annotations

import atexit
import gzip
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import IO, Any, Final

from .._arguments import check_int
from .._core.callsite import CallSite
from .._core.instrument import InlineOp, priority_of, tenant_of
from .._core.model import STATE_NAMES, Account, Scope, Task
from .._system import at_once, log, start_thread
from ..runtime.context import find
from ..runtime.loops import comes
from ..runtime.threads import in_thread
from .probe import OfOne, Probe
from .recording import ScopeRecord, TaskRecord
from .trace_events import Events

_PAUSE: Final = 0.1  # seconds between two looks
_NOTES: Final = 1024  # most notes of one chunk: some milliseconds, in steps of less than one
_MOST: Final = 200_000  # notes that wait: some 100 MB
_LEVEL: Final = 3  # of compression: 6 takes twice as long, for a tenth less


class TraceFile:
    """Takes the notes of a trace, and writes them.

    Args:
        path: of the file.
        details: so many tasks are recorded in full.

    Attributes:
        notes: each a method of `Events` and its arguments.
        released: times, numbers of tasks, bytes. Many are one event.
        ended: whether nothing more is noted.
    """

    def __init__(self, path: str | os.PathLike[str], details: int) -> None:
        self._zipped = os.fspath(path).endswith(".gz")
        self._raw: IO[bytes] = open(path, "wb", opener=at_once)  # noqa: SIM115
        self.notes: deque[tuple[Callable[..., str], tuple[Any, ...]]] = deque()
        self.released: deque[tuple[float, int, int]] = deque()
        self._details = details
        self._lost = 0
        self.ended: bool = False
        self._end: SimpleQueue[None] = SimpleQueue()  # gets an item then. Not an event: see `runtime.loops`
        self._thread: threading.Thread | None = None

    # -- its life -------------------------------------------------------------------------------------------------

    def begin(self, probe: Probe) -> None:
        """Start writing. On the loop's thread, before anything is noted."""
        self._events = Events(probe, self._details)
        self._thread = start_thread(self._write_all, "trace")
        atexit.register(self._at_exit)

    def end(self) -> None:
        """Nothing more is noted. The thread writes the rest, and ends."""
        self.ended = True
        self._end.put(None)
        if self._thread is None:  # it was never opened
            self._raw.close()

    def join(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._thread.join()

    def _at_exit(self) -> None:
        """The scheduler was never closed: write the notes so far."""
        self.end()
        self.join()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            zipped: Any = self._raw
            if self._zipped:  # the head of such a file is written at once: not on the loop's thread
                zipped = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=_LEVEL)
            with self._raw, zipped as file:
                file.write(self._events.head.encode())
                while not self.ended:
                    comes(self._end, _PAUSE)
                    self._write(file)
                self._write(file)
                file.write(self._events.end(self._lost).encode())
        except OSError:
            log.exception(f"the trace {self._raw.name} ends here, since it cannot be written")
            ended = False
            while not ended:
                ended = self.ended or comes(self._end, _PAUSE)
                self.notes.clear()
                self.released.clear()
        atexit.unregister(self._at_exit)

    def _write(self, file: IO[bytes]) -> None:
        while self.notes or self.released:
            texts = [make(self._events, *told) for make, told in _taken(self.notes)]
            if released := list(_taken(self.released)):
                texts.append(self._events.released(*zip(*released, strict=True)))
            file.write("".join(texts).encode())
            file.flush()

    def bound(self) -> None:
        """Drop the last notes, if too many wait."""
        while len(self.notes) > _MOST:
            make, _ = self.notes.pop()
            self._lost += make in (Events.task, Events.inline)
        while len(self.released) > _MOST:
            self.released.pop()


def _taken(items: deque[Any]) -> Iterator[Any]:
    for _ in range(_NOTES):
        if not items:
            break
        yield items.popleft()


_EVERY: Final = 2e-3  # seconds between two samples of the counters, at least
_NO_SCOPE: Final = ScopeRecord(0, 0, "", 0.0, own_queue=True, priority=0)
_SHOWN_SCOPES: Final = 32  # so many scopes with a reserve have counters of their bytes


class Trace(OfOne):
    """Records what a scheduler does, in a file that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

    A thread of its own writes whole events, ten times a second, so the file is valid even if the process is killed.
    Tasks that have not ended by then are not in it. (If the process is killed within a write, which takes microseconds,
    the file may end within an event. `Recording` reads it all the same; for a viewer delete the last line.)
    `asc.observe.Recording.read` reads the file in a program, and `python -m asyncsched trace` says where the time went.

    In the viewer each stream is a track, with a slice for each operation. Operations that ran inline are slices on the
    loop's track. Each scope, window's iteration and wait is a slice of its own track. Queue, slots and bytes are
    counters. Each task has the user's line and all its times. The first tasks (`details`) have more: their phases from
    submission to end, and an arrow from the submission to the run.

    Give it to `Scheduler(instruments=[...])` or `s.add_instrument`. Or trace a part of a program by `with` or `async
    with`, where the scheduler is the ambient one or `scheduler=`. `async with` waits until the file is complete; so
    does `close`, which is for other threads than the loop's. A Trace is for one scheduler, once. If the disk is full,
    the trace ends with a message in the log, and the scheduler goes on.

    >>> from tempfile import TemporaryDirectory
    >>> async def main(path):
    ...     async with asc.Scheduler("cpu") as s:
    ...         async with asc.Trace(path):
    ...             x = await s.put(np.ones(1000))
    ...             await (x @ x).item()
    >>> with TemporaryDirectory() as folder:
    ...     asc.run(lambda: main(f"{folder}/run.json"))
    ...     [task.name for task in asc.observe.Recording.read(f"{folder}/run.json").tasks]
    ['put', 'matmul']

    Args:
        path: of the file, which is written anew. If the name ends in ".gz" it is compressed, to a tenth; viewers open
            it, too.
        details: so many tasks are recorded in full. Each takes about 2,000 bytes, others about 350.
        scheduler: for `with`; default the ambient one.

    Raises:
        OSError: if the file cannot be opened.
        TypeError, ValueError: if `details` is no int of at least 0.
        RuntimeError: when given to a second scheduler, or again to one from which it was removed.
    """

    _again = "a {} is for one scheduler, once: make another, with a file of its own"

    def __init__(self, path: str | PathLike[str], *, details: int = 5_000, scheduler: Any = None) -> None:
        check_int("details", details, 0)
        self._file = TraceFile(path, details)
        self._given = scheduler
        self._tasks: dict[Task, tuple[TaskRecord, CallSite | None]] = {}  # unfinished; times are the clock's
        self._notes = self._file.notes
        self._scopes: dict[Scope, ScopeRecord] = {}  # open ones
        self._count = 0
        self._last: dict[Any, float] = {}  # when the last task of a queue was launched
        self._full = False  # whether no slot was free after the last launch
        self._waits: dict[int, tuple[float, int, int]] = {}
        self._in_flight = 0  # bytes
        self._next = 0.0  # when the counters are sampled again

    # -- its life -------------------------------------------------------------------------------------------------

    def opened(self) -> None:
        self._file.begin(self._probe)  # its devices are known now

    def detached(self) -> None:
        now = perf_counter()
        for noted in self._tasks.values():  # unfinished tasks, in their present state
            noted[0].done = now
            self._notes.append((Events.task, noted))
        self._tasks.clear()
        for scope, record in self._scopes.items():  # an iteration may be over, and not closed yet
            self._note_closed(scope, record)
        self._sample(now)
        self._file.end()

    def close(self) -> None:
        """Wait until the file is complete: until the scheduler has closed or this was removed from it, and a little
        longer. Blocks: call it on any thread but the loop's."""
        self._file.join()

    def __enter__(self) -> Trace:
        find(self._given).add_instrument(self)
        if self._file.ended:
            raise RuntimeError("the trace could not begin: the log says why")
        return self

    def __exit__(self, *error: object) -> None:
        if not self._file.ended:  # the scheduler has not closed
            self._leave()

    async def __aenter__(self) -> Trace:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()
        await in_thread(self.close, "waits for a trace")

    # -- tasks ----------------------------------------------------------------------------------------------------

    def task_submitted(self, task: Task) -> None:
        now = perf_counter()
        assert task.value is not None
        scope = (self._scopes.get(task.scope) or self._record(task.scope)).number
        record = TaskRecord(
            seq=task.seq, name=task.name, site="", scope=scope, cost=task.cost, kept=0, submitted=now, head=now,
            done=now, inputs=tuple([value.seq for value in task.inputs]), state="pending", expedited=task.expedited,
            claim=not task.lanes,
        )  # fmt: skip
        self._tasks[task] = record, task.value.site

    def task_launched(self, task: Task) -> None:
        noted = self._tasks.get(task)
        if noted is None:
            return  # submitted before the trace began
        record, queue, lane = noted[0], task.scope.queue, task.lane
        record.head = max(self._last.get(queue, 0.0), record.submitted)
        record.launched = self._last[queue] = perf_counter()
        if lane is not None:
            record.device, record.stream, record.copies = lane.device.name, lane.stream.name, lane.copies
        if self._full:
            record.waited_for = "slots"
        self._full = self._probe.full
        self._in_flight += task.cost

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        noted = self._tasks.get(task)
        if noted is not None:
            noted[0].began, noted[0].ended = began, ended

    def task_ended(self, task: Task) -> None:
        noted = self._tasks.pop(task, None)
        if noted is None:
            return
        record = noted[0]
        record.done = now = perf_counter()
        record.state = STATE_NAMES[task.state]
        if record.launched is not None:
            self._in_flight -= task.cost
            record.kept = task.cost - task.refund
        self._notes.append((Events.task, noted))
        if now > self._next:
            self._sample(now)

    def op_ran_inline(self, op: InlineOp) -> None:
        scope = self._scopes.get(op.scope) or self._record(op.scope)
        self._notes.append((Events.inline, (op, scope.number)))
        if op.ended > self._next:
            self._sample(op.ended)

    # -- bytes and scopes -----------------------------------------------------------------------------------------

    def bytes_released(self, account: Account, nbytes: int, seq: int) -> None:
        self._file.released.append((perf_counter(), seq, nbytes))

    def scope_opened(self, scope: Scope) -> None:
        self._record(scope)

    def scope_closed(self, scope: Scope, error: BaseException | None) -> None:
        record = self._scopes.pop(scope, None)
        if record is not None:
            self._note_closed(scope, record)
            if record.own_queue:
                self._last.pop(scope.queue, None)

    def batch_formed(self, scope: Scope, items: int, callers: Sequence[Any]) -> None:
        self._notes.append((Events.batch, (self._record(scope).number, perf_counter(), items)))

    def _note_closed(self, scope: Scope, record: ScopeRecord) -> None:
        self._notes.append((Events.scope_closed, (record, perf_counter(), scope.reserve)))

    def _record(self, scope: Scope) -> ScopeRecord:
        """The scope's record, with its number from 1 on. A scope from before the trace counts as opened now."""
        found = self._scopes.get(scope)
        if found is None:
            parent, tenant = scope.parent, tenant_of(scope)
            outer = _NO_SCOPE if parent is None else self._record(parent)
            own, whose = parent is None or scope.queue is not parent.queue, "" if tenant is None else str(tenant)
            self._count += 1
            found = ScopeRecord(self._count, outer.number, scope.name, perf_counter(), own, priority_of(scope), whose)
            self._scopes[scope] = found
            self._notes.append((Events.scope_opened, (found, outer.name)))
        return found

    # -- waits, and the counters ----------------------------------------------------------------------------------

    def wait_began(self, tasks: Sequence[Task]) -> None:
        if tasks:
            self._waits[id(tasks)] = perf_counter(), tasks[-1].seq, len(tasks)

    def wait_ended(self, tasks: Sequence[Task]) -> None:
        began = self._waits.pop(id(tasks), None)
        if began is not None:
            self._notes.append((Events.wait, (*began, perf_counter())))

    def _sample(self, now: float) -> None:
        self._next = now + _EVERY
        probe, scopes = self._probe, []
        if probe.reserved_bytes:
            scopes = [(record, scope.account.used) for scope, record in self._scopes.items() if scope.reserve]
        counts = probe.pending, probe.in_flight, self._in_flight, probe.used_bytes
        sample = (now, *counts, thread_time(), scopes[:_SHOWN_SCOPES])
        self._notes.append((Events.counters, sample))
        self._file.bound()
