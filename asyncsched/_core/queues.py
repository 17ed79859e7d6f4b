"""The queues in which tasks wait: the one place that knows in which order those of a scope go.

A queue has four methods: `push`, `peek`, which changes nothing, `remove`, for the first or any other, and iteration, in
the order of admission. What goes past all queues asks `Ledger.idle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from .model import PENDING, Task

SWEEP: Final = 64  # a queue is swept when this many of its tasks, and more than half, are not pending any more


@dataclass(slots=True, eq=False)
class Queue:
    """The pending tasks of a scope in order of submission.

    Expedited ones go before the rest once their producers are launched. Until then they block nobody, since their
    producers may be among the rest.

    A cancelled task stays where it is until it comes to the front, or too many of its kind have piled up.
    """

    tenant: Any  # the `Tenant` whose share it is admitted from
    live: int = 0  # tasks that are pending
    since: int = 0  # the number of the task that was the first to wait here: those that do now came with it, or later
    in_rotation: bool = False  # whether its tenant serves it, since other queues have pending tasks, too
    _expedited: deque[Task] = field(default_factory=deque)
    _tasks: deque[Task] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Task]:
        """Its pending tasks, in order."""
        return (task for task in chain(self._expedited, self._tasks) if task.state == PENDING)

    def tasks(self) -> list[Task]:
        """The same at one moment: finalisers may submit while the list is gone through."""
        return [task for task in (*self._expedited, *self._tasks) if task.state == PENDING]

    def push(self, task: Task) -> None:
        """A task joins."""
        (self._expedited if task.expedited else self._tasks).append(task)
        self.live += 1

    def peek(self) -> Task | None:
        """The task whose turn it is."""
        expedited, tasks = self._expedited, self._tasks
        if expedited and not (expedited[0].blockers and tasks):
            return expedited[0]
        return tasks[0] if tasks else None

    def remove(self, task: Task) -> None:
        """A task leaves, settled or launched: it is not pending any more."""
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
