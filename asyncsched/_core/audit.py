"""Questions about tasks and their bytes. Nothing here changes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .failure import Failure
from .model import LAUNCHED, Account, Scope, Task, Value
from .ownership import sole


def launched(root: Scope) -> list[Task]:
    """Every task that has a slot."""
    return [task for task in root.unfinished() if task.state == LAUNCHED]


def in_flight_bytes(root: Scope) -> int:
    """Bytes that come free by themselves: output and workspace of tasks in flight, and results that only those read."""
    tasks = launched(root)
    total = sum(task.cost - task.returned for task in tasks)
    readers = Counter(id(value) for task in tasks for value in task.inputs)
    for task in tasks:
        for value in task.inputs:
            count = readers.pop(id(value), 0)
            if count and value.charge and not _being_made(value) and sole(value, count):
                total += value.charge
    return total


def unused_reserve(root: Scope) -> int:
    """Bytes that open scopes have reserved and do not use."""
    return sum([max(0, scope.reserve - scope.account.used) for scope in root.tree() if scope.reserve])


def to_preempt(root: Scope, account: Account, late: bool) -> Scope | None:
    """The scope that must give its bytes back, where scopes of an account wait for each other to grow.

    It is the scope of the lowest priority class whose reserve was granted last. None if fewer than two wait; if one was
    told already and has not left; or, unless `late`, if a scope that has grown is not waiting.
    """
    those = [scope for scope in root.tree() if scope.growing is not None and scope.account_around is account]
    waiting = [scope for scope in those if growths(scope)]
    if len(waiting) < 2 or any(scope.preempted for scope in those if scope not in waiting):
        return None
    if not late and len(waiting) < len(those):
        return None
    untold = [scope for scope in waiting if not scope.preempted]
    return min(untold, key=lambda scope: (scope.queue.tenant.priority.level, -scope.number), default=None)


def growths(scope: Scope) -> list[Task]:
    """The pending claims by which the reserve of a scope is to grow."""
    return [task for growth in scope.growing or () for task in growth.tasks]


def held_by_pending(pending: Iterable[Task]) -> int:
    """Bytes of finished results that only pending tasks hold."""
    return sum([value.charge for value in _solely_held(pending) if value.charge])


def sufficient_limit(pending: Iterable[Task], account: Account) -> int:
    """A limit under which every pending task of an account could run, one after the other by age.

    It assumes that user code drops nothing meanwhile. A result that only pending tasks hold is free after its last
    reader.
    """
    tasks = [task for task in pending if task.scope.account is account]
    last = {id(value): task for task in tasks for value in (task.value, *task.inputs)}
    freed: Counter[Task] = Counter()
    for value in _solely_held(tasks):
        if value.account.open is account:
            freed[last[id(value)]] += value.nbytes
    used = most = account.used
    for task in tasks:
        used += task.cost
        most = max(most, used)
        used -= task.cost - (0 if task.value is None else task.value.nbytes) + freed[task]
    return most


def _solely_held(tasks: Iterable[Task]) -> list[Value]:
    """The values that nobody holds but these tasks. The value of a claim is none: its claimer holds it."""
    tasks = list(tasks)
    reads = Counter(value for task in tasks for value in task.inputs)
    reads.update({task.value: 0 for task in tasks if task.value is not None and task.lanes})
    return [value for value, count in reads.items() if sole(value, count)]


def _being_made(value: Value) -> bool:
    """Whether the engine has not yet seen the end of its task: then the task's cost includes its bytes."""
    producer = value.task
    return producer is not None and producer.state == LAUNCHED


def sole_group(value: Value, tasks: Sequence[Task]) -> bool:
    """Whether nothing but these tasks holds a value, directly or through views of it.

    May be False for a value that somebody lets go of meanwhile.
    """
    holders = value.holders
    if holders is None:
        return False
    count = -1
    while count != len(holders):  # again if a task let go in between
        count = len(holders)
        views = _views_of(value, tasks)
        reads = Counter([id(read) for task in tasks for read in task.inputs])
        bases = Counter([id(view.base._value) for view in views if view.base is not None])
        if count <= reads[id(value)] + bases[id(value)] and all(
            sole(view, reads[id(view)] + bases[id(view)]) for view in views
        ):
            return True
    return False


def _views_of(value: Value, readers: Sequence[Task]) -> list[Value]:
    """The views between a value and the tasks that read it, each once."""
    todo = [read for task in readers for read in task.inputs]
    todo += [made for task in readers if (made := task.value) is not None and made.base is not None]
    found: dict[int, Value] = {}
    while todo:
        view = todo.pop()
        if view is not value and view.base is not None and view.owner is value and id(view) not in found:
            found[id(view)] = view
            todo.append(view.base._value)
    return list(found.values())


def failure_above(reads: Any) -> Failure | None:
    """The first failure among the producers of a value, or of several."""
    if type(reads) is Value:  # the most frequent case: a loop would take twice as long
        producer: Task | None = reads.task
        return None if producer is None else producer.failure
    for value in reads:
        producer = value.task
        if producer is not None and producer.failure is not None:
            return producer.failure
    return None
