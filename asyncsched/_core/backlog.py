"""Scopes, and the queues in which their tasks wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from .failure import Failure
from .model import PENDING, Account, Bare, Task, Value, task_of
from .unseen import Unseen

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
        if not tasks:
            return None
        if type(tasks[0]) is Value:
            tasks[0] = task_of(tasks[0])
        head: Task = tasks[0]
        return head

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


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """A group of tasks that is waited for, reported on and cancelled together.

    It has a queue and an account of its own, or shares those of its parent.
    """

    name: str
    queue: Queue
    account: Account
    parent: Scope | None = None
    children: dict[Scope, None] = field(default_factory=dict)
    tasks: dict[Task, None] = field(default_factory=dict)  # unfinished
    bare: int = 0  # bare values, whose tasks are not among these
    stand: Bare | None = None  # what stands for the tasks of the last of them
    unseen: Unseen | None = None  # failures of its own tasks; None before the first
    reserve: int = 0
    # Nothing more will be submitted: closed when its tasks are finished and its failures reported.
    ended: bool = False
    ended_children: deque[Scope] | None = None  # to be closed once they are over
    closed: bool = False

    @property
    def size(self) -> int:
        """How many of its own tasks are unfinished."""
        return len(self.tasks) + self.bare

    def over(self) -> bool:
        """Whether it has ended, and nothing here or below is unfinished or unreported."""
        if not self.ended or self.tasks or self.bare or self.unseen:
            return False
        for child in self.children:  # noqa: SIM110  # a generator for `all` takes longer than the rest of this
            if not child.over():
                return False
        return True

    def tree(self) -> list[Scope]:
        """This scope and all below."""
        found = [self]
        for scope in found:
            found += scope.children
        return found

    def with_tasks(self) -> list[Task]:
        """Every unfinished task here and below, but for those of bare values."""
        return [task for scope in self.tree() for task in scope.tasks]

    def unfinished(self, before: int | None = None) -> list[Task]:
        """Every unfinished task here and below, of those numbered under `before`."""
        for scope in self.tree():
            if scope.bare:
                scope.queue.dress()
        found = self.with_tasks()
        return found if before is None else [task for task in found if task.seq < before]

    def one_unfinished(self, before: int | None = None) -> Task | None:
        """One of them, late among them; None if there is none."""
        for scope in self.tree():
            if scope.bare and (value := scope.queue.last_bare(scope, before)) is not None:
                return task_of(value)
        tasks = self.with_tasks()
        return next((task for task in reversed(tasks) if before is None or task.seq < before), None)

    def record(self, failure: Failure) -> None:
        """Report a root cause where the scope ends, or at a barrier, unless someone sees it first."""
        if failure.seen:  # by a dependent on another stream, whose completion came first
            return
        if self.unseen is None:
            self.unseen = Unseen()
        self.unseen.add(failure)

    def take_failures(self, before: int | None = None) -> tuple[list[Failure], int]:
        """Root causes nobody has seen, here and below, of tasks numbered under `before`.

        And how many more were not kept.
        """
        found, lost = ([], 0) if self.unseen is None else self.unseen.take(before)
        for child in list(self.children):
            below, more = child.take_failures(before)
            found += below
            lost += more
        return found, lost
