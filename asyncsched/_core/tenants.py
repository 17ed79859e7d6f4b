"""Who shares what is admitted: tenants, by cost, within classes of priority; and the scopes of a tenant, one by one.

Theory of operation. Three levels, of which each asks the one below for a task that can go now, and takes the first:

- `Admission` asks the classes (`Priority`), the highest first; see there how a low one is kept from starving.
- A class asks its tenants in the order of a `FairQueue`, and charges the one that had a task.
- A tenant asks the queues of its scopes round robin: the one asked is put last, whether its head can go or not.

Only queues with pending tasks are here. While just one has any, as in most programs, `Admission` takes its head, and
neither rotates nor charges.

A task is charged its bytes, and a `QUANTUM` for its slot, so that tasks without bytes share by number. A reserve is
charged its bytes in the same way: others may have to wait for them. A tenant that has nothing to admit, or nothing that
could go, saves nothing up. What the progress rule admits is not charged: it goes since nothing else can.

Alternatives, none of them measured. Round robin over all scopes, without tenants: who opens more scopes gets more. The
fair queue among the scopes of a tenant, too: it would be fairer to a scope of small tasks among scopes of large ones,
but a scope mostly lives for one request, and is over before its share could even out. Charging seconds instead of
bytes: nobody knows them before the task has run, and an estimate by class of operation would be wrong for callables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from .fair_queue import FairQueue, Member
from .model import Task
from .queues import Queue

# Bytes: about what memory moves while a stream takes up one more task, some tens of microseconds. A guess.
QUANTUM: Final = 256 * 1024
_REMEMBERED: Final = 1024  # tenants whose account of what they got is kept while they have no scope. A guess


class Share(NamedTuple):
    """How a new scope shares what is admitted. What is None is as in the scope around it."""

    tenant: Hashable | None = None  # whose work it is; who names none, in a scope that names none, is one of its own
    weight: float | None = None  # of the tenant, from now on
    priority: float | None = None  # the class: the higher goes first


@dataclass(slots=True, eq=False, weakref_slot=True, kw_only=True)
class Tenant(Member):
    """Who shares: all scopes that name the same tenant in a priority class, or one scope that names none."""

    name: Hashable | None
    priority: Priority
    queues: dict[Queue, None] = field(default_factory=dict)  # that have something pending, the next to be asked first

    def enter(self, queue: Queue) -> None:
        """A queue of its has something pending, and is asked from now on."""
        queue.in_rotation = True
        self.queues[queue] = None
        self.priority.tenants.join(self)

    def leave(self, queue: Queue) -> None:
        """A queue of its has nothing pending any more."""
        queue.in_rotation = False
        del self.queues[queue]
        if not self.queues:
            self.priority.tenants.leave(self)

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The head of the next of its queues that can go; None if none can.

        Heads before it that lack bytes are added to `blocked`.
        """
        queues = self.queues
        for _ in range(len(queues)):
            queue = next(iter(queues))
            del queues[queue]
            queues[queue] = None
            head = queue.peek()
            if head is None or head.blockers or (full and head.lanes):
                continue
            account = head.scope.account
            earmark = account.earmark
            if earmark is not None and not account.grace and earmark.scope.queue is not queue:
                continue
            if account.fits(head):
                return head
            blocked.append(head)
        return None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Priority:
    """A priority class: tenants that share."""

    level: float
    passed: int = 0  # admissions to other classes since the last to this one, while it waits
    # A quantum of bytes, and a slot.
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
    """The tenants and priority classes that are known, by name and level: a new scope joins one of them."""

    def __init__(self) -> None:
        self.ordinary: Priority = Priority(0)
        self._classes: WeakValueDictionary[float, Priority] = WeakValueDictionary({0.0: self.ordinary})
        self._named: WeakValueDictionary[tuple[Hashable, float], Tenant] = WeakValueDictionary()
        self._recent: deque[Tenant] = deque(maxlen=_REMEMBERED)  # strong references, which keep these tenants alive

    def join(self, parent: Tenant, share: Share) -> Tenant:
        """The tenant of a new scope within a scope of `parent`'s: one that is known, or a new one."""
        name, weight, priority = share
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
