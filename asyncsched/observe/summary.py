"""The use of time, per operation and per stream, and the present state, as numbers and text.

A snapshot keeps no task and no tensor.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from threading import get_ident
from time import perf_counter
from typing import Any, Final

from .._core.callsite import CallSite, line_of
from .._core.instrument import InlineOp
from .._core.model import DONE, FAILED, STATE_NAMES, Lane, Scope, Task
from ..pictures.record import Bytes, Record, Seconds
from ..runtime.holders import place_of
from ..runtime.statistics import Load, Statistics
from .probe import OfOne, Probe

MOST_NAMES: Final = 100
OTHERS: Final = "(others)"
_FAILURES_KEPT = 5
_LOOKED_AT = 64  # most waiting places and open scopes, since the loop stands still meanwhile


@dataclass(frozen=True, repr=False)
class Operation(Record):
    """All tasks of one name, and the operations of that name that ran on the loop's thread.

    Attributes:
        count: how many ran.
        seconds: for which they ran, added up.
    """

    name: str
    count: int
    seconds: Seconds


@dataclass(frozen=True, repr=False)
class StreamState(Record):
    """A stream.

    Attributes:
        busy_seconds: for which it ran tasks, with the one that runs now, and without parts that other streams ran.
        tasks: that were launched on it and have not ended.
        running: the task that runs, or, on CUDA, that was enqueued last; None if there is none.
        running_seconds: for which it has run.
        line: the user's line that submitted it.
    """

    name: str
    busy_seconds: Seconds
    tasks: int
    running: str | None
    running_seconds: Seconds
    line: str


@dataclass(frozen=True, repr=False)
class Waiting(Record):
    """Coroutines that wait at one line for a task.

    Attributes:
        place: "at file:line in name".
        name: of the first unfinished task for which they wait; empty if all have finished.
        state: of that task: pending or launched.
        line: the user's line that submitted it.
        more: for how many other tasks each of them waits.
    """

    count: int
    place: str
    name: str
    state: str
    line: str
    more: int


@dataclass(frozen=True, repr=False)
class ScopeState(Record):
    """A scope that is open.

    Attributes:
        tasks: its own tasks that have not ended.
        reserve: bytes that it has reserved; 0 if it uses its parent's.
        used: bytes of the reserve that are used.
    """

    name: str
    tasks: int
    reserve: Bytes
    used: Bytes


@dataclass(frozen=True, repr=False)
class Snapshot(Record):
    """The result of `Summary.read()`.

    Attributes:
        name: the scheduler's `repr`.
        seconds: since the scheduler was first looked at.
        operations: by the time that they took, the longest first.
        waiting: by the number of coroutines; at most the first ones of very many.
        waiting_count: coroutines that wait.
        scopes: those right below the scheduler; at most the first ones of many. Without iterations of windows.
        iterations: number of unfinished iterations of windows right below the scheduler.
        failures: the last tasks whose bodies raised, the oldest first.
    """

    name: str
    seconds: Seconds
    statistics: Statistics
    load: Load
    operations: tuple[Operation, ...]
    streams: tuple[StreamState, ...]
    waiting: tuple[Waiting, ...]
    waiting_count: int
    scopes: tuple[ScopeState, ...]
    scope_count: int
    iterations: int
    failures: tuple[str, ...]


class Summary(OfOne):
    """An instrument that adds up the time of each operation and each stream. `read()` adds the present state.

    The first hundred names of tasks have a sum each, all others have one together. It is for one scheduler: a second
    one raises RuntimeError.

    >>> async def main():
    ...     summary = asc.observe.Summary()
    ...     async with asc.Scheduler("cpu", instruments=[summary]) as s:
    ...         await s.call(max, 1, 2)
    ...         found = summary.read()
    ...         print(found.operations[0].name, found.operations[0].count, found.operations[0].seconds < 1)
    >>> asc.run(main)
    max 1 True
    """

    def __init__(self) -> None:
        self._began = 0.0
        # By thread, since an addition is two steps, between which other threads may run.
        self._tallies: defaultdict[int, _Tally] = defaultdict(_Tally)
        self._running: dict[Lane, tuple[Task, CallSite | None, float]] = {}
        self._shown: dict[Lane, float] = {}  # the busy time last reported: it must not shrink
        self._failures: deque[str] = deque(maxlen=_FAILURES_KEPT)

    def attached(self, scheduler: Any) -> None:
        super().attached(scheduler)
        self._began = perf_counter()

    def body_began(self, task: Task) -> None:
        assert task.lane is not None
        self._running[task.lane] = task, task.site, perf_counter()

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        lane = task.lane
        assert lane is not None
        running = self._running.get(lane)
        if running is not None and running[0] is task:
            del self._running[lane]
        tally = self._tallies[get_ident()]
        tally.busy[lane] = tally.busy.get(lane, 0.0) + ended - began
        tally.add(task.name, ended - began)

    def op_ran_inline(self, op: InlineOp) -> None:
        tally = self._tallies[get_ident()]
        tally.add(op.name, op.ended - op.began)

    def task_ended(self, task: Task) -> None:
        failure = task.failure
        if task.state == FAILED and failure is not None and failure.upstream is None:
            self._failures.append(f"{task.name}: {failure.kind}, {line_of(failure.site)}")

    def read(self) -> Snapshot:
        """A snapshot. For the loop's thread.

        Raises:
            RuntimeError: if it has no scheduler yet.
        """
        probe = self._probe
        if probe is None:
            raise RuntimeError("this instrument has no scheduler yet: give it to Scheduler(instruments=[...])")
        scopes, scope_count, iterations = _scopes(probe.root)
        name, statistics, load = self._told()
        return Snapshot(
            name=name,
            seconds=perf_counter() - self._began,
            statistics=statistics,
            load=load,
            operations=self.operations(),
            streams=self.streams(),
            waiting=_waiting(probe),
            waiting_count=probe.waits,
            scopes=scopes,
            scope_count=scope_count,
            iterations=iterations,
            failures=tuple(self._failures),
        )

    def operations(self) -> tuple[Operation, ...]:
        """The operations so far, by name, the longest first. On any thread."""
        total = _Tally()
        for tally in list(self._tallies.values()):
            for name, (count, seconds) in list(tally.operations.items()):
                total.add(name, seconds, count)
        operations = [Operation(name, count, seconds) for name, (count, seconds) in total.operations.items()]
        return tuple(sorted(operations, key=lambda operation: -operation.seconds))

    def streams(self) -> tuple[StreamState, ...]:
        """All streams, compute streams first. On the loop's thread."""
        lanes = self._probe.lanes
        return tuple(self._stream(lane) for lane in lanes if lane.copies or lane.stream in lane.device.streams)

    def _stream(self, lane: Lane) -> StreamState:
        running = self._running.get(lane)
        name, seconds, line = None, 0.0, ""
        if running is not None:
            task, site, since = running
            name, seconds, line = task.name, max(0.0, perf_counter() - since), line_of(site)
        busy = sum(tally.busy.get(lane, 0.0) for tally in list(self._tallies.values())) + seconds
        self._shown[lane] = max(busy, self._shown.get(lane, 0.0))
        return StreamState(lane.stream.name, self._shown[lane], lane.load, name, seconds, line)


class _Tally:
    """The sums of one thread."""

    __slots__ = ("busy", "operations")

    def __init__(self) -> None:
        self.busy: dict[Lane, float] = {}
        self.operations: dict[str, tuple[int, float]] = {}

    def add(self, name: str, seconds: float, count: int = 1) -> None:
        if name not in self.operations and len(self.operations) >= MOST_NAMES:
            name = OTHERS
        before, spent = self.operations.get(name, (0, 0.0))
        self.operations[name] = before + count, spent + seconds


def _waiting(probe: Probe) -> tuple[Waiting, ...]:
    """Waiting coroutines, by line."""
    found: Counter[tuple[str, str, str, str, int]] = Counter()
    for waiter, awaited in list(islice(probe.waiting(), _LOOKED_AT)):
        place = "in a callback" if waiter is None else place_of(waiter)
        found[place, *_awaited([task for task in awaited if task.state < DONE])] += 1
    return tuple(Waiting(count, *fields) for fields, count in found.most_common())


def _awaited(tasks: Sequence[Task]) -> tuple[str, str, str, int]:
    if not tasks:
        return "", "", "", 0
    return tasks[0].name, STATE_NAMES[tasks[0].state], line_of(tasks[0].site), len(tasks) - 1


def _scopes(root: Scope) -> tuple[tuple[ScopeState, ...], int, int]:
    """The open scopes right below the root, how many there are, and how many iterations of windows."""
    iterations = [scope for scope in root.children if scope.queue is root.queue]
    others = [scope for scope in root.children if scope.queue is not root.queue]
    shown = tuple(
        ScopeState(scope.name, len(scope.tasks), scope.reserve, scope.account.used if scope.reserve else 0)
        for scope in others[:_LOOKED_AT]
    )
    return shown, len(others), sum(not scope.over() for scope in iterations)
