"""Who may run next: the ledgers, and the rules by which pending tasks leave their queues.

Theory of operation. Each scope has a FIFO of pending tasks. A head is eligible when all its producers are launched; it
is admitted when a slot is free and its account has the bytes. Nothing overtakes the head of its own queue. Between
queues, tenants of a class share by cost, and the scopes of a tenant alternate: see `tenants`. Four rules keep it live:

1. *Ageing of heads.* A head passed over `PATIENCE` times earmarks its account: no other queue gets bytes there until it
   fits.
2. *Ageing of classes.* The highest priority class in which something can go is served, but for one that waited while
   others got `PATIENCE` admissions: it goes first, the longest passed over before the others. So with n classes, one
   that always has something that can go gets one admission in `PATIENCE + n - 1` at least.
3. *Progress.* When an account has nothing in flight, no memory is on its way back, and order leaves nothing admissible,
   the oldest pending task that fits goes first, and for `GRACE` admissions more blocked heads and earmarks bar nobody.
   (Never sooner: what goes first may take for good what the head is about to get.)
4. What still cannot move is *stuck*. The engine reports it, and the runtime finds out why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from math import inf
from operator import attrgetter
from typing import Final

from .backlog import SWEEP, Queue, is_pending
from .model import PENDING, Account, Task
from .tenants import Priority, Tenant, Tenants

PATIENCE: Final = 16  # a guess, as is GRACE: small enough to notice, large enough not to thrash
GRACE: Final = 16
_ASKED: Final = 8  # with more queues than this, `lacking` does not look at their heads. A guess


class Admission:
    """Decides which task is admitted next: it is given its slot and charged its bytes in one step.

    Args:
        max_ops: most tasks in flight; None for no bound.
        returning: memory that is on its way back, see `completions`.
    """

    def __init__(self, max_ops: int | None, returning: Sized) -> None:
        self.max_ops = max_ops
        self._returning = returning
        self.free = inf if max_ops is None else max_ops  # slots
        self.in_flight = 0
        self.pending = 0
        self.pending_bytes = 0  # the sum of their costs
        self.claims = 0  # pending tasks that need no slot
        self.ended_tasks = self.ended_bytes = 0  # tasks with a slot that ended since the beginning, and their costs
        self.tenants = Tenants()
        self._queues: dict[Queue, None] = {}  # those with pending tasks
        self._classes: list[Priority] = []  # those whose tenants have queues to serve
        self._waiting: dict[Account, None] = {}  # accounts with pending tasks

    @property
    def idle(self) -> bool:
        """Whether the next task that comes and fits is the one to admit: nothing waits, and a slot is free."""
        return not self.pending and self.free > 0

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return self.free <= 0

    def push(self, task: Task) -> None:
        """A task joins the queue of its scope."""
        # One that cannot be admitted now is no reason for a scan, which would find nothing at each submission.
        scope, cost = task.scope, task.cost
        account = scope.account
        fits = account.limit is None or account.used + cost <= account.limit or account.fits(task)
        queue = scope.queue
        queue.live += 1
        (queue.expedited if task.expedited else queue.tasks).append(task)
        if queue.live == 1 or not account.pending:
            self.begin(queue, account)
        account.pending += 1
        if fits and not task.blockers:
            account.changed = True
        self.pending += 1
        self.pending_bytes += cost
        if not task.lanes:
            self.claims += 1

    def begin(self, queue: Queue, account: Account) -> None:
        """The first that is pending has joined a queue, or is about to be counted among those of an account."""
        if queue.live == 1:
            self._queues[queue] = None
            if len(self._queues) == 2:  # from now on the tenants serve both
                for waiting in self._queues:
                    self._enter(waiting)
            elif len(self._queues) > 2:
                self._enter(queue)
        if not account.pending:
            self._waiting[account] = None

    def remove(self, task: Task) -> None:
        """A task leaves its queue, settled or launched; its state has been set."""
        queue, account = task.scope.queue, task.scope.account
        queue.live -= 1
        tasks = queue.expedited if task.expedited else queue.tasks
        if tasks[0] is task:
            tasks.popleft()
        if (tasks and not is_pending(tasks[0])) or len(tasks) > 2 * queue.live + SWEEP:
            queue.sweep()
        if not queue.live:
            del self._queues[queue]
            if queue.rotating:
                self._leave(queue)
        account.pending -= 1
        if not account.pending:
            del self._waiting[account]
        if account.earmark is task:
            account.earmark = None
        self.pending -= 1
        self.pending_bytes -= task.cost
        self.claims -= not task.lanes

    def charge(self, task: Task) -> None:
        """A task is admitted: it takes its slot and its bytes."""
        account = task.scope.account
        account.used += task.cost
        if account.grace:
            account.grace -= 1
        if task.lanes:
            account.in_flight += 1
            self.in_flight += 1
            self.free -= 1

    def waiting(self) -> Iterable[Account]:
        """The accounts with pending tasks."""
        return self._waiting

    def ran(self, queue: Queue, account: Account, count: int, cost: int) -> None:
        """`count` tasks at the head of a queue were run and have ended: `remove` for all of them at once."""
        queue.live -= count
        queue.sweep()
        if not queue.live:
            del self._queues[queue]
            if queue.rotating:  # a finaliser that ran meanwhile submitted to another queue
                self._leave(queue)
        account.pending -= count
        if not account.pending:
            del self._waiting[account]
        self.pending -= count
        self.pending_bytes -= cost
        self.ended_tasks += count
        self.ended_bytes += cost

    def next(self) -> Task | None:
        """The task to admit now, if any. The caller removes it from its queue, charges and launches it."""
        if not self.pending:
            return None
        full = self.free <= 0
        if full and not self.claims:
            return None
        if len(self._queues) > 1:
            return self._next_in_turn(full) or self._overtaker(full)
        (queue,) = self._queues
        head = queue.head()
        if head is not None and not head.blockers and not (full and head.lanes):
            account = head.scope.account
            limit = account.limit
            if limit is None or account.used + head.cost <= limit or account.fits(head):
                if queue.rotating:  # it shared with others until now, and its class may have been passed over
                    queue.tenant.priority.passed = 0
                return head
        return self._overtaker(full)

    def _next_in_turn(self, full: bool) -> Task | None:
        blocked: list[Task] = []
        for group in sorted(self._classes, key=_rank_of):
            task = group.next(full, blocked)
            if task is not None:
                self._age(blocked, task.scope.account)
                for other in self._classes:
                    other.passed += 1
                group.passed = 0
                return task
        return None

    def hand_over(self, closed: Account, outer: Account) -> None:
        """An account closes: its tasks in flight and pending are counted in `outer` from now on."""
        outer.in_flight += closed.in_flight
        if closed.pending:
            outer.pending += closed.pending
            del self._waiting[closed]
            self._waiting[outer] = None
        closed.in_flight = closed.pending = 0
        closed.earmark = None
        outer.changed = True

    def stuck(self) -> list[Task]:
        """For each account in which nothing can move: its first task that only lacks bytes.

        Ask after `next` gave None.
        """
        if self.free <= 0 or self._returning:
            return []
        found = (self._oldest(account, False) for account in self._waiting if not account.in_flight)
        return [task for task in found if task is not None]

    def lacking(self) -> int:
        """At least how many bytes must come free before `next`, which gave None though a slot is free, gives a task.

        Below 0 if that cannot be told from the heads of the queues of one account: then any end or drop may be enough.
        """
        if len(self._waiting) > 1 or len(self._queues) > _ASKED:
            return -1
        (account,) = self._waiting
        if account.limit is None or account.grace or not account.in_flight:
            return -1
        heads = [head for queue in self._queues if (head := queue.head()) is not None and not head.blockers]
        least = min([head.cost for head in heads], default=0) + account.used - account.limit
        return least if least > 0 else -1

    def tasks(self) -> list[Task]:
        """Every pending task, by age."""
        return sorted((t for q in self._queues for t in q if t.state == PENDING), key=attrgetter("seq"))

    def _enter(self, queue: Queue) -> None:
        """Let the tenant serve a queue, as is done while there are two or more."""
        tenant: Tenant = queue.tenant
        if not queue.rotating:
            tenant.enter(queue)
        group = tenant.priority
        if group not in self._classes:
            group.passed = 0
            self._classes.append(group)

    def _leave(self, queue: Queue) -> None:
        tenant: Tenant = queue.tenant
        tenant.leave(queue)
        if not len(tenant.priority.tenants):
            self._classes.remove(tenant.priority)

    @staticmethod
    def _age(blocked: list[Task], account: Account) -> None:
        for head in blocked:
            if head.scope.account is account and not account.grace:
                head.passed += 1
                if head.passed >= PATIENCE and account.earmark is None:
                    account.earmark = head

    def _overtaker(self, full: bool) -> Task | None:
        """The progress rule: the oldest task that fits, if order leaves nothing admissible."""
        if full:
            return None
        for account in self._waiting:
            if account.changed and (account.grace or not (account.in_flight or self._returning)):
                task = self._oldest(account, True)
                if task is not None:
                    account.grace = account.grace or GRACE + 1
                    return task
                account.changed = False
        return None

    def _oldest(self, account: Account, fitting: bool) -> Task | None:
        """The oldest pending task of an account whose producers are all launched, and, if `fitting`, that fits."""
        found: Task | None = None
        for queue in self._queues:
            for task in queue:
                if found is not None and task.seq > found.seq and not task.expedited:
                    break
                if task.scope.account is not account or task.blockers or task.state != PENDING or _waits(task):
                    continue
                if not fitting or account.fits(task):
                    if found is None or task.seq < found.seq:
                        found = task
                    break
        return found


def _waits(task: Task) -> bool:
    """Whether a producer is not launched yet. (Of a task whose value was bare, `blockers` may not count them all.)"""
    return any(value.task is not None and value.task.state == PENDING for value in task.inputs)


def _rank_of(group: Priority) -> tuple[int, int]:
    return -group.passed if group.passed >= PATIENCE else 0, -group.level
