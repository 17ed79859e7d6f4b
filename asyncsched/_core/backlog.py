"""The queues in which tasks wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from .model import PENDING, Bare, Scope, Task, Value, task_of

SWEEP: Final = 64  # a queue is swept when this many of its tasks, and more than half, are not pending any more


class Queue:
    """The pending tasks of a scope in order of submission, and its bare values. Cancelled ones are swept when they pile
    up.

    Expedited ones go before the rest once their producers are launched. Until then they block nobody, since their
    producers may be among the rest.
    """

    __slots__ = ("expedited", "live", "rotating", "tasks", "tenant", "undressed")

    def __init__(self, tenant: Any) -> None:
        self.tenant = tenant  # the `Tenant` whose share it is admitted from
        self.expedited: deque[Task] = deque()
        self.tasks: deque[Any] = deque()  # and values, each in the place of its task, which may be made by now
        self.undressed = False  # whether there may be values among them
        self.live = 0
        self.rotating = False

    def __iter__(self) -> Iterator[Task]:
        """Its tasks, with those of its bare values."""
        if self.undressed:
            self.dress()
        return chain(self.expedited, self.tasks)

    def dress(self) -> None:
        """Make the tasks of its bare values, and put them in their places."""
        entries: list[Any] = []
        tasks: deque[Any] = deque()
        while entries != list(self.tasks):  # a finaliser that runs meanwhile may submit, and cancel
            entries = list(self.tasks)
            tasks = deque([task_of(each) if type(each) is Value else each for each in entries if is_pending(each)])
        self.tasks, self.undressed = tasks, False

    def head(self) -> Task | None:
        expedited, tasks = self.expedited, self.tasks
        if expedited and not (expedited[0].blockers and tasks):
            return expedited[0]
        return self.first() if tasks else None

    def first(self) -> Task:
        """The first that is not expedited, where there is one; a bare value there is given its task."""
        tasks = self.tasks
        if type(tasks[0]) is Value:
            tasks[0] = task_of(tasks[0])
        first: Task = tasks[0]
        return first

    def last_bare(self, scope: Scope, before: int | None) -> Value | None:
        """The last of a scope's bare values, of those numbered under `before`."""
        for entry in reversed(self.tasks):
            stand = entry.task if type(entry) is Value else None
            if type(stand) is Bare and stand.scope is scope and (before is None or entry.seq < before):
                found: Value = entry
                return found
        return None

    def sweep(self) -> None:
        """Drop tasks that are not pending any more: at the heads at once, elsewhere when they pile up."""
        for tasks in (self.expedited, self.tasks):
            while tasks and not is_pending(tasks[0]):
                tasks.popleft()
        if len(self.expedited) + len(self.tasks) > 2 * self.live + SWEEP:
            self.expedited = deque(task for task in self.expedited if task.state == PENDING)
            self.tasks = deque(entry for entry in self.tasks if is_pending(entry))


def is_pending(entry: Task | Value) -> bool:
    """Whether what stands in a queue is still to be admitted."""
    task = entry.task if isinstance(entry, Value) else entry
    return task is not None and task.state == PENDING
