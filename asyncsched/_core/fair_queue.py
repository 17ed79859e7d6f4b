"""Whose turn it is: deficit round-robin between tenants, and their scopes in turn.

Theory of operation. Tenants of one priority class share by cost: in each round a tenant may spend a quantum times its
weight (Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", SIGCOMM 1995 and IEEE/ACM
Transactions on Networking, June 1996). It goes while it has anything left, may overdraw by part of one task, and pays
that back in the rounds that follow; so a task of any size can go at once when nobody else wants the turn. Instead of
adding to every tenant's deficit at the start of a round, each tenant carries the round, with its fraction, up to which
it has `paid` for what it got: it may go while that is before the end of this round. When nobody who may can, the round
moves on to where the first who can has paid up to, in one step however far that is.

So while two tenants always have something that can go, what they got, over their weights, differs by two quanta and one
task of each at most. Nobody saves up: a tenant that had nothing to admit, or nothing that could go, starts anew in the
round that it finds. What the progress rule admits is out of turn, and free.

A task's cost is its bytes, and a quantum for its slot, so that tasks without bytes share by number. A reserve costs its
bytes in the same way: it is what others may have to wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from .model import Queue, Task

# Bytes: about what memory moves while a stream takes up one more task, some tens of microseconds. A guess.
QUANTUM: Final = 256 * 1024


class Tenant:
    """Who shares: all scopes that name the same tenant in a priority class, or one scope that names none."""

    __slots__ = ("__weakref__", "name", "paid", "priority", "queues", "rotating", "weight")

    def __init__(self, name: Hashable | None, priority: Priority, weight: float = 1) -> None:
        self.name = name
        self.priority = priority
        self.weight = weight
        self.paid = 0.0  # the round up to which it paid for what it got
        self.queues: deque[Queue] = deque()  # those of its scopes that have pending tasks, the next in turn first
        self.rotating = False

    def waiting(self) -> bool:
        """Whether anything of it is pending."""
        queues = self.queues
        while queues and not queues[0].live:
            queues.popleft().rotating = False
        return bool(queues)

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The head of the next of its queues that can go, paid for; None if none can.

        Heads before it that lack bytes are added to `blocked`.
        """
        queues = self.queues
        for _ in range(len(queues)):
            queue = queues[0]
            head = queue.head()
            if head is None:
                queue.rotating = False
                queues.popleft()
                continue
            queues.rotate(-1)
            if head.blockers or (full and head.lanes):
                continue
            account = head.scope.account
            earmark = account.earmark
            if earmark is not None and not account.grace and earmark.scope.queue is not queue:
                continue
            if account.fits(head.cost):
                paid, begun = self.paid, self.priority.round
                self.paid = (paid if paid > begun else begun) + (1 + head.cost / QUANTUM) / self.weight
                return head
            blocked.append(head)
        return None


class Priority:
    """A priority class: tenants that take turns."""

    __slots__ = ("__weakref__", "level", "passed", "round", "tenants")

    def __init__(self, level: int) -> None:
        self.level = level
        self.passed = 0  # admissions to other classes since the last to this one, while it waits
        self.round = 0.0
        self.tenants: deque[Tenant] = deque()  # those with pending tasks, the next in turn first

    def waiting(self) -> bool:
        """Whether anything in it is pending."""
        tenants = self.tenants
        while tenants and not tenants[0].waiting():
            tenants.popleft().rotating = False
        return bool(tenants)

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The task whose turn it is, if any can go. Heads before it that lack bytes are added to `blocked`."""
        tenants = self.tenants
        if len(tenants) == 1:  # alone, it waits for nobody
            tenant = tenants[0]
            if tenant.paid > self.round:
                self.round = tenant.paid
            return tenant.next(full, blocked)
        end, overdrawn = self.round + 1, []
        for _ in range(len(tenants)):
            tenant = tenants[0]
            tenants.rotate(-1)
            if tenant.paid >= end and tenant.waiting():
                overdrawn.append(tenant)
                continue
            task = tenant.next(full, blocked)
            if task is not None:
                return task
            if not tenant.queues:
                tenant.rotating = False
                tenants.pop()
        return self._next_round(overdrawn, full, blocked)

    def _next_round(self, overdrawn: list[Tenant], full: bool, blocked: list[Task]) -> Task | None:
        """Nobody who may still go in this round can: the first who may in a later one."""
        for tenant in sorted(overdrawn, key=_paid_of):
            begun = tenant.paid
            task = tenant.next(full, blocked)
            if task is not None:
                self.round = begun
                self.tenants.remove(tenant)
                self.tenants.append(tenant)
                return task
        return None


def _paid_of(tenant: Tenant) -> float:
    return tenant.paid
