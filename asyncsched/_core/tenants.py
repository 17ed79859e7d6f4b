"""Who shares what is admitted: tenants, by cost, within classes of priority; and the scopes of a tenant, in turn.

A task's cost is its bytes, and a quantum for its slot, so that tasks without bytes share by number. A reserve costs its
bytes in the same way: it is what others may have to wait for. Who has nothing to admit, or nothing that could go, saves
nothing up; what the progress rule admits is out of turn, and free. See `fair_queue` for the rules between tenants.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from .fair_queue import FairQueue, Member
from .model import Queue, Task

# Bytes: about what memory moves while a stream takes up one more task, some tens of microseconds. A guess.
QUANTUM: Final = 256 * 1024


class Tenant(Member):
    """Who shares: all scopes that name the same tenant in a priority class, or one scope that names none."""

    __slots__ = ("__weakref__", "name", "priority", "queues")

    def __init__(self, name: Hashable | None, priority: Priority, weight: float = 1) -> None:
        super().__init__(weight)
        self.name = name
        self.priority = priority
        self.queues: dict[Queue, None] = {}  # of its scopes that have something pending, the next in turn first

    def enter(self, queue: Queue) -> None:
        """A queue of its has something pending, and takes part in the turns."""
        queue.rotating = True
        self.queues[queue] = None
        self.priority.tenants.join(self)

    def leave(self, queue: Queue) -> None:
        """A queue of its has nothing pending any more."""
        queue.rotating = False
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
            head = queue.head()
            if head is None or head.blockers or (full and head.lanes):
                continue
            account = head.scope.account
            earmark = account.earmark
            if earmark is not None and not account.grace and earmark.scope.queue is not queue:
                continue
            if account.fits(head.cost):
                return head
            blocked.append(head)
        return None


class Priority:
    """A priority class: tenants that share."""

    __slots__ = ("__weakref__", "level", "passed", "tenants")

    def __init__(self, level: int) -> None:
        self.level = level
        self.passed = 0  # admissions to other classes since the last to this one, while it waits
        self.tenants = FairQueue[Tenant](quantum=2)  # a slot and a quantum of bytes

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The task whose turn it is, if any can go. Heads before it that lack bytes are added to `blocked`."""
        for tenant in self.tenants:
            task = tenant.next(full, blocked)
            if task is not None:
                self.tenants.charge(tenant, 1 + task.cost / QUANTUM)
                return task
        return None
