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
from typing import TYPE_CHECKING, Final

from .scope import Account, Queue
from .task import PENDING, Task

if TYPE_CHECKING:
    pass

PATIENCE: Final = 16  # a guess, as is GRACE: small enough to notice, large enough not to thrash
GRACE: Final = 16


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
