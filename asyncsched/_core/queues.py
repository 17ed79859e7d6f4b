"""The queues in which tasks wait. Only this file knows the order of the tasks of one scope.

A queue has four methods: `push`; `peek`, which changes nothing; `remove`, for the first task or any other; and
iteration, in the order of admission. Work that goes past all queues asks `Ledger.idle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from .model import PENDING, Task

SWEEP: Final = 64  # a queue is swept when this many of its tasks, and more than half, are no longer pending


@dataclass(slots=True, eq=False)
class Queue:
    """The pending tasks of a scope in order of submission.

    Expedited tasks go before the rest once their producers are launched. Until then they block nobody, since their
    producers may be among the rest.

    A cancelled task stays where it is until it comes to the front, or until too many such tasks have piled up.
    """

    tenant: Any  # the `Tenant` whose share it is admitted from
    born: float = inf  # if its scope, or one around it, has a deadline: the older has the lower number
    live: int = 0  # pending tasks
    since: int = 0  # the number of the task that was the first to wait here; all that wait now came with it or later
    in_rotation: bool = False  # whether its tenant serves it: only while other queues have pending tasks, too
    _expedited: deque[Task] = field(default_factory=deque)
    _tasks: deque[Task] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Task]:
        """Its pending tasks, in order."""
        return (task for task in chain(self._expedited, self._tasks) if task.state == PENDING)

    def tasks(self) -> list[Task]:
        """Its pending tasks as a list: finalisers may submit while the caller goes through it."""
        return [task for task in (*self._expedited, *self._tasks) if task.state == PENDING]

    def push(self, task: Task) -> None:
        """Add a task."""
        (self._expedited if task.expedited else self._tasks).append(task)
        self.live += 1

    def peek(self) -> Task | None:
        """The task that goes next; None if there is none."""
        expedited, tasks = self._expedited, self._tasks
        if expedited and not (expedited[0].blockers and tasks):
            return expedited[0]
        return tasks[0] if tasks else None

    def remove(self, task: Task) -> None:
        """Take out a task that is settled or launched, so not pending any more."""
        self.live -= 1
        tasks = self._expedited if task.expedited else self._tasks
        if tasks[0] is task:
            tasks.popleft()
        if (tasks and tasks[0].state != PENDING) or len(tasks) > 2 * self.live + SWEEP:
            self._sweep()

    def _sweep(self) -> None:
        """Drop tasks that are not pending: at the front at once, elsewhere when they pile up."""
        for tasks in (self._expedited, self._tasks):
            while tasks and tasks[0].state != PENDING:
                tasks.popleft()
        if len(self._expedited) + len(self._tasks) > 2 * self.live + SWEEP:
            self._expedited = deque([task for task in self._expedited if task.state == PENDING])
            self._tasks = deque([task for task in self._tasks if task.state == PENDING])
