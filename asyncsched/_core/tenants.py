"""Tenants: they share admissions by cost within a priority class; the scopes of one tenant take turns.

Theory of operation. There are three levels. Each asks the one below for a task that can go now, and takes the first:

- `Admission` asks the classes (`Priority`), the highest first; its head says how low classes are kept from starving.
- A class asks its tenants in the order of a `FairQueue`, and charges the tenant that had a task.
- A tenant asks the queues of its scopes round robin: the queue just asked goes last, whether its head can go or not.
  Scopes with a deadline take turns with the others, too. But in such a turn the oldest of them goes, whose turn it ever
  is: if all got equal shares, all would be late together.

Only queues with pending tasks take part. While just one queue has any, as in most programs, `Admission` takes its head,
and neither rotates nor charges.

A task is charged its bytes, and a `QUANTUM` for its slot, so that tasks without bytes share by number. A reserve is
charged its bytes in the same way: others may have to wait for them. A tenant with nothing to admit, or nothing that can
go, saves nothing up. Tasks admitted by the progress rule are not charged: nothing else could go.

Alternatives, none of them measured. Round robin over all scopes, without tenants: more scopes would get more. A fair
queue among the scopes of a tenant, too: it would be fairer to a scope of small tasks among scopes of large ones, but
most scopes live for one request, and are over before their shares could even out. Charging seconds instead of bytes:
nobody knows them before the task has run, and estimates by class of operation would be wrong for callables.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from .fair_queue import FairQueue, Member
from .model import Task
from .queues import Queue

# In bytes: about as much as memory moves while a stream takes up one task, some tens of microseconds. A guess.
QUANTUM: Final = 256 * 1024
_REMEMBERED: Final = 1024  # tenants without a scope whose fair share is remembered; a guess


class Share(NamedTuple):
    """How a new scope shares admissions. A field that is None is inherited from the scope around it."""

    tenant: Hashable | None = None  # whose work it is; if nobody around names one, the scope is a tenant of its own
    weight: float | None = None  # of the tenant, from now on
    priority: float | None = None  # the class: the higher goes first
    deadline: bool = False  # it has one, so it goes before younger ones


_born = attrgetter("born")


@dataclass(slots=True, eq=False, weakref_slot=True, kw_only=True)
class Tenant(Member):
    """All scopes that name the same tenant in a priority class, or one scope that names none."""

    name: Hashable | None
    priority: Priority
    queues: dict[Queue, None] = field(default_factory=dict)  # queues with pending tasks; the first is asked next
    by_age: list[Queue] = field(default_factory=list)  # those of scopes with a deadline, the oldest first

    def enter(self, queue: Queue) -> None:
        """Add one of its queues that has a pending task now."""
        queue.in_rotation = True
        self.queues[queue] = None
        if queue.born < inf:
            insort(self.by_age, queue, key=_born)
        self.priority.tenants.join(self)

    def leave(self, queue: Queue) -> None:
        """Remove one of its queues that has no pending task any more."""
        queue.in_rotation = False
        del self.queues[queue]
        if queue.born < inf:
            self._take_out(queue)
        if not self.queues:
            self.priority.tenants.leave(self)

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The head of the next of its queues that can go; None if none can.

        Heads before it that lack bytes are added to `blocked`.
        """
        queues, by_age = self.queues, iter(self.by_age)
        for _ in range(len(queues)):
            queue = next(iter(queues))
            del queues[queue]
            queues[queue] = None
            if queue.born < inf:
                queue = next(by_age)
            head = queue.peek()
            if head is None or head.blockers or (full and head.lanes):
                continue
            account = head.scope.account
            earmark = account.earmark
            if earmark is not None and not account.grace and earmark.scope.queue is not queue:
                continue
            if account.make_fit(head):
                if queue.born < inf:
                    self._take_out(queue)
                    insort(self.by_age, queue, key=_born)  # behind other scopes of the same request
                return head
            blocked.append(head)
        return None

    def _take_out(self, queue: Queue) -> None:
        by_age = self.by_age
        del by_age[by_age.index(queue, bisect_left(by_age, queue.born, key=_born))]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Priority:
    """A priority class: tenants that share."""

    level: float
    passed: int = 0  # admissions to other classes since the last to this one
    # In units of `QUANTUM`: one for the bytes, one for the slot.
    tenants: FairQueue[Tenant] = field(default_factory=lambda: FairQueue(quantum=2))

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The first task that can go, for which its tenant is charged; None if none can.

        Heads before it that lack bytes are added to `blocked`.
        """
        for tenant in self.tenants:
            task = tenant.next(full, blocked)
            if task is not None:
                self.tenants.charge(tenant, 1 + task.cost / QUANTUM)
                return task
        return None


class Tenants:
    """The known tenants and priority classes, by name and level. A new scope joins one of them."""

    def __init__(self) -> None:
        self.ordinary: Priority = Priority(0)
        self._classes: WeakValueDictionary[float, Priority] = WeakValueDictionary({0.0: self.ordinary})
        self._named: WeakValueDictionary[tuple[Hashable, float], Tenant] = WeakValueDictionary()
        self._recent: deque[Tenant] = deque(maxlen=_REMEMBERED)  # strong references, which keep these tenants alive

    def join(self, parent: Tenant, share: Share) -> Tenant:
        """The tenant of a new scope inside a scope of the tenant `parent`: a known one or a new one."""
        name, weight, priority, _ = share
        name = parent.name if name is None else name
        level = parent.priority.level if priority is None else priority
        group = self._classes.get(level)
        if group is None:
            group = self._classes[level] = Priority(level)
        tenant = None if name is None else self._named.get((name, level))
        if tenant is None:
            known = 1.0 if name is None or name != parent.name else parent.weight
            tenant = Tenant(known, name=name, priority=group)
        if name is not None:
            self._named[name, level] = tenant
            self._recent.append(tenant)
        if weight is not None:
            tenant.weight = weight
        return tenant
