"""What a program did on the event loop's thread, read off a recording: the script that a replay follows.

A recording has the times of tasks. From these come, in order, the events of the program: it submitted a task, ran a
quick operation, opened or left a scope, dropped a result, or went on after a wait. Each has its delay after the event
before it, or after the end of its wait. When a result was freed is recorded, and not by whom: if it was as its last
reader ended, or while the program waited, then it was freed by that reader; else the program dropped it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import methodcaller
from statistics import median
from typing import Final, NamedTuple

from .._core.model import DONE, LAUNCHED
from .recording import Recording, TaskRecord

_FREED_WITH: Final = 1e-4  # seconds after a reader's end within which what it read was freed by it. A guess
_TYPICAL: Final = 200  # the streams' own delays are those of so many bodies, the last. A guess


@dataclass(slots=True)
class Event:
    """Something that the program did. If it waited before, then for a task to come to a state.

    Attributes:
        delay: seconds since the event before it, or since the task came to its state if that was later.
        act: calls a method of a replay; None where it did nothing but wait.
        awaited: the number of the task that it waited for, -1 for none.
        state: of the task, that it waited for.
    """

    delay: float
    act: methodcaller | None
    awaited: int = -1
    state: int = DONE


class _Moment(NamedTuple):
    """An event, and when it was: sorted by time, and by rank where several were at once."""

    when: float
    rank: int
    act: methodcaller | None
    awaited: TaskRecord | None = None
    state: int = DONE


class Delays(NamedTuple):
    """What a stream takes beside the bodies, in seconds."""

    hop: float  # from a launch on an idle stream to the body
    between: float  # from a body's end to the next one's beginning
    wake: float  # from a body's end to when the loop knows


def events_of(recording: Recording) -> list[Event]:
    """What the event loop's thread did, in order."""
    events = []
    last = recording.tasks[0].submitted
    for moment in sorted(_moments(recording), key=lambda moment: moment[:2]):
        task, anchor = moment.awaited, last
        if task is not None:
            reached = task.launched if moment.state == LAUNCHED else task.done
            anchor = max(last, reached if reached is not None else last)
        delay = max(0.0, moment.when - anchor)
        events.append(Event(delay, moment.act, -1 if task is None else task.seq, moment.state))
        last = max(last, moment.when)
    return events


def delays_of(recording: Recording) -> Delays:
    """What the streams took beside the bodies, typically."""
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
    wake = sorted(wakes)[len(wakes) // 20]  # most ends were noticed later, since nobody waited for them
    return Delays(_typical(hops), _typical(pauses), wake)


def _typical(times: list[float]) -> float:
    return max(0.0, median(times[-_TYPICAL:]))


def _moments(recording: Recording) -> Iterator[_Moment]:
    """Everything that the loop's thread did, in no order. What happened at once has this one, by rank: drops, scopes
    that open, ends of waits, submissions, drops of what a task just submitted is to free, scopes that close."""
    for task in recording.tasks:
        yield _Moment(task.submitted, 3, methodcaller("ran_inline" if task.inline else "submit", task))
    for scope in recording.scopes.values():
        if scope.own_queue:
            yield _Moment(scope.opened, 1, methodcaller("open", scope.number))
            if scope.closed is not None:
                yield _Moment(scope.closed, 5, methodcaller("close", scope.number))
    yield from _drops(recording)
    yield from _waits(recording)


def _drops(recording: Recording) -> Iterator[_Moment]:
    """When the program dropped results: at the latest when it submitted the task whose end freed them."""
    waited = _waits_at(recording)
    readers: dict[int, TaskRecord] = {}  # the last to end, of each result
    for task in recording.tasks:
        for seq in task.inputs:
            if seq not in readers or task.done > readers[seq].done:
                readers[seq] = task
    for task in recording.tasks:
        reader, drop = readers.get(task.seq), methodcaller("drop", task.seq)
        if task.released is None:
            if not task.kept:
                yield _Moment(task.done, 0, drop)
        elif reader is not None and (waited(task.released) or _freed_by(reader, task.released)):
            yield _Moment(reader.submitted, 4, drop)
        elif waited(task.released):
            yield _Moment(task.submitted, 4, drop)
        else:
            yield _Moment(task.released, 0, drop)


def _freed_by(reader: TaskRecord, released: float) -> bool:
    """Whether what the task read was freed as it ended."""
    return reader.ended is not None and reader.ended <= released <= reader.done + _FREED_WITH


def _waits_at(recording: Recording) -> Callable[[float], bool]:
    """Whether the program was waiting at a time: then it did not do what happened."""
    begins: list[float] = []
    ends: list[float] = []
    for began, ended, _, _ in sorted(recording.waits):
        if ends and began <= ends[-1]:
            ends[-1] = max(ends[-1], ended)
        else:
            begins.append(began)
            ends.append(ended)

    def waited(when: float) -> bool:
        at = bisect_right(begins, when) - 1
        return at >= 0 and when < ends[at]

    return waited


def _waits(recording: Recording) -> Iterator[_Moment]:
    """Ends of waits, each for the task that ended it: for its launch, or for its end."""
    tasks = {task.seq: task for task in recording.tasks}
    ends = sorted((task.done, task.seq) for task in recording.tasks)
    times = [when for when, _ in ends]
    for began, ended, seq, number in recording.waits:
        awaited = tasks.get(seq)
        if awaited is None:
            continue
        admission = awaited.claim or ended < awaited.done
        if not admission and number > 1:  # the last of several to end
            at = bisect_right(times, ended) - 1
            if at >= 0 and times[at] >= began and ends[at][1] <= seq:
                awaited = tasks[ends[at][1]]
        yield _Moment(ended, 2, None, awaited, LAUNCHED if admission else DONE)
