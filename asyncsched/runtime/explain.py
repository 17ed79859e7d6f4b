"""Unfinished tasks explained: why each is unfinished, in words, and all of them as a graph.

Theory of operation. An unfinished task waits for at least one thing. Behind that is mostly another task, about which
the same question is asked. So a chain is a walk, without recursion. Lines of code are looked up only for the links at
its two ends, which are shown. The one costly question is who holds bytes (`deadlock.investigate`). It is asked only
where a link waits for bytes, once in most chains.

The answers come from the engine's counts, and nothing is changed. So an explanation may be asked for at any moment,
also on another thread while the loop's is blocked.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import Final

from .._arguments import counted
from .._core.audit import launched, sufficient_limit
from .._core.callsite import is_users, line_of
from .._core.model import DONE, LAUNCHED, PENDING, STATE_NAMES, Scope, Task, Value
from ..pictures.graph import Node, TaskGraph
from .deadlock import BUDGET, investigate, known_of
from .holders import place_of, where_it_waits
from .life import running_loop
from .loop_work import may_happen
from .runtime import Runtime

_Link = tuple[str, Task | None]  # of a chain: why a task waits, in words, and the task it waits for, if any
_ENDED: Final[_Link] = "which has ended; the event loop takes that in at its next turn", None
_FIRST, _LAST = 3, 6  # links shown at each end of a chain
_WAITERS: Final = 8  # waiters shown
_LONGEST: Final = 300  # characters of an exception's text
_NOBODY: Final = "nothing is unfinished, and nobody waits for a task: if the program hangs, it waits for something else"

_age: Final = attrgetter("seq")  # a key for sorting: the oldest task comes first


def explain(runtime: Runtime, value: Value) -> str:
    """Why a value is not there yet, or where it is, or why it failed."""
    task, failure = value.task, value.failure
    if failure is not None:
        what = "was cancelled" if failure.cancelled else "failed"
        lines = [f"{failure.name} ({line_of(failure.site)}) {what}", *[line[:_LONGEST] for line in failure.told()]]
        if task is not None and task.state == LAUNCHED:
            lines += ["its body has not ended, and keeps its slot and bytes until then"]
            lines += _chain(runtime, task)[1:]
        return "\n  ".join(lines)
    if task is None or task.state >= DONE:
        return _where(value)
    return "\n  ".join(_chain(runtime, task))


def explain_all(runtime: Runtime) -> str:
    """Why each waiter still waits; if nobody waits, why the oldest task is not done."""
    told, found = [repr(runtime)], dict[Task | None, list[str]]()
    told += [line for one in list(runtime.answerers) for line in one.explained()]
    for waiter, tasks in list(runtime.parked.values()):
        unfinished = next((task for task in tasks if task.state < DONE), None)
        found.setdefault(unfinished, []).append("a callback" if waiter is None else where_it_waits(waiter))
    if not found:
        unfinished = min(runtime.engine.root.unfinished(), key=_age, default=None)
        if unfinished is None:
            return "\n".join(told if len(told) > 1 else [*told, *_elsewhere(runtime)])
        found[unfinished] = ["nobody waits; the oldest unfinished task"]
    for task, who in islice(found.items(), _WAITERS):
        why = ["its task has ended, and the event loop has not resumed it"] if task is None else _chain(runtime, task)
        others = f", and {len(who) - 1:,} more" if len(who) > 1 else ""
        told.append(f"{who[0]}{others}: " + "\n  ".join(why))
    if len(found) > _WAITERS:
        told.append(f"... and {len(found) - _WAITERS:,} more that somebody awaits")
    return "\n".join(told)


def _elsewhere(runtime: Runtime) -> list[str]:
    """Where the program waits for something that is not the scheduler's."""
    loop = runtime.loop
    tasks = set() if loop is None else asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    places = Counter(map(place_of, tasks)).most_common(_WAITERS)
    return [f"{_NOBODY} (a queue, an event, a lock)", *[f"  {n:,} x a task waits {place}" for place, n in places]]


def unfinished(runtime: Runtime, values: Sequence[Value] | None) -> TaskGraph:
    """The graph of all unfinished tasks; with `values`, of those and the tasks they depend on."""
    asked: list[Task | Value] = [*runtime.engine.root.unfinished()] if values is None else [*map(_node_of, values)]
    # before the nodes are made, since a stream's thread may clear the inputs of a launched task at any time
    reads, todo = dict[Task | Value, list[Task | Value]](), list(asked)
    while todo:
        thing = todo.pop()
        if thing not in reads:
            reads[thing] = [_node_of(value) for value in thing.inputs] if isinstance(thing, Task) else []
            todo += reads[thing]
    tasks = sorted([thing for thing in reads if isinstance(thing, Task)], key=_age)
    things = dict.fromkeys([thing for task in tasks for thing in (*reads[task], task)] + asked)
    places = {thing: place for place, thing in enumerate(things)}
    found = []
    for thing in things:
        task, value = (thing, thing.value) if isinstance(thing, Task) else (thing.task, thing)
        kind = "result" if value is None or value.base is None else "view"
        name, state = (kind, "done") if task is None else (task.name, STATE_NAMES[task.state])
        if task is not None and task.failure is not None:  # a handle says so, too, before the task has ended
            state = "cancelled" if task.failure.cancelled else "failed"
        meta, device = getattr(value, "meta", None), getattr(value, "device", None)
        shape, dtype = (None, "") if meta is None else (meta.shape, str(meta.dtype))
        where = "" if value is None or value.site is None else line_of(value.site)
        inputs = tuple([places[made] for made in reads[thing]])
        found.append(Node(name, shape, dtype, state, device.name if device else "", inputs, where))
    return TaskGraph(found)


def _chain(runtime: Runtime, task: Task) -> list[str]:
    """A line for a task, and lines for why it waits, and so on down; of a long chain, only for its two ends."""
    links = _Chain(runtime).links(task)
    left_out = len(links) - _FIRST - _LAST
    if left_out > 0:
        links[_FIRST:-_LAST] = [(f"... {left_out:,} more, each of which waits for the next ...", None)]
    told = [f"{why}{'' if behind is None else f': {_label(behind)}{_in_commit(behind)}'}" for why, behind in links]
    return [f"{_label(task)} is {STATE_NAMES[task.state]}{_in_commit(task)}", *told]


class _Chain:
    """The reasons why tasks wait, at one moment: each in words, and the task it waits for, if any."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._engine = runtime, runtime.engine
        self._in_flight = sorted(launched(runtime.engine.root), key=_age)

    def links(self, task: Task) -> list[_Link]:
        """The reason why a task waits, then why the task behind it waits, and so on."""
        found, seen = list[_Link](), set[Task]()
        todo: Task | None = task
        while todo is not None and todo not in seen:  # changes on another thread might make a circle
            seen.add(todo)
            found.append(self._on_its_stream(todo) if todo.state == LAUNCHED else self._before_its_stream(todo))
            todo = found[-1][1]
        return found

    def _before_its_stream(self, task: Task) -> _Link:
        if task.state != PENDING:
            return _ENDED
        if task.blockers:
            others = [v.task for v in task.inputs] + list(task.after or ())
            pending = [other for other in others if other is not None and other.state == PENDING]
            more = f" (of {task.blockers:,} that are pending)" if task.blockers > 1 else ""
            return f"which waits for an input{more}", min(pending, key=_age, default=None)
        queue, account, ledger = task.scope.queue, task.scope.account, self._engine.ledger
        head = queue.peek()
        if head is not task and head is not None:
            before = counted(len(list(takewhile(lambda other: other is not task, queue.tasks()))), "other")
            return f"which is behind {before} in the queue of {_name_of(task.scope)}, whose head is", head
        if task.lanes and ledger.full:
            taken = f"{ledger.in_flight:,} of {ledger.limits.max_ops:,} tasks (max_ops) are in flight"
            return f"which waits for a slot: {taken}, the oldest", next(iter(self._in_flight), None)
        if not account.has_room(task):
            flying = [other for other in self._in_flight if other.scope.account is account]
            return self._bytes(task, flying), next(iter(flying), None)
        if account.earmark is not None and account.earmark is not task and not account.grace:
            return "which waits for bytes kept for a task that was passed over too often", account.earmark
        return "which waits for nothing: it is launched at the next turn of the event loop", None

    def _on_its_stream(self, task: Task) -> _Link:
        lane = task.lane
        if lane is None or lane.stream.finished.count >= task.number:
            return _ENDED
        first = lane.stream.finished.count + 1
        if first < task.number:
            running = next((t for t in self._in_flight if t.lane is lane and t.number == first), None)
            before = counted(max(1, task.number - first), "other")
            return f"which is launched on {lane.stream.name} behind {before}, the first", running
        for value in task.inputs:
            producer = value.task
            if producer is not None and producer.state == LAUNCHED and (other := producer.lane) not in (None, lane):
                assert other is not None
                if other.stream.finished.count < producer.number:
                    waits = f"which is the next on {lane.stream.name}, and waits for an input on another stream"
                    return waits, producer
        return f"which {'copies' if lane.copies else 'runs'} on {lane.stream.name}{_where_it_runs(task)}", None

    def _bytes(self, task: Task, flying: Sequence[Task]) -> str:
        """Why a task waits for bytes, in lines, while others in flight are charged to its account."""
        account, engine, runtime = task.scope.account, self._engine, self._runtime
        whose = "" if account is engine.ledger.account else f" of the reserve of {_name_of(task.scope)}"
        told = f"which waits for {task.cost:,} bytes: {account.used:,} of {account.limit:,}{whose} are taken"
        here = running_loop() is runtime.loop  # on another thread there is no search
        lines = investigate(runtime, [account], BUDGET)[account].lines if here else known_of(runtime, account)
        if flying:
            total, tasks = sum([other.cost for other in flying]), counted(len(flying), "task")
            first = f"{total:,} bytes: {tasks} in flight; a task gives back what its result does not keep"
            return "\n    ".join([told, first, *lines]) + "\n  and for those in flight, the oldest"
        assert runtime.loop is not None
        enough = sufficient_limit(engine.admission.tasks(), account)
        lines.append(f"(what may still act: {may_happen(runtime.loop) or 'nothing'})")
        lines.append(f"(a limit of {enough:,} bytes would have been enough for all waiting tasks)")
        return "\n    ".join([f"{told}, and nothing in flight will free any", *lines])


def _label(task: Task) -> str:
    return f"{task.name} #{task.seq}" + (f" ({line_of(task.site)})" if task.site else "")  # none once it has ended


def _in_commit(task: Task | None) -> str:
    """The commit that a task is part of, as text, if any. Reads `move` once, since a stream's thread clears it."""
    move = None if task is None else task.move
    return "" if move is None else f", part of the commit {move.commit.gate.name!r}"


def _name_of(scope: Scope) -> str:
    return "the scheduler" if scope.parent is None else f"scope {scope.name!r}"


def _where(value: Value) -> str:
    """The place of a finished value, and the line that made it."""
    device = "" if value.device is None else f" on {value.device.name}"
    owner = value.owner
    size = f"{owner.charge:,} bytes{device}"
    size = f"{size} are charged for it" if owner is value else f"a view of {size}"
    out = ", also while you hold only the array that was given out" if owner.escaped else ""
    made = "at once, on the event loop's thread" if value.site is None else f"by a task of {line_of(value.site)}"
    return f"done: made {made}; {size}{out}"


def _where_it_runs(task: Task) -> str:
    """The line of its function at which the stream's thread is now, if that is known and still this task's."""
    lane = task.lane
    assert lane is not None
    worker = getattr(lane.stream, "worker", None)
    frame = None if worker is None else sys._current_frames().get(worker.ident)
    names, line = [], ""
    while frame is not None and is_users(frame.f_code):  # up to the task's function, which the package calls
        names.append(frame.f_code.co_qualname)
        line = f", now at {frame.f_code.co_filename}:{frame.f_lineno} in {names[-1]}"
        frame = frame.f_back
    # The thread waits for the next task, or has begun it
    if frame is None or lane.stream.finished.count >= task.number:
        return ""
    return line if len(names) < 2 else f"{line}, inside {names[0]}"


def _node_of(value: Value) -> Task | Value:
    """The node for a value: its task while unfinished, else the value."""
    task = value.task
    return value if task is None or task.state >= DONE else task
