"""Scopes, the queues their tasks wait in, and the accounts their bytes are charged to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from .task import PENDING, Task

if TYPE_CHECKING:
    from .failure import Failure
    from .inbox import Inbox
    from .turns import Tenant

KEPT_FAILURES: Final = 100
_COMPACT: Final = 64


class Account:
    """A limit in bytes and what is charged against it: the scheduler's, or a scope's reserve."""

    __slots__ = (
        "changed",
        "closed",
        "earmark",
        "grace",
        "host",
        "in_flight",
        "inbox",
        "limit",
        "parent",
        "pending",
        "used",
    )

    def __init__(self, limit: int | None, inbox: Inbox, host: Any = None, parent: Account | None = None) -> None:
        self.limit = limit
        self.inbox = inbox
        self.host = host  # whoever drives the engine; opaque here
        self.parent = parent
        self.used = 0
        self.pending = 0  # tasks waiting to be charged here
        self.in_flight = 0  # tasks charged here and not ended
        self.earmark: Task | None = None  # the aged head for which freed bytes are kept
        self.grace = 0  # admissions left during which nothing bars anyone
        self.changed = False  # something happened since a scan found nothing that fits
        self.closed = False  # its bytes are its parent's now

    def fits(self, cost: int) -> bool:
        """Whether `cost` more bytes stay within the limit. What costs nothing always fits."""
        return not cost or self.limit is None or self.used + cost <= self.limit

    def covers(self, account: Account | None) -> bool:
        """Whether what is charged to `account` is held within this one."""
        while account is not None and account is not self:
            account = account.parent
        return account is not None

    @property
    def open(self) -> Account:
        """This account, or the nearest ancestor that is not closed."""
        account = self
        while account.closed:
            assert account.parent is not None
            account = account.parent
        return account


class Queue:
    """The pending tasks of a scope in order of submission. Cancelled ones are swept when they pile up.

    Those at the front go before the rest once their producers are launched. Until then they bar nobody: what they wait
    for may be in the rest.
    """

    __slots__ = ("fronts", "live", "rotating", "tasks", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant  # whose turns it takes
        self.fronts: deque[Task] = deque()
        self.tasks: deque[Task] = deque()
        self.live = 0
        self.rotating = False

    def __iter__(self) -> Iterator[Task]:
        return chain(self.fronts, self.tasks)

    def push(self, task: Task) -> None:
        self.live += 1
        (self.fronts if task.front else self.tasks).append(task)

    def head(self) -> Task | None:
        fronts, tasks = self.fronts, self.tasks
        if fronts and not (fronts[0].blockers and tasks):
            return fronts[0]
        return tasks[0] if tasks else None

    def removed(self) -> None:
        """One of the tasks is no longer pending."""
        self.live -= 1
        for tasks in (self.fronts, self.tasks):
            while tasks and tasks[0].state != PENDING:
                tasks.popleft()
        if len(self.fronts) + len(self.tasks) > 2 * self.live + _COMPACT:
            self.fronts = deque(task for task in self.fronts if task.state == PENDING)
            self.tasks = deque(task for task in self.tasks if task.state == PENDING)


class Scope:
    """A group of tasks that is waited for, reported on and cancelled together.

    It has a queue and an account of its own, or shares those of its parent.
    """

    __slots__ = (
        "account",
        "children",
        "closed",
        "ended",
        "failures",
        "lost",
        "name",
        "parent",
        "queue",
        "reserve",
        "tasks",
    )

    def __init__(self, name: str, queue: Queue, account: Account, parent: Scope | None = None) -> None:
        self.name = name
        self.queue = queue
        self.account = account
        self.parent = parent
        self.children: dict[Scope, None] = {}
        self.tasks: dict[Task, None] = {}  # unfinished
        self.failures: dict[Failure, None] = {}  # root causes that nobody has seen yet
        self.lost = 0  # failures beyond KEPT_FAILURES
        self.reserve = 0
        # Nothing more will be submitted: closed when its tasks are finished and its failures reported.
        self.ended = False
        self.closed = False

    def unfinished(self) -> list[Task]:
        """Every unfinished task here and below."""
        found, todo = list(self.tasks), list(self.children)
        while todo:
            scope = todo.pop()
            found += scope.tasks
            todo += scope.children
        return found

    def record(self, failure: Failure) -> None:
        """Remember a root cause until someone sees it. No longer: then it holds the frames of whoever awaited it."""
        if failure.seen:  # by a dependent on another stream, whose completion came first
            return
        if len(self.failures) >= KEPT_FAILURES:
            self.lost += 1
        else:
            self.failures[failure] = None
            failure.keeper = self.failures

    def take_failures(self, before: int | None = None) -> tuple[list[Failure], int]:
        """Root causes nobody has seen, here and below, of tasks numbered under `before`.

        And how many more were not kept.
        """
        mine = [f for f in list(self.failures) if before is None or f.seq < before]
        lost, self.lost = self.lost, 0
        for child in list(self.children):
            below, more = child.take_failures(before)
            mine += below
            lost += more
        for failure in mine:
            failure.see()
        return mine, lost
