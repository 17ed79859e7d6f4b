"""The items that wait for a batch: counted, bounded, and forgotten as soon as nobody wants them.

Theory of operation. Each tenant has a line of its own, first in, first out; who names none stands in the line of None.
A line is `paid` up to where its items were computed, in the unit of their cost over the tenant's weight, and the line
that is paid least goes next (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996). A line that was empty
starts where the others are on average: nobody saves up. So a tenant that sends ten times its share waits in its own
line. The average goes on with all that is computed, also for tenants that are never seen again: so these, however many
they are, stand behind who waits already.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import ceil
from typing import Any

from ..._arguments import check_number
from ...errors import DeadlineExceeded, QueueFull, TaskTooLarge


class Line:
    """The items of one tenant, the oldest first."""

    __slots__ = ("items", "tenant", "weight")

    def __init__(self, tenant: Hashable) -> None:
        self.tenant = tenant
        self.weight = 1.0
        self.items: OrderedDict[Waiting, None] = OrderedDict()


class Waiting:
    """An item on its way, and the future its caller waits for."""

    __slots__ = ("arrived", "cost", "deadline", "future", "item", "line")

    def __init__(
        self, item: Any, cost: float, future: asyncio.Future[Any], arrived: float, deadline: float, line: Line
    ) -> None:
        self.item = item
        self.cost = cost
        self.future = future
        self.arrived = arrived
        self.deadline = deadline
        self.line = line

    def wanted(self, now: float) -> bool:
        """Whether someone still waits for it. Past its deadline nobody does, though a busy loop may tell them late."""
        return now < self.deadline and not self.future.done()

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


class Queue:
    """Lines of tenants, in turn. Every change of its contents changes its books in the same call."""

    def __init__(self, max_batch_cost: float, max_items: int | None) -> None:
        self.max_batch_cost = max_batch_cost
        self.max_items = max_items
        self.cost = 0.0
        self.accepted = self.dropped = self.refused = 0  # items, ever
        self.waited = 0.0  # seconds until their batch, all items together
        self._items: OrderedDict[Waiting, None] = OrderedDict()  # by arrival
        self._lines: dict[Hashable, Line] = {}
        self._turns: list[tuple[float, int, Line]] = []  # a heap of them: up to where each is paid, and since when
        self._numbers = count()
        self._occupied = 0  # lines that hold items
        self._paid = 0.0  # up to where they are, on average

    def __len__(self) -> int:
        return len(self._items)

    @property
    def oldest(self) -> Waiting:
        return next(iter(self._items))

    @property
    def fills_a_batch(self) -> bool:
        return self.cost >= self.max_batch_cost

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

    def line(self, tenant: Hashable, weight: float) -> Line:
        """Where the items of a tenant stand."""
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line(tenant)
            heappush(self._turns, (self._paid, next(self._numbers), line))
        line.weight = weight
        return line

    def push(self, waiting: Waiting) -> None:
        self._items[waiting] = None
        self._occupied += not waiting.line.items
        waiting.line.items[waiting] = None
        self.cost += waiting.cost
        self.accepted += 1

    def forget(self, waiting: Waiting) -> None:
        """Its caller has left. Nothing happens if it is in a batch already."""
        if waiting in self._items:
            self._remove(waiting)
            self.dropped += 1

    def form(self, now: float) -> list[Waiting]:
        """Take the next batch: as many as fit, in turn, and those that nobody wants to be dropped."""
        batch: list[Waiting] = []
        cost = 0.0
        while self._turns:
            paid, _, line = self._turns[0]
            first = next(iter(line.items), None)
            if first is None:
                heappop(self._turns)
                del self._lines[line.tenant]
            elif not first.wanted(now):
                self.forget(first)
                first.expire()
            elif cost + first.cost > self.max_batch_cost:
                break
            else:
                share = first.cost / line.weight
                self._paid = max(self._paid, paid) + share / self._occupied
                heapreplace(self._turns, (paid + share, next(self._numbers), line))
                self._remove(first)
                batch.append(first)
                cost += first.cost
                self.waited += now - first.arrived
        return batch

    def empty(self) -> list[Waiting]:
        """Drop everything. Returns what it was."""
        waiting = list(self._items)
        for one in waiting:
            self.forget(one)
        return waiting

    def _remove(self, waiting: Waiting) -> None:
        del self._items[waiting], waiting.line.items[waiting]
        self._occupied -= not waiting.line.items
        self.cost -= waiting.cost
        if not self._items:  # no rounding error outlives the queue, and no line
            self.cost = self._paid = 0.0
            self._lines.clear()
            self._turns.clear()
