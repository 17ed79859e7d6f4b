"""The items that wait for a batch: counted, bounded, dropped as soon as nobody wants them, and tried again in parts.

Theory of operation. Each tenant has a row of its own, first in, first out; who names none shares that of None. A fair
queue says whose first item goes next, by what was computed for each, in the unit of their cost over the tenant's
weight. So a tenant that sends ten times its share waits behind its own items. A tenant without items is dropped when it
would be next, with what it has got, or when the queue is empty; not sooner, or who sends one item at a time would
count as new each time, as if it had got nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from ..._arguments import check_number
from ..._core.exception_copies import copied
from ..._core.fair_queue import FairQueue, Member
from ...errors import DeadlineExceeded, QueueFull, TaskTooLarge, notes_of, passable


class Tenant(Member):
    """The items of one tenant, the oldest first."""

    __slots__ = ("items", "name")

    def __init__(self, name: Hashable) -> None:
        super().__init__()
        self.name: Hashable = name
        self.items: OrderedDict[Waiting, None] = OrderedDict()


@dataclass(slots=True, eq=False)
class Waiting:
    """An item on its way, and the future its caller waits for."""

    item: Any
    cost: float
    future: asyncio.Future[Any]
    arrived: float
    deadline: float
    tenant: Tenant

    def wanted(self, now: float) -> bool:
        """Whether someone still waits for it. Past its deadline nobody does, though a busy loop may tell them late."""
        return now < self.deadline and not self.future.done()

    def settle(self, result: Any) -> None:
        """Give its caller a result, or an exception to raise."""
        if self.future.done():  # the caller has left
            return
        if issubclass(type(result), BaseException):  # not `isinstance`, which asks the object, and that may raise
            try:
                told = _own(result)
            except Exception:  # by what its class overrides
                told = RuntimeError(f"{type(result).__name__} came of a batch, which does not let itself be passed on")
            self.future.set_exception(told)
        else:
            self.future.set_result(result)

    def expire(self) -> None:
        """Tell the caller, unless it has left. The deadline may be of a scope that the caller was only started in, and
        then ends nothing else of it."""
        if not self.future.done():
            self.future.set_exception(
                DeadlineExceeded(
                    "the deadline of the scope that this was started in passed before a batch had room for its item:"
                    " allow more with `s.scope(deadline=)`, or start what outlives a scope outside of it"
                )
            )


def _own(error: BaseException) -> BaseException:
    """An exception as one of several callers is given it: a copy, and nothing that ends its task in silence or, as
    asyncio has it, the event loop."""
    if issubclass(type(error), KeyboardInterrupt | SystemExit):
        told = RuntimeError(f"{error!r} is what came of a batch: raised here, it would end the event loop")
        told.__cause__ = error
        return told
    copy = copied(error, error.__traceback__, error.__context__, notes_of(error))
    return passable(copy, "the result of an item is")


class Queue:
    """The items of all tenants. Every change of its contents changes its counts in the same call."""

    def __init__(self, max_batch_cost: float, max_items: int | None) -> None:
        self.max_batch_cost = max_batch_cost
        self.max_items = max_items
        self.cost: float = 0.0
        self.accepted: int = 0  # items, ever, as the next two
        self.dropped: int = 0
        self.refused: int = 0
        self.waited: float = 0.0  # seconds until their batch, all items together
        self._items: OrderedDict[Waiting, None] = OrderedDict()  # by arrival
        self._tenants: dict[Hashable, Tenant] = {}  # those in `_shares`, which may have no items any more
        self._shares = FairQueue[Tenant]()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._items)

    def check(self, cost: float) -> None:
        """Raise unless an item of this cost may join."""
        check_number("the cost of an item", cost, zero=True)
        if cost > self.max_batch_cost:
            raise TaskTooLarge(
                f"an item costs {cost:g}, and a batch at most {self.max_batch_cost:g} (max_batch_cost): split the item",
                ceil(cost),
                int(self.max_batch_cost),
            )
        if self.max_items is not None and len(self._items) >= self.max_items:
            self.refused += 1
            raise QueueFull(
                f"{len(self._items):,} items wait for this batcher, which is its limit (max_queue): come back later,"
                " admit fewer callers at a time, or raise max_queue"
            )

    def tenant(self, name: Hashable, weight: float) -> Tenant:
        """The tenant of this name, made if it is new. The caller pushes an item of its at once."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
            self._shares.join(tenant)
        tenant.weight = weight
        return tenant

    def push(self, waiting: Waiting) -> None:
        self._items[waiting] = None
        waiting.tenant.items[waiting] = None
        self.cost += waiting.cost
        self.accepted += 1

    def drop(self, waiting: Waiting) -> None:
        """Its caller has left. Nothing happens if it is in a batch already."""
        if waiting in self._items:
            self._remove(waiting)
            self.dropped += 1

    def form(self, now: float) -> list[Waiting]:
        """Take the next batch: as many as fit, shared fairly; those that nobody wants are dropped."""
        batch: list[Waiting] = []
        cost = 0.0
        while self._items:
            tenant = next(iter(self._shares))
            first = next(iter(tenant.items), None)
            if first is None:
                self._shares.leave(tenant)
                del self._tenants[tenant.name]
            elif not first.wanted(now):
                self.drop(first)
                first.expire()
            elif cost + first.cost > self.max_batch_cost:
                break
            else:
                self._shares.charge(tenant, first.cost)
                self._remove(first)
                batch.append(first)
                cost += first.cost
                self.waited += now - first.arrived
        return batch

    def empty(self) -> list[Waiting]:
        """Drop everything. Returns what it was."""
        waiting = list(self._items)
        for one in waiting:
            self.drop(one)
        return waiting

    def _remove(self, waiting: Waiting) -> None:
        del self._items[waiting], waiting.tenant.items[waiting]
        self.cost -= waiting.cost
        if not self._items:  # no rounding error outlives the queue, and no tenant
            self.cost = 0.0
            self._tenants.clear()
            self._shares = FairQueue()


class Parts:
    """What a batch that failed is tried again in, the oldest first: halves, until what makes it fail is alone.

    Theory of operation. A batch of n items that fails is cut into two parts, which are computed like batches of their
    own; a part that fails is cut again, and a single item that fails keeps its error. So one guilty item takes two runs
    for each halving, 2 * ceil(log2(n)) in all; k of them take at most 2k * ceil(log2(n)), since no more than k parts of
    a size can fail; and when all are guilty, since the model is broken say, each part there is has been run: 2n - 2, in
    which each item was computed ceil(log2(n)) times more. There is no other limit: with one, a client that sends
    several bad items would fail others again.

    The parts are computed in the order in which they were cut, the large ones first, so whoever is innocent hears soon.
    They take turns with the batches that form anew: those who wait in the queue go on, at half the pace at the worst.

    What nobody wants any more, since its caller has left or its deadline has passed, is left out of the next part.
    """

    def __init__(self) -> None:
        self._parts: deque[list[Waiting]] = deque()
        self._had_turn = False  # a part went last

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Waiting]:
        return (waiting for part in self._parts for waiting in part)

    def cut(self, items: list[Waiting]) -> None:
        """Compute these again: in halves, where there are several."""
        middle = (len(items) + 1) // 2
        self._parts += [part for part in (items[:middle], items[middle:]) if part]

    def take(self, others_wait: bool) -> list[Waiting] | None:
        """The next part; None where it is the turn of a batch that forms anew, for which others wait."""
        self._had_turn = bool(self._parts) and not (others_wait and self._had_turn)
        return self._parts.popleft() if self._had_turn else None

    def empty(self) -> list[Waiting]:
        """Drop everything. Returns what it was."""
        items = list(self)
        self._parts.clear()
        return items
