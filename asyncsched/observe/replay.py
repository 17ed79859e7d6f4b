"""Running a recorded program again in virtual time, under other limits and on other streams.

Theory of operation. The scheduler's own engine decides again which task is admitted when. Only the streams and the
program are stand-ins. A simulated stream runs bodies one after the other, each for its recorded time, once its inputs
from other streams are there. Tasks that ran on the loop's thread do so again. The program repeats its recorded actions,
in their order and with their pauses. Where it waited for a task, it waits for that task again. If the task is now
admitted or ends later, the program goes on later.

The program's actions are read off the recording, which has the times of tasks (`events_of`). It submitted a task, ran a
quick operation, opened or left a scope, dropped a result, or went on after a wait. Each action has a delay after the
one before it, or after the end of its wait. The recording has the time at which a result was freed, but not the cause.
If that was when its last reader ended, or while the program waited, the reader freed it. Otherwise the program dropped
it.

Unknown things are assumed. Bodies take their recorded time, however many streams run at once. (If a limit leaves room
for only one large operation at a time, idle streams help with it, and it ends earlier than predicted.) All coroutines
are one: a wait holds up all later actions. Tenants and weights of scopes are not in a trace; queues and priorities are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, count
from operator import itemgetter, methodcaller
from statistics import median
from typing import Final, NamedTuple

from .._core.completions import Completions
from .._core.engine import Engine
from .._core.instrument import Host
from .._core.ledger import Limits
from .._core.model import DONE, LAUNCHED, CallPlan, Lane, Scope, Task, Value, new_value
from .._core.tenants import Share
from ..errors import TaskTooLarge
from ..pictures.record import Bytes, Record, Seconds
from .recording import Recording, TaskRecord

_FREED_WITH: Final = 1e-4  # seconds: freed so soon after a reader's end, it was the reader. A guess
_TYPICAL: Final = 200  # so many bodies, the last ones, give the streams' own delays. A guess


@dataclass(frozen=True, repr=False)
class Outcome(Record):
    """The outcome of a replay. Times are in seconds, sizes in bytes.

    Attributes:
        finished: whether all tasks were submitted and ran; else the program stands still under these limits.
        seconds: from the first submission to the last end.
        peak_bytes: the highest tracked bytes.
        waited: how long the program waited for admission.
        busy: the share of the time in which the compute streams ran, on average.
        why: if it is not finished, the first task that cannot be admitted.
    """

    limits: Limits
    streams: int
    finished: bool
    seconds: Seconds
    peak_bytes: Bytes
    waited: Seconds
    busy: float
    why: str = ""


@dataclass(slots=True)
class _Stream:
    free: float = 0.0
    busy: float = 0.0


class Program:
    """A recording as a program: made once, replayed often.

    Raises:
        ValueError: for a recording without a single task.
    """

    def __init__(self, recording: Recording) -> None:
        if not recording.tasks:
            raise ValueError("this trace has no tasks: let it run while something is computed")
        self.recording = recording
        self.events: list[Event] = events_of(recording)
        self.delays: Delays = delays_of(recording)
        self._known: dict[tuple[Limits, int], Outcome] = {}  # a replay is always the same

    def run(self, limits: Limits, streams: int) -> Outcome:
        """Replay it under these limits, on this number of compute streams of each device."""
        key = limits, streams
        if key not in self._known:
            self._known[key] = Replay(self, *key).run()
        return self._known[key]


class Replay(Host):
    """One run of a program."""

    def __init__(self, program: Program, limits: Limits, streams: int) -> None:
        self._program = program
        self._count = streams
        self.now: float = 0.0
        self._completions = Completions(lambda: None)
        self._limits = limits
        self.engine: Engine = Engine(limits, self._completions, self)
        self._heap: list[tuple[float, int, Task]] = []
        self._order = count()
        self._streams: dict[Lane, _Stream] = {}
        self._lanes: dict[tuple[str, bool], list[Lane]] = {}
        self._tasks: dict[int, Task] = {}  # the unfinished ones, by number
        self._ends: dict[Task, float] = {}  # of bodies, known at launch
        self._values: dict[int, Value] = {}  # results that the program holds, by number
        self._scopes: dict[int, Scope] = {0: self.engine.root}
        self._events = deque(program.events)
        self._waited = 0.0

    # -- the program ------------------------------------------------------------------------------------------------

    def submit(self, record: TaskRecord) -> None:
        """A task joins the backlog."""
        if record.launched is None and record.state != "pending":
            return  # it was cancelled, or failed, before it could run
        scope = self._scope(record.scope)
        inputs = tuple([value for seq in record.inputs if (value := self._values.get(seq)) is not None])
        value = new_value(scope.account, None, None, record.kept)
        lanes = [] if record.claim else self._lanes_of(record)
        task = Task(scope, CallPlan(record.name), value, record, inputs, None, None, lanes, record.cost)
        task.expedited = record.expedited
        self._values[record.seq] = value
        self._tasks[record.seq] = task
        del value, inputs
        self.engine.submit(task, bounded=False)

    def ran_inline(self, record: TaskRecord) -> None:
        """A quick operation: its result is there at once."""
        scope = self._scope(record.scope)
        value = self._values[record.seq] = new_value(scope.account, None, None, record.kept)
        self.engine.ledger.charge_at_once(value, record.kept)

    def drop(self, seq: int) -> None:
        """The program drops a result."""
        self._values.pop(seq, None)

    def open(self, number: int) -> None:
        """A scope is opened."""
        record = self._program.recording.scopes[number]
        parent = self._scope(record.parent)
        self._scopes[number] = self.engine.scopes.open(record.name, parent, Share(priority=record.priority or None))

    def close(self, number: int) -> None:
        """A scope is left. Its unfinished tasks count as its parent's."""
        scope = self._scopes.pop(number, None)
        if scope is not None and not scope.tasks:
            self.engine.close_scope(scope)

    def _scope(self, number: int) -> Scope:
        scopes = self._program.recording.scopes
        while number not in self._scopes and number in scopes:
            number = scopes[number].parent
        return self._scopes.get(number, self.engine.root)

    # -- the streams ------------------------------------------------------------------------------------------------

    def _lanes_of(self, record: TaskRecord) -> list[Lane]:
        """The lanes on which a task may run: those of its device. A trace names only lanes that were used."""
        key = record.device, record.copies
        if key not in self._lanes:
            lanes = [Lane(stream=self, copies=record.copies) for _ in range(1 if record.copies else self._count)]
            self._lanes[key] = lanes
            self._streams |= {lane: _Stream() for lane in lanes}
        return self._lanes[key]

    def launch(self, task: Task, waits: object) -> int:
        """A body begins on its stream, as soon as it can."""
        record, delays = task.call, self._program.delays
        assert task.lane is not None
        stream = self._streams[task.lane]
        start = self.now if record.on_loop else max(self.now + delays.hop, stream.free + delays.between)
        for value in task.inputs:
            start = max(start, self._ends.get(value.task, 0.0) if value.task is not None else 0.0)
        took = (record.ended or 0.0) - (record.began or 0.0)
        self._ends[task] = told = start + took
        if not record.on_loop:  # there, no task goes to a stream or comes back
            stream.free, stream.busy, told = told, stream.busy + took, told + delays.wake
        heappush(self._heap, (told, next(self._order), task))
        return 0  # the time of its end takes the place of its number

    def _end(self, task: Task) -> None:
        """The loop takes in the end of a body."""
        record, value = task.call, task.value
        assert value is not None
        value.charge, task.refund = record.kept, task.cost - record.kept
        del value
        task.let_go()
        self._ends.pop(task, None)
        self._tasks.pop(record.seq, None)
        self._completions.items.append(task)
        del task
        self.engine.dispatch()

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run everything, to the end or until nothing moves."""
        while self._events:
            event = self._events[0]
            since = self.now
            while (task := self._tasks.get(event.awaited)) is not None and task.state < event.state:
                if not self._step():
                    return self._outcome(finished=False)
            if event.state == LAUNCHED:
                self._waited += self.now - since
            when = self.now + event.delay
            while self._heap and self._heap[0][0] <= when:  # bodies end meanwhile
                self._step()
            self.now = max(self.now, when)
            self._events.popleft()
            try:
                if event.act is not None:
                    event.act(self)
            except TaskTooLarge as error:
                return self._outcome(finished=False, why=f"one task alone needs {error.needed:,} bytes")
            self.engine.dispatch()
        while self._step():
            pass
        return self._outcome(finished=not self.engine.ledger.pending)

    def _step(self) -> bool:
        """Let time pass until the next body ends. Returns whether there was one."""
        if not self._heap:
            self.engine.dispatch()
            if not self._heap:
                return False
        when, _, task = heappop(self._heap)
        self.now = max(self.now, when)
        self._end(task)
        return True

    def _outcome(self, *, finished: bool, why: str = "") -> Outcome:
        seconds = max(self.now, 1e-9)
        compute = [stream for lane, stream in self._streams.items() if not lane.copies]
        busy = sum(stream.busy for stream in compute) / (seconds * max(1, len(compute)))
        waiting = self.engine.admission.tasks()
        if waiting and not finished and not why:
            why = f"{waiting[0].name} ({waiting[0].cost:,} bytes) is never admitted"
        peak = self.engine.ledger.peak_bytes
        return Outcome(self._limits, self._count, finished, seconds, peak, self._waited, busy, why)


# -- the program's actions, from the recording ----------------------------------------------------------------------


@dataclass(slots=True)
class Event:
    """An action of the program. If it waited before the action, it waited until a task came to a state.

    Attributes:
        when, rank: the order of actions. The rank decides between actions of the same time.
        act: calls a method of a replay; None if it only waited.
        awaited: the number of the task for which it waited, -1 for none.
        state: the state of that task for which it waited.
        reached: when the task came to that state.
        delay: seconds since the action before it, or since `reached` if that was later.
    """

    when: float
    rank: int
    act: methodcaller | None
    awaited: int = -1
    state: int = DONE
    reached: float = 0.0
    delay: float = 0.0


class Delays(NamedTuple):
    """The delays of a stream beside the bodies, in seconds."""

    hop: float  # from a launch on an idle stream to the body
    between: float  # from a body's end to the next one's beginning
    wake: float  # from a body's end to when the loop knows


def events_of(recording: Recording) -> list[Event]:
    """The actions of the event loop's thread, in order."""
    events = sorted(_events(recording), key=lambda event: (event.when, event.rank))
    last = recording.tasks[0].submitted
    for event in events:
        event.delay = max(0.0, event.when - max(last, event.reached))
        last = max(last, event.when)
    return events


def delays_of(recording: Recording) -> Delays:
    """The typical delays of the streams beside the bodies."""
    ran: dict[str, list[TaskRecord]] = defaultdict(list)
    for task in recording.tasks:
        if task.began is not None and task.launched is not None and not task.on_loop:
            ran[task.stream].append(task)
    hops, pauses, wakes = [0.0], [0.0], [0.0]
    for tasks in ran.values():
        tasks.sort(key=lambda task: task.began or 0.0)
        free = 0.0
        for task in tasks:
            assert task.began is not None and task.launched is not None and task.ended is not None  # noqa: PT018
            (hops if task.launched > free else pauses).append(task.began - max(task.launched, free))
            wakes.append(task.done - task.ended)
            free = task.ended
    wake = sorted(wakes)[len(wakes) // 20]  # the loop noticed most ends later, since nobody waited for them
    return Delays(_typical(hops), _typical(pauses), wake)


def _typical(times: list[float]) -> float:
    return max(0.0, median(times[-_TYPICAL:]))


def _events(recording: Recording) -> Iterator[Event]:
    """All actions of the loop's thread, in no order. Ranks order actions of the same time: drops, scopes that open,
    ends of waits, submissions, drops of results that a task just submitted is to free, scopes that close."""
    for task in recording.tasks:
        yield Event(task.submitted, 3, methodcaller("ran_inline" if task.inline else "submit", task))
    for scope in recording.scopes.values():
        if scope.own_queue:
            yield Event(scope.opened, 1, methodcaller("open", scope.number))
            if scope.closed is not None:
                yield Event(scope.closed, 5, methodcaller("close", scope.number))
    yield from _drops(recording)
    yield from _waits(recording)


def _drops(recording: Recording) -> Iterator[Event]:
    """When the program dropped results: at the latest when it submitted the task whose end freed them."""
    waited = _waits_at(recording)
    readers: dict[int, TaskRecord] = {}  # for each result the last reader to end
    for task in recording.tasks:
        for seq in task.inputs:
            if seq not in readers or task.done > readers[seq].done:
                readers[seq] = task
    for task in recording.tasks:
        reader, drop = readers.get(task.seq), methodcaller("drop", task.seq)
        if task.released is None:
            scope = recording.scopes.get(task.scope)
            if not task.kept:
                yield Event(task.done, 0, drop)
            elif task.claim and scope is not None and scope.closed is not None:  # a reserve ends with its scope
                yield Event(scope.closed, 5, drop)
        elif reader is not None and (waited(task.released) or _freed_by(reader, task.released)):
            yield Event(reader.submitted, 4, drop)
        elif waited(task.released):
            yield Event(task.submitted, 4, drop)
        else:
            yield Event(task.released, 0, drop)


def _freed_by(reader: TaskRecord, released: float) -> bool:
    """Whether the task's input was freed when it ended."""
    return reader.ended is not None and reader.ended <= released <= reader.done + _FREED_WITH


def _waits_at(recording: Recording) -> Callable[[float], bool]:
    """Whether the program was waiting at a time: then it did not cause an event of that time."""
    waits = sorted(recording.waits)
    ends = list(accumulate((ended for _, ended, *_ in waits), max))  # the last of the waits that began by then

    def waited(when: float) -> bool:
        at = bisect_right(waits, when, key=itemgetter(0)) - 1
        return at >= 0 and when < ends[at]

    return waited


def _waits(recording: Recording) -> Iterator[Event]:
    """Ends of waits, each for the task that ended it: for its launch, or for its end."""
    tasks = {task.seq: task for task in recording.tasks}
    ends = sorted((task.done, task.seq) for task in recording.tasks)
    for began, ended, seq, number in recording.waits:
        awaited = tasks.get(seq)
        if awaited is None:
            continue
        admission = awaited.claim or ended < awaited.done
        if not admission and number > 1:  # of several tasks, the last to end
            at = bisect_right(ends, ended, key=itemgetter(0)) - 1
            if at >= 0 and ends[at][0] >= began and ends[at][1] <= seq:
                awaited = tasks[ends[at][1]]
        state, reached = (LAUNCHED, awaited.launched or 0.0) if admission else (DONE, awaited.done)
        yield Event(ended, 2, None, awaited.seq, state, reached)
