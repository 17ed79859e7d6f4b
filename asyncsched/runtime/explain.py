"""Why a task is not done: what it waits for, and what that waits for, down to what runs or holds the bytes, in words.

Theory of operation. Whatever is unfinished waits for one thing at least (`waits_for`), and behind that thing is mostly
another task, of which the same is asked. So a chain is a walk, without recursion, and only the links at its two ends
are put into words. Who holds bytes is the one costly question (`deadlock.investigate`), asked where a link waits
for bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import Final

from .._arguments import counted
from .._core.callsite import is_users, line_of
from .._core.model import DONE, LAUNCHED, STATE_NAMES, Account, Scope, Task, Value
from .deadlock import BUDGET, investigate, reserves
from .places import where_it_waits
from .runtime import Runtime
from .waits_for import Link, Wait, Waits, age

_FIRST, _LAST = 3, 6  # links that are told at the ends of a chain
_WAITERS: Final = 8  # of those who wait, that are told of
_LONGEST: Final = 300  # characters of what an exception says

Holders = Callable[[Account], Iterable[str]]  # a line for each that holds bytes of an account


def explain(runtime: Runtime, value: Value, holders: Holders | None = None) -> str:
    """Why a value is not there yet, or what became of it."""
    task, failure = value.task, value.failure
    if failure is not None:
        what = "was cancelled" if failure.cancelled else "failed"
        lines = [f"{failure.name} ({line_of(failure.site)}) {what}", *[_cut(line) for line in failure.told()]]
        if task is not None and task.state == LAUNCHED:
            lines += [
                "its body has not ended, and keeps its slot and bytes until then",
                *_chain(runtime, task, holders),
            ]
        return "\n  ".join(lines)
    if task is None or task.state >= DONE:
        return _where(value)
    return "\n  ".join([f"{_label(task)} is {_state(task)}", *_chain(runtime, task, holders)])


def explain_all(runtime: Runtime, holders: Holders | None = None) -> str:
    """Why those who wait here go on waiting; if nobody does, why the oldest task is not done."""
    found: dict[Task | None, list[str]] = {}
    told = [repr(runtime)]
    for waiter, tasks in list(runtime.parked.values()):
        unfinished = next((task for task in tasks if task.state < DONE), None)
        found.setdefault(unfinished, []).append("a callback" if waiter is None else where_it_waits(waiter))
    if not found:
        unfinished = min(runtime.engine.root.unfinished(), key=age, default=None)
        if unfinished is None:
            return f"{runtime!r}\nnothing is unfinished, and nobody waits"
        found[unfinished] = ["nobody waits; of what is unfinished, the oldest"]
    for task, who in islice(found.items(), _WAITERS):
        more = f", and {len(who) - 1:,} more" if len(who) > 1 else ""
        if task is None:
            told.append(f"{who[0]}{more}: what it awaits has ended, and the event loop has not come to it")
        else:
            lines = [f"{who[0]}{more}: {_label(task)} is {_state(task)}", *_chain(runtime, task, holders)]
            told.append("\n  ".join(lines))
    if len(found) > _WAITERS:
        told.append(f"... and {len(found) - _WAITERS:,} more that somebody awaits")
    return "\n".join(told)


def holders_of(runtime: Runtime, budget: float = BUDGET) -> Holders:
    """Looks for who holds the bytes of an account, within a budget of time. For the loop's thread."""
    return lambda account: investigate(runtime, {account: None}, budget)[account].lines


def _chain(runtime: Runtime, task: Task, holders: Holders | None) -> list[str]:
    """A line for each link of the chain from `task` down; of a long chain only for its two ends."""
    waits = Waits(runtime)
    words = _Words(runtime, waits, holders)
    links = list(waits.chain(task))
    told = [line for link in links[:_FIRST] for line in words.of(link)]
    left_out = len(links) - _FIRST - _LAST
    if left_out > 0:
        told.append(f"... {left_out:,} more, each of which waits for the next ...")
    return told + [line for link in links[_FIRST:][-_LAST:] for line in words.of(link)]


class _Words:
    """Says what tasks wait for."""

    def __init__(self, runtime: Runtime, waits: Waits, holders: Holders | None) -> None:
        self._engine = runtime.engine
        self._waits = waits
        self._holders = holders

    def of(self, link: Link) -> list[str]:
        """One link of a chain of waits, in words."""
        task, wait, behind = link
        ledger, then = self._engine.ledger, "" if behind is None else f": {_label(behind)}"
        stream = "" if task.lane is None else task.lane.stream.name
        if wait is Wait.INPUT:
            more = f" (of {task.blockers:,} that are pending)" if task.blockers > 1 else ""
            return [f"which waits for an input{more}{then}{_in_commit(behind)}"]
        if wait is Wait.QUEUE:
            queue = task.scope.queue
            before = len(list(takewhile(lambda other: other is not task, queue.tasks())))
            where = f"which is behind {counted(before, 'other')} in the queue of {_name_of(task.scope)}"
            return [f"{where}, whose head is{then[1:]}"]
        if wait is Wait.SLOT:
            taken = f"{ledger.in_flight:,} of {ledger.limits.max_ops:,} tasks (max_ops) are in flight"
            return [f"which waits for a slot: {taken}, the oldest{then}"]
        if wait is Wait.BYTES:
            return self._bytes(task, behind)
        if wait is Wait.EARMARK:
            return [f"which waits for bytes that are kept for one it went before often enough{then}"]
        if wait is Wait.STREAM:
            return [f"which is launched on {stream} behind {counted(_ahead(task), 'other')}, the first{then}"]
        if wait is Wait.ELSEWHERE:
            return [f"which is the next on {stream}, and waits for an input on another stream{then}"]
        if wait is Wait.BODY:
            does = "copies" if task.lane is not None and task.lane.copies else "runs"
            return [f"which {does} on {stream}{_where_it_runs(task)}"]
        if wait is Wait.LOOP:
            return ["which has ended, as the event loop learns at its next turn"]
        return ["which nothing keeps: it is launched at the next turn of the event loop"]

    def _bytes(self, task: Task, behind: Task | None) -> list[str]:
        account, engine = task.scope.account, self._engine
        whose = "" if account is engine.ledger.account else f" of the reserve of {_name_of(task.scope)}"
        lines = [
            f"which waits for {task.cost:,} bytes: {account.used:,} of {account.limit:,}{whose} are taken"
            + (", and nothing in flight will free any" if behind is None else "")
        ]
        flying = self._waits.charged_to(account)
        if flying:
            total = sum(other.cost for other in flying)
            tasks = counted(len(flying), "task")
            lines.append(f"  {total:,} bytes: those of {tasks} in flight, which give back what is not kept")
        if self._holders is not None:
            lines += [f"  {line}" for line in self._holders(account)]
        else:
            for _, scope in reserves(engine.root, {account}):
                lines.append(f"  {scope.reserve:,} bytes: the reserve of {_name_of(scope)}, which is open")
        if behind is None:
            enough = engine.audit.sufficient_limit(account)
            return [*lines, f"  (a limit of {enough:,} bytes would have sufficed for all that waits)"]
        return [*lines, f"and for those in flight, the oldest: {_label(behind)}"]


def _label(task: Task) -> str:
    return f"{task.name} #{task.seq} ({line_of(task.site)})"


def _state(task: Task) -> str:
    return f"{STATE_NAMES[task.state]}{_in_commit(task)}"


def _in_commit(task: Task | None) -> str:
    """The name of the commit that it is part of, if any. Reads `move` once, since a stream's thread clears it."""
    move = None if task is None else task.move
    return "" if move is None else f", part of the commit {move.commit.gate.name!r}"


def _name_of(scope: Scope) -> str:
    return "the scheduler" if scope.parent is None else f"scope {scope.name!r}"


def _ahead(task: Task) -> int:
    assert task.lane is not None
    return max(1, task.number - 1 - int(task.lane.stream.finished.count))


def _where(value: Value) -> str:
    """Where a value is that is there, and which line made it."""
    device = "" if value.device is None else f" on {value.device.name}"
    owner = value.owner
    size = f"{owner.charge:,} bytes{device} are charged for it"
    if owner is not value:
        size = f"a view of {owner.charge:,} bytes{device}"
    out = ", also while only an array that was given away is held" if owner.escaped else ""
    made = "at once, on the event loop's thread" if value.site is None else f"by a task of {line_of(value.site)}"
    return f"done: made {made}; {size}{out}"


def _where_it_runs(task: Task) -> str:
    """The line of its function at which a stream's thread is, if that is known and still this task's."""
    lane = task.lane
    assert lane is not None
    thread = getattr(lane.stream, "thread", None)
    frame = None if thread is None else sys._current_frames().get(thread)
    names, line = [], ""
    while frame is not None and is_users(frame.f_code):  # up to the task's function, which the package calls
        names.append(frame.f_code.co_qualname)
        line = f", now at {frame.f_code.co_filename}:{frame.f_lineno} in {names[-1]}"
        frame = frame.f_back
    if frame is None or lane.stream.finished.count >= task.number:  # it waits for the next one, or that has begun
        return ""
    return line if len(names) < 2 else f"{line}, inside {names[0]}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
