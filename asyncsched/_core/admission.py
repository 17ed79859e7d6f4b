"""Who may run next: the ledgers, the queues of the scopes, and the turns they take.

Theory of operation. Each scope has a FIFO of pending tasks, and queues take turns. A head is eligible when all its
producers are launched; it is admitted when a slot is free and its account has the bytes. Nothing overtakes the head of
its own queue. Three rules keep this live:

1. *Ageing.* A head passed over `PATIENCE` times earmarks its account: no other queue gets bytes there until it fits.
2. *Progress.* When an account has nothing in flight and order leaves nothing admissible, the oldest pending task that
   fits goes first, and for `GRACE` admissions more blocked heads and earmarks bar nobody.
3. What still cannot move is *stuck*, and whoever drives the engine finds out why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from .task import PENDING, Task

if TYPE_CHECKING:
    from .failure import Failure
    from .inbox import Inbox

PATIENCE: Final = 16  # a guess, as is GRACE: small enough to notice, large enough not to thrash
GRACE: Final = 16
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

    __slots__ = ("fronts", "live", "rotating", "tasks")

    def __init__(self) -> None:
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


class Admission:
    """The one authority that grants a slot and a task's bytes together."""

    def __init__(self, max_ops: int | None) -> None:
        self.max_ops = max_ops
        self.in_flight = 0
        self.pending = 0
        self.claims = 0  # pending tasks that need no slot
        self._rotation: deque[Queue] = deque()  # queues with pending tasks, the next in turn first
        self._waiting: dict[Account, None] = {}  # accounts with pending tasks

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return self.max_ops is not None and self.in_flight >= self.max_ops

    def push(self, task: Task) -> None:
        """A task joins the queue of its scope."""
        queue, account = task.scope.queue, task.account
        queue.push(task)
        if not queue.rotating:
            queue.rotating = True
            self._rotation.append(queue)
        if not account.pending:
            self._waiting[account] = None
        account.pending += 1
        if not task.blockers and account.fits(task.cost):  # else a scan in vain would be so again, once per submission
            account.changed = True
        self.pending += 1
        self.claims += not task.lanes

    def remove(self, task: Task) -> None:
        """A task leaves its queue, granted or settled; its state says so already."""
        account = task.account
        task.scope.queue.removed()
        account.pending -= 1
        if not account.pending:
            del self._waiting[account]
        if account.earmark is task:
            account.earmark = None
        self.pending -= 1
        self.claims -= not task.lanes

    def next(self) -> Task | None:
        """The task to admit now, if any. The caller grants it."""
        full = self.full
        if not self.pending or (full and not self.claims):
            return None
        rotation = self._rotation
        blocked: list[Task] = []
        for _ in range(len(rotation)):
            queue = rotation[0]
            head = queue.head()
            if head is None:
                queue.rotating = False
                rotation.popleft()
                continue
            rotation.rotate(-1)
            if head.blockers or (full and head.lanes):
                continue
            account = head.account
            earmark = account.earmark
            if earmark is not None and not account.grace and earmark.scope.queue is not queue:
                continue
            if account.fits(head.cost):
                self._age(blocked, account)
                return head
            blocked.append(head)
        return self._overtaker(full)

    def charge(self, task: Task) -> None:
        """Take the slot and the bytes of a task that `next` gave."""
        account = task.account
        account.used += task.cost
        if account.grace:
            account.grace -= 1
        if task.lanes:
            account.in_flight += 1
            self.in_flight += 1

    def ended(self, task: Task) -> None:
        """Give back the slot and the unused bytes of a granted task."""
        account = task.account.open
        task.account.in_flight -= 1
        self.in_flight -= 1
        account.used -= task.refund
        account.changed = True

    def stuck(self) -> list[Task]:
        """For each account in which nothing can move: its first task that only lacks bytes.

        Ask after `next` gave None.
        """
        if self.full:
            return []
        found = (self._oldest(account, False) for account in self._waiting if not account.in_flight)
        return [task for task in found if task is not None]

    def tasks(self) -> list[Task]:
        """Every pending task, by age."""
        return sorted((t for q in self._rotation for t in q if t.state == PENDING), key=_age_of)

    @staticmethod
    def _age(blocked: list[Task], account: Account) -> None:
        for head in blocked:
            if head.account is account and not account.grace:
                head.passed += 1
                if head.passed >= PATIENCE and account.earmark is None:
                    account.earmark = head

    def _overtaker(self, full: bool) -> Task | None:
        """The progress rule."""
        if full:
            return None
        for account in self._waiting:
            if account.changed and (account.grace or not account.in_flight):
                task = self._oldest(account, True)
                if task is not None:
                    account.grace = account.grace or GRACE + 1
                    return task
                account.changed = False
        return None

    def _oldest(self, account: Account, fitting: bool) -> Task | None:
        """The oldest pending task of an account with launched producers (that fits)."""
        found: Task | None = None
        for queue in self._rotation:
            for task in queue:
                if found is not None and task.seq > found.seq and not task.front:
                    break
                if task.account is not account or task.blockers or task.state != PENDING:
                    continue
                if not fitting or account.fits(task.cost):
                    if found is None or task.seq < found.seq:
                        found = task
                    break
        return found


def _age_of(task: Task) -> int:
    return task.seq
