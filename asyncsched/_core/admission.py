"""Admission: the rules by which pending tasks leave their queues; and placement, the choice of a stream for a task.

Theory of operation. Each scope has a queue of pending tasks. Its head is eligible when all its producers are launched.
It is admitted when a slot is free and its account has the bytes. Nothing overtakes the head of its own queue.
Between queues, the tenants of a class share by cost, and the scopes of a tenant alternate: see `tenants`. Four rules
keep tasks moving:

1. *Ageing of heads.* A head passed over `PATIENCE` times earmarks its account: no other queue gets bytes there until it
   fits.
2. *Ageing of classes.* The highest priority class with a task that can go is served. Exception: a class that waited
   while others got `PATIENCE` admissions goes first; of several, the one that waited longest. So of n classes, one that
   always has such a task gets at least one admission in `PATIENCE + n - 1`.
3. *Progress.* When an account has nothing in flight, no memory is on its way back, and order leaves nothing admissible,
   the oldest pending task that fits goes first. For `GRACE` admissions more, blocked heads and earmarks bar nobody.
   (Not while anything is in flight: its end may give the head its bytes, and the task that goes first may keep them.)
4. *Stuck.* The engine reports tasks that still cannot move, and the runtime finds out why.

New work that finds nothing waiting would be next anyway, and goes past all queues: see `Ledger.idle`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Sized
from operator import attrgetter
from typing import Any, Final, cast

from .failure import Failure
from .ledger import Ledger
from .model import DONE, LAUNCHED, Account, Lane, Scope, Task, Value
from .tenants import Priority, Queue, Ranked, Tenant

PATIENCE: Final = 16  # a guess, as is GRACE: small enough to notice, large enough not to thrash
GRACE: Final = 16


class Admission:
    """Decides which task is admitted next. It keeps the queues; the ledger keeps the counts.

    Args:
        ledger: has the free slots and bytes.
        returning: memory on its way back, see `completions`.
    """

    def __init__(self, ledger: Ledger, returning: Sized) -> None:
        self._ledger = ledger
        self._returning = returning
        self._queues: dict[Queue, None] = {}  # queues with pending tasks
        self._classes: list[Priority] = []  # classes whose tenants have queues to serve

    def push(self, task: Task) -> None:
        """Add a task to the queue of its scope."""
        queue: Queue = task.scope.queue
        if not queue.live:
            queue.since = task.seq
            self._queues[queue] = None
            if len(self._queues) == 2:  # from now on the tenants serve both
                for waiting in self._queues:
                    self._enter(waiting)
            elif len(self._queues) > 2:
                self._enter(queue)
        queue.push(task)
        task.scope.account.queue = queue
        self._ledger.enqueue(task)

    def remove(self, task: Task) -> None:
        """Take a task out of its queue. Its state has been set: settled or launched."""
        queue: Queue = task.scope.queue
        queue.remove(task)
        if not queue.live:
            del self._queues[queue]
            if queue.in_rotation:
                queue.tenant.leave(queue)
                if not len(queue.tenant.priority.tenants):
                    self._classes.remove(queue.tenant.priority)
        self._ledger.dequeue(task)

    def next(self) -> Task | None:
        """The task to admit now, if any. The caller must take it out of its queue, charge it and launch it.

        Its tenant and class are charged here. So call this once for each task.
        """
        ledger = self._ledger
        if not ledger.pending:
            return None
        full = ledger.full
        if full and not ledger.claims:
            return None
        if len(self._queues) > 1:
            able: Account | None = None
            for account in ledger.waiting:
                if not account.starved(full):
                    if able is not None:
                        return self._next_in_turn(full) or self._overtaker(full)
                    able = account
            return (able and self._next_of(able, full)) or self._overtaker(full)
        for queue in self._queues:  # the only one
            head = queue.peek()
            if head is None or head.blockers or (full and head.lanes):
                continue
            account = head.scope.account  # `has_room`, written out: most tasks come here
            if account.limit is None or account.used + head.cost <= account.limit or account.make_fit(head):
                if queue.in_rotation:  # it shared until now, and its class may have been passed over
                    queue.tenant.priority.passed = 0
                return head
        return self._overtaker(full)

    def _next_of(self, account: Account, full: bool) -> Task | None:
        """The next task, if only one account can admit any. Its tasks are mostly all in one queue. Then no other queue
        is looked at, however many there are."""
        queue: Queue = account.queue
        head = queue.peek()
        if head is None or head.scope.account is not account or queue.live < account.pending:
            return self._next_in_turn(full)
        if head.blockers or (full and head.lanes) or not account.make_fit(head):
            return None
        queue.tenant.charge(queue, head)
        self._count_passed(queue.tenant)
        return head

    def _next_in_turn(self, full: bool) -> Task | None:
        blocked: list[Task] = []
        for group in sorted(self._classes, key=rank_of):
            for tenant in group.tenants:
                task: Task | None = tenant.next(full, blocked)
                if task is not None:
                    self._age(blocked, task.scope.account)
                    self._count_passed(tenant)
                    return task
        return None

    def _count_passed(self, tenant: Tenant) -> None:
        """Count for the classes of other tenants that they were passed over."""
        for group in self._classes:
            group.passed += 1
        tenant.priority.passed = 0

    def stuck(self) -> list[Task]:
        """For each account in which nothing can move: its first task that lacks only bytes.

        Call it after `next` returned None.
        """
        if self._ledger.full or self._returning:
            return []
        still = {account for account in self._ledger.waiting if not account.in_flight}
        found, latest = dict[Account, Task](), 0
        for queue in self._queues:  # in the order in which their first tasks began to wait
            if len(found) == len(still) and queue.since > latest:
                break
            task = queue.peek()
            if task is not None and task.blockers:
                task = next((one for one in queue if not one.blockers), None)
            account = None if task is None else task.scope.account  # the tasks of a queue have one account
            if task is not None and account in still and (account not in found or task.seq < found[account].seq):
                found[account], latest = task, max(latest, task.seq)
        return list(found.values())

    def bytes_with(self, scope: Scope, cost: int) -> float:
        """How many bytes of its account are granted up to and with a task of this cost that joins the queue now.

        Assumes that no waiting task leaves. Counts all tasks of higher classes, all of its tenant, and for each other
        tenant of its class as much as for its own, by weight.
        """
        account, mine = scope.account, scope.queue.tenant
        wanted: Counter[Tenant] = Counter()
        for queue in self._queues:
            wanted[queue.tenant] += sum([one.cost for one in queue.tasks() if one.scope.account is account])
        before = float(wanted.pop(mine, 0)) + cost
        share = before / mine.weight
        for tenant, nbytes in wanted.items():
            if tenant.priority.level > mine.priority.level:
                before += nbytes
            elif tenant.priority is mine.priority:
                before += min(nbytes, share * tenant.weight)
        return before

    def tasks(self) -> list[Task]:
        """All pending tasks, by age. Changes nothing; callable on any thread."""
        return sorted([task for queue in list(self._queues) for task in queue.tasks()], key=attrgetter("seq"))

    def _enter(self, queue: Queue) -> None:
        """Let the tenant serve a queue, as tenants do while two or more queues wait."""
        tenant: Tenant = queue.tenant
        if not queue.in_rotation:
            tenant.enter(queue)
        group = tenant.priority
        if group not in self._classes:
            group.passed = 0
            self._classes.append(group)

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
        for account in self._ledger.waiting:
            if account.starved(False):
                account.changed = False
            elif account.changed and (account.grace or not (account.in_flight or self._returning)):
                task = self._oldest(account)
                if task is not None:
                    account.grace = account.grace or GRACE + 1
                    return task
                account.changed = False
        return None

    def _oldest(self, account: Account) -> Task | None:
        """The oldest pending task of an account that fits, and whose producers are all launched."""
        found: Task | None = None
        for queue in self._queues:  # as in `stuck`
            if found is not None and queue.since > found.seq:
                break
            for task in queue:
                if found is not None and task.seq > found.seq and not task.expedited:
                    break
                if task.scope.account is account and not task.blockers and account.make_fit(task):
                    if found is None or task.seq < found.seq:
                        found = task
                    break
        return found


def link_dependencies(task: Task) -> Failure | None:
    """Make a task wait for its inputs, and for the readers of buffers it writes over. Returns an input's failure."""
    failed, reads = None, task.reads
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is None:
            continue
        if producer.state < DONE:
            failed = producer.failure or failed
            producer.add_dependent(task)
        else:
            failed = value.failure or failed
    for reader in task.after or ():
        if reader.state < DONE:
            reader.add_dependent(task)
    return failed


def rank_of(group: Ranked) -> tuple[int, float]:
    """A key for sorting: the class to be served next comes first."""
    return -group.passed if group.passed >= PATIENCE else 0, -group.level


_load = attrgetter("load")


def place(task: Task, clock: Callable[[], float]) -> Sequence[tuple[Any, int]]:
    """Give a task its lane. Returns the points in other streams that it must wait for: pairs of a stream and the number
    of a task there."""
    lane, reads = task.lanes[0], task.reads
    before: list[Any] = []  # the tasks it begins after, as far as they are unfinished; each has its lane
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is not None and producer.state == LAUNCHED:
            before.append(producer)
    for reader in task.after or ():
        if reader.state == LAUNCHED:
            before.append(reader)
    if lane.hop:
        lane = _soonest(task, before, clock())
    elif len(task.lanes) > 1:
        lane = _choose(task, before)
    task.lane = lane
    lane.load += 1
    lane.tail = task
    points = []  # by loops, since a comprehension is one more call
    for one in before:
        if one.lane is not lane:
            points.append((one.lane.stream, one.number))
    return points


def _choose(task: Task, before: Sequence[Any]) -> Lane:
    """The lane of a task that it must wait for, if that task is the last there: order is free within a lane.

    Else the least loaded lane, or the choice of a device on which the place of data matters (`Lane.place`).
    """
    lanes = task.lanes
    for one in before:
        if one.lane.tail is one and one.lane in lanes:
            return cast(Lane, one.lane)
    if lanes[0].place is not None:
        return lanes[0].place(task)
    return min(lanes, key=_load)


def _soonest(task: Task, before: Sequence[Any], now: float) -> Lane:
    """The lane on which a task begins first, by estimate. For lanes with a hop that takes longer than many tasks.

    A hop is the time to wake a lane that is idle or must wait for another. A task shorter than a hop stays where its
    producers are, or behind other short tasks.

    Each lane has a time of its own: the estimated seconds of work that it was given, with its waits for other lanes.
    When it reports the end of a task, its time becomes the estimate for that end, so wrong guesses do not add up. If a
    lane has reported no end for longer than estimated, as with a user's function that takes a second, it is expected to
    take as long again. So short tasks do not pile up behind it while another lane is free.

    A task that reads the result of a late lane: on a card it stays on that lane, since it would wait as long on any. On
    the host it may go to another, which may have a processor when the late lane has none.
    """
    best = task.lanes[0]
    seconds = task.plan.on_card_seconds if best.on_card else task.plan.estimate
    if not any(map(_load, task.lanes)):  # all are idle, so any will do
        task.due = best.booked_until = best.done_until + seconds
        best.done_at = now
        return best
    waits = []
    for one in before:
        waits.append((one.lane, _ends(one.due, one.lane, now)))
    first, begins = -1.0, 0.0
    for lane in task.lanes:
        begin = lane.booked_until - lane.done_until
        if lane.load and now - lane.done_at > begin:
            begin = now - lane.done_at
        for other, due in waits:
            if other is not lane and due + lane.hop > begin:
                begin = due + lane.hop
        # A lane that is awake takes its next task without a wake-up, so no hop is added to its time.
        start = begin if lane.load or begin > lane.hop else lane.hop
        if start < first or first < 0:
            best, first, begins = lane, start, begin
    task.due = best.booked_until = best.done_until + begins + seconds
    if not best.load:
        best.done_at = now
    return best


def _ends(due: float, lane: Lane, now: float) -> float:
    """How long after the last reported end on its lane a task ends, by estimate. (0 on a lane without a hop.)"""
    end = due - lane.done_until
    return max(end, now - lane.done_at) if lane.on_card and lane.hop else end
