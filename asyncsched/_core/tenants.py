"""Tenants share admissions by cost within a priority class. The scopes of one tenant take turns.

Theory of operation. There are three levels. Each asks the one below for a task that can go now, and takes the first:

- `Admission` asks the classes (`Priority`), the highest first; its head says how low classes are kept from starving.
- A class asks its tenants in the order of a `FairQueue`, and charges the tenant that had a task.
- A tenant asks the queues of its scopes round robin: the queue just asked goes last, whether its head can go or not.
  Scopes with a deadline take turns with the others, too. But when it is the turn of any of them, the oldest goes: if
  all got equal shares, all would be late together.

Only queues with pending tasks take part. While just one queue has any, as in most programs, `Admission` takes its head,
and neither rotates nor charges.

A task is charged its bytes, and a `QUANTUM` for its slot, so that tasks without bytes share by number. A reserve is
charged its bytes in the same way: others may have to wait for them. A tenant with nothing to admit, or nothing that can
go, saves nothing up. Tasks admitted by the progress rule are not charged: nothing else could go.

Alternatives, none of them measured. Round robin over all scopes, without tenants: more scopes would get more. A fair
queue among the scopes of a tenant, too: it would be fairer to a scope of small tasks among scopes of large ones, but
most scopes live for one request, and are over before their shares could even out. Charging seconds instead of bytes:
nobody knows them before the task has run, and estimates by class of operation would be wrong for callables.

Fair sharing: which of the waiting members goes next, by cost over weight.

Theory of operation. Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with a virtual clock. Each member has
a mark, `paid`: the sum of its costs over its weight. The member with the lowest mark goes next. Neither the next item
nor its cost need be known before it goes: a member that cannot go now is passed over, and is asked first the next time.
Three rules:

1. *Nobody saves up.* A member that was passed over or away begins where the clock is.
2. *Nobody leaves a debt behind.* A member keeps its mark when it leaves. If it comes back before the clock has got
   there, it goes on from its mark. An owner that drops a member forgives the debt, unless the member is next in line.
   (The named tenants of the last `_REMEMBERED` scopes are kept.)
3. *Newcomers without end starve nobody.* If each newcomer started at the clock, it would go before all members that
   have paid for something, and the clock would stand still. So a newcomer's mark is ahead of the clock, by half of the
   item that goes at present. This entry mark moves on once the clock has reached it. (If it were ahead by the whole
   item, a member whose items come one after the other could go twice before a newcomer.)

So while two members always have something that can go, their costs over their weights differ by one item of each and
half of the largest item of any member, or half a quantum, if that is less.

Tried before: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). It finds the next member in constant time, but
needs a quantum that suits the costs, rounds, and a way to skip rounds in which nobody may go. It is fair within two
quanta more, and endless newcomers starved members in debt. A heap instead of the sorted list: to find a member behind
many that cannot go, all of these leave the heap and return; moving a thousand pointers is cheap.

The queues in which tasks wait: the order of the tasks of one scope. A queue is changed by `push`, and by `remove` of
the first task or any other. `peek` shows the first, and iteration all in the order of admission. Work that goes past
all queues asks `Ledger.idle`.

The tree of scopes: how they are opened, ended and closed, and how a closing scope hands over its contents.
"""

from __future__ import annotations

from bisect import insort, insort_left
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from .ledger import Ledger
from .model import PENDING, Scope, Task

SWEEP: Final = 64  # a queue is swept when this many of its tasks, and more than half, are no longer pending


@dataclass(slots=True, eq=False)
class Queue:
    """The pending tasks of a scope in order of submission.

    Expedited tasks go before the rest once their producers are launched. Until then they block nobody, since their
    producers may be among the rest.

    A cancelled task stays where it is until it comes to the front, or until too many such tasks have piled up.
    """

    tenant: Any  # the `Tenant` whose share it is admitted from
    born: float = inf  # if its scope, or one around it, has a deadline: the older has the lower number
    live: int = 0  # pending tasks
    since: int = 0  # the number of the task that joined when none waited here; those that wait now have it or a higher
    in_rotation: bool = False  # whether its tenant serves it: only while other queues have pending tasks, too
    _expedited: deque[Task] = field(default_factory=deque)
    _tasks: deque[Task] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Task]:
        """Its pending tasks, in order."""
        return (task for task in chain(self._expedited, self._tasks) if task.state == PENDING)

    def tasks(self) -> list[Task]:
        """Its pending tasks as a list: finalisers may submit while the caller goes through it."""
        return [task for task in (*self._expedited, *self._tasks) if task.state == PENDING]

    def push(self, task: Task) -> None:
        """Add a task."""
        (self._expedited if task.expedited else self._tasks).append(task)
        self.live += 1

    def peek(self) -> Task | None:
        """The task that goes next; None if there is none."""
        expedited, tasks = self._expedited, self._tasks
        if expedited and not (expedited[0].blockers and tasks):
            return expedited[0]
        return tasks[0] if tasks else None

    def remove(self, task: Task) -> None:
        """Take out a task that is settled or launched, so not pending any more."""
        self.live -= 1
        tasks = self._expedited if task.expedited else self._tasks
        if tasks[0] is task:
            tasks.popleft()
        if (tasks and tasks[0].state != PENDING) or len(tasks) > 2 * self.live + SWEEP:
            self._sweep()

    def _sweep(self) -> None:
        """Drop tasks that are not pending: at the front at once, elsewhere when they pile up."""
        for tasks in (self._expedited, self._tasks):
            while tasks and tasks[0].state != PENDING:
                tasks.popleft()
        if len(self._expedited) + len(self._tasks) > 2 * self.live + SWEEP:
            self._expedited = deque([task for task in self._expedited if task.state == PENDING])
            self._tasks = deque([task for task in self._tasks if task.state == PENDING])


@dataclass(slots=True, eq=False)
class Member:
    """One of those that share. `weight` may change at any time, and holds for the items that go from then on."""

    weight: float = 1.0
    paid: float = -inf  # its mark: the sum of its costs over its weight
    joined: bool = False


M = TypeVar("M", bound=Member)


@dataclass(slots=True, eq=False)
class FairQueue(Generic[M]):
    """The members that have something waiting, in the order in which they may go.

    Its owner walks it, finds the first member that can go, takes an item from it, and charges it:

    >>> shares, names = FairQueue[Member](), {Member(weight=2): "heavy", Member(): "light"}
    >>> for member in names:
    ...     shares.join(member)
    >>> served = []
    >>> for _ in range(6):
    ...     member = next(iter(shares))
    ...     shares.charge(member, 1)
    ...     served.append(names[member])
    >>> served
    ['heavy', 'light', 'heavy', 'light', 'heavy', 'heavy']

    Args:
        quantum: the largest cost, over a weight of 1, that counts in full for newcomers: they wait for half of it at
            most, however large the others' items are.
    """

    quantum: float = inf
    _clock: float = 0.0  # where the last member that went began
    _entry: float = 0.0  # where a newcomer starts
    # Sorted by `paid`, the next member last: a member may leave while a walk visits it.
    _line: list[M] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[M]:
        """Yield the members in order. The one just yielded may leave; after any other change, begin anew."""
        return reversed(self._line)

    def join(self, member: M) -> None:
        """Add a member that has something waiting."""
        if member.joined:
            return
        member.joined = True
        if member.paid < self._clock:
            member.paid = self._entry
        insort_left(self._line, member, key=_order)

    def leave(self, member: M) -> None:
        """Remove a member that has nothing waiting any more."""
        member.joined = False
        self._remove(member)

    def charge(self, member: M, cost: float) -> None:
        """Charge a member that goes with an item of this cost."""
        share, start = cost / member.weight, member.paid
        if start < self._clock:
            start = self._clock
        self._clock = start
        if start >= self._entry:
            self._entry = start + (share if share < self.quantum else self.quantum) / 2
        self._remove(member)
        member.paid = start + share
        insort_left(self._line, member, key=_order)

    def _remove(self, member: M) -> None:
        line = self._line
        if line[-1] is member:  # as mostly
            line.pop()
        else:
            line.remove(member)


def _order(member: Member) -> float:
    return -member.paid


# In bytes: about as much as memory moves while a stream takes up one task, some tens of microseconds. A guess.
QUANTUM: Final = 256 * 1024
_REMEMBERED: Final = 1024  # the last scopes with a named tenant, whose tenants are remembered with their marks; a guess


class Share(NamedTuple):
    """How a new scope shares admissions. None: as the scope around it."""

    tenant: Hashable | None = None  # whose work it is; if nobody around names one, the scope is a tenant of its own
    weight: float | None = None  # of the tenant, from now on
    priority: float | None = None  # the class: the higher goes first
    deadline: bool = False  # whether it has one: of the tenant's scopes with a deadline the oldest goes first


_AS_AROUND: Final = Share()
# Added to a growing scope's priority: it goes before newcomers of its class and after higher classes
_GROWING: Final = 0.5

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
            self.by_age.remove(queue)
        if not self.queues:
            self.priority.tenants.leave(self)

    def next(self, full: bool, blocked: list[Task]) -> Task | None:
        """The head of the next of its queues that can go, for which it is charged; None if none can.

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
                self.charge(queue, head)
                return head
            blocked.append(head)
        return None

    def charge(self, queue: Queue, head: Task) -> None:
        """Charge the tenant for the head of a queue, which goes. The queue is asked last from now on."""
        del self.queues[queue]
        self.queues[queue] = None
        if queue.born < inf:
            self.by_age.remove(queue)
            insort(self.by_age, queue, key=_born)  # behind other scopes of the same request
        self.priority.tenants.charge(self, 1 + head.cost / QUANTUM)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Ranked:
    """A priority class. The higher level goes first, except after a class that was often passed over."""

    level: float
    passed: int = 0  # how many of other classes went since the last of this one


@dataclass(slots=True, eq=False)
class Priority(Ranked):
    """A priority class: tenants that share."""

    # In units of `QUANTUM`: one for the bytes, one for the slot.
    tenants: FairQueue[Tenant] = field(default_factory=lambda: FairQueue(quantum=2))


class Scopes:
    """The tree of scopes. A new scope joins one of the known tenants and priority classes, by name and level.

    Args:
        ledger: the engine's.
        close: the engine's `close_scope`, which closes a scope that is over.
    """

    def __init__(self, ledger: Ledger, close: Callable[[Scope], None]) -> None:
        self._ledger = ledger
        self._close = close
        self._opened = 0  # scopes with a deadline, without those inside another such scope
        self.ordinary: Priority = Priority(0)
        self.root: Scope = Scope("root", Queue(Tenant(name=None, priority=self.ordinary)), ledger.account)
        self._classes: WeakValueDictionary[float, Priority] = WeakValueDictionary({0.0: self.ordinary})
        self._named: WeakValueDictionary[tuple[Hashable, float], Tenant] = WeakValueDictionary()
        self._recent: deque[Tenant] = deque(maxlen=_REMEMBERED)  # strong references, which keep these tenants alive

    def open(self, name: str, parent: Scope, share: Share | None = _AS_AROUND) -> Scope:
        """Open a child scope with a queue of its own.

        With `share=None` it uses its parent's queue, and first closes earlier siblings there that are over.
        """
        queue = parent.queue
        if share is not None:
            queue = Queue(self._tenant(queue.tenant, share), born=queue.born)
            if share.deadline and queue.born == inf:
                queue.born = self._opened = self._opened + 1
        elif parent.ended_children:
            self._sweep(parent.ended_children)
        scope = Scope(name, queue, parent.account, parent)
        parent.children[scope] = None
        if self._ledger.scope_observer is not None:
            self._ledger.scope_observer.scope_opened(scope)
        return scope

    def _tenant(self, parent: Tenant, share: Share) -> Tenant:
        """The tenant of a new scope inside a scope of the tenant `parent`: a known one or a new one."""
        name, weight, priority, _ = share
        name = parent.name if name is None else name
        group = parent.priority
        if priority is not None and priority != group.level:
            group = self._classes[priority] = self._classes.get(priority) or Priority(priority)
        tenant = None if name is None else self._named.get((name, group.level))
        if tenant is None:
            known = 1.0 if name is None or name != parent.name else parent.weight
            tenant = Tenant(known, name=name, priority=group)
            if name is not None:
                self._named[name, group.level] = tenant
        if name is not None:
            self._recent.append(tenant)
        if weight is not None:
            tenant.weight = weight
        return tenant

    def open_growth(self, scope: Scope, name: str) -> Scope:
        """Open a scope beside `scope` for a claim by which the reserve of `scope` grows."""
        assert scope.parent is not None
        tenant = scope.queue.tenant
        share = Share(tenant.name, tenant.weight, tenant.priority.level + _GROWING)
        growth = self.open(name, scope.parent, share)
        growth.grows = True
        if scope.growing is None:
            scope.growing = {}
        scope.growing[growth] = None
        self._ledger.growths += 1
        return growth

    def close_growth(self, scope: Scope, growth: Scope) -> None:
        """Close a growth: its claim was granted, or is not wanted any more."""
        assert scope.growing is not None
        del scope.growing[growth]
        self._close(growth)

    def end(self, scope: Scope) -> None:
        """Mark a scope to which nothing more will be submitted.

        Once it is over it closes: now, when a later scope opens in its parent's queue, or at the latest with its
        parent.
        """
        parent = scope.parent
        assert parent is not None
        scope.ended = True
        if self._ledger.scope_observer is not None:
            self._ledger.scope_observer.scope_left(scope)
        if not (scope.tasks or scope.children or scope.unseen):  # as mostly: `over`, without a look at children
            self.close(scope)
            return
        if parent.ended_children is None:
            parent.ended_children = deque()
        parent.ended_children.append(scope)

    def _sweep(self, ended: deque[Scope]) -> None:
        """Close scopes that are over.

        Each call looks at two, and adds one. So they do not pile up, and the cost does not depend on their number.
        """
        for _ in range(min(2, len(ended))):
            scope = ended.popleft()
            if scope.closed:
                pass
            elif scope.tasks or not scope.over():  # tasks first: most often it has some
                ended.append(scope)
            else:
                self._close(scope)

    def close(self, scope: Scope, error: BaseException | None = None) -> None:
        """Take a finished scope out of the tree, and charge its remaining bytes to its parent in the same step."""
        assert not scope.tasks
        parent = scope.parent
        assert parent is not None
        self._closed(scope, error)
        parent.children.pop(scope, None)
        if scope.reserve:
            self._ledger.unreserve(scope)
        if scope.children:
            self._hand_over(scope, parent)

    def _closed(self, scope: Scope, error: BaseException | None = None) -> None:
        scope.closed = True
        if self._ledger.scope_observer is not None:
            self._ledger.scope_observer.scope_closed(scope, error)

    def _hand_over(self, scope: Scope, parent: Scope) -> None:
        """Move the open children of a closing scope to its parent. Children that have ended close with it."""
        todo, moved = list(scope.children), []
        while todo:
            child = todo.pop()
            if child.ended:
                self._closed(child)
                todo += child.children
            else:
                assert child.parent is not None
                del child.parent.children[child]
                child.parent = parent
                parent.children[child] = None
                moved.append(child)
        while moved:
            child = moved.pop()
            child.account = child.account.open
            moved += child.children
