"""The items that wait for a batch: their bound, their order, and the parts in which failed batches are tried again.

Theory of operation. Each tenant has a row of its own, first in, first out. Callers that name no tenant share the row of
None. A fair queue says whose first item goes next, by the cost that was computed for each tenant over its weight. So a
tenant that sends ten times its share waits behind its own items. A tenant without items is forgotten when it would be
next, or when the queue is empty. Not sooner: a tenant that sends one item at a time would count as new each time, as if
nothing had been computed for it. A priority class without items is dropped when a batch forms. Classes go as in
`_core.admission`: the highest first, except for one that waited while others got `PATIENCE` places.

In time. An item waits for the batches that are computed now, for the batches before its own, and for its own. Items
that could not be in time are refused when they come (`Queue.check_time`). Items that can no longer be in time, since
batches took longer than before, are refused after a batch (`Queue.shed`), the later ones first, so that those before
them can be. A batch takes no item with which those in it would be late (`Queue.form`). Nothing is refused without a
measurement. One item is let through if nothing else waits or is computed, so that a single stall is forgotten.

Alternatives. The rate of items: after a quiet time it is the rate of lone items. Not to begin what would be late, and
nothing else: then the queue is full of items that are just too late, and each that is in time takes the place of
several that could have been. The newest item first: half of those that were let in are never computed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, Final, NamedTuple

from ..._arguments import check_number, check_plain
from ..._core.admission import rank_of
from ..._core.failure import copied
from ..._core.tenants import FairQueue, Member, Ranked
from ..._core.tenants import Tenant as Owner
from ...errors import DeadlineExceeded, QueueFull, TaskTooLarge, notes_of, passable
from ...runtime.rates import SAFE, Pace, Rate


class Words(NamedTuple):
    """The words in messages and names of tasks."""

    item: str
    an_item: str
    batch: str
    batches: str
    results: str
    limit: str  # the argument that bounds what a batch costs
    cure: str  # for an item that costs more


BATCH: Final = Words("item", "an item", "batch", "batches", "results", "max_batch_cost", "split the item")
STEP: Final = Words(
    "member", "a member", "step", "steps", "outputs", "max_cost", "let it take a smaller part at a time"
)


@dataclass(slots=True, eq=False, kw_only=True)
class Tenant(Member):
    """The items of one tenant, the oldest first."""

    name: Hashable
    group: Group
    items: OrderedDict[Entry, None] = field(default_factory=OrderedDict)
    cost: float = 0.0  # of the items
    # For members, see `MemberQueue`: the place on the clock of the one that went last, and how many steps in a row left
    # out all parts of prompts.
    clock: float = 0.0
    left_out: int = 0


@dataclass(slots=True, eq=False)
class Group(Ranked):
    """A priority class and its tenants, which may have no items any more."""

    waiting: int = 0
    tenants: dict[Hashable, Tenant] = field(default_factory=dict)
    shares: FairQueue[Tenant] = field(default_factory=FairQueue)

    def first(self) -> Tenant:
        """The tenant that has an item and got least. Those before it are forgotten."""
        while not (tenant := next(iter(self.shares))).items:
            self.shares.leave(tenant)
            del self.tenants[tenant.name]
        return tenant


@dataclass(slots=True, eq=False)
class Entry:
    """An item on its way. Somebody waits for it."""

    item: Any
    cost: float
    arrived: float
    deadline: float
    tenant: Tenant
    future: asyncio.Future[Any] | None  # that its waiter awaits
    context: Context = field(init=False, default_factory=copy_context)  # of the call, for instruments

    def wanted(self, now: float) -> bool:
        """Whether someone still waits for it. Past its deadline nobody does, though a busy loop may tell them late. May
        be called on a stream's thread, too."""
        raise NotImplementedError

    def settle(self, result: Any) -> None:
        """Take a result, or an exception to raise: its batch has ended."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Nobody will compute it, for instance since the event loop is ending."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Waiting(Entry):
    """An item that is computed once."""

    future: asyncio.Future[Any]

    def wanted(self, now: float) -> bool:
        return now < self.deadline and not self.future.done()

    def settle(self, result: Any) -> None:
        if self.future.done():  # the caller has left
            return
        if is_error(result):
            self.future.set_exception(own(result))
        else:
            self.future.set_result(result)

    def give_up(self) -> None:
        self.future.cancel()


def late(words: Words) -> DeadlineExceeded:
    """The error for an item that was not computed, since its deadline has passed. That may be the deadline of a scope
    in which the caller was only started: then it ends nothing else of the caller."""
    return DeadlineExceeded(
        f"the deadline of the scope in which this was started passed before a {words.batch} had room for its"
        f" {words.item}: allow more with `s.scope(deadline=)`, or start longer work outside of the scope"
    )


def too_late(seconds: float, left: float) -> QueueFull:
    """The error for an item whose result would come after its deadline."""
    full = QueueFull(
        f"the items before it and its own batch are likely to take {seconds:.3g} s, and its deadline is in {left:.3g} s"
        ": come back later, or allow more with `s.scope(deadline=)`"
    )
    full.retry_after = max(0.0, seconds - SAFE * left)
    return full


def is_error(result: Any) -> bool:
    """Whether a result is an exception. Not by `isinstance`, which asks the object: that may raise."""
    return issubclass(type(result), BaseException)


def own(error: BaseException) -> BaseException:
    """A copy of an exception for one of several callers. An exception that would end the event loop, or the caller's
    task in silence, is wrapped in another."""
    try:
        if issubclass(type(error), KeyboardInterrupt | SystemExit):
            told = RuntimeError(f"a batch raised {error!r}, which would end the event loop if it were raised here")
            told.__cause__ = error
            return told
        copy = copied(error, error.__traceback__, error.__context__, notes_of(error))
        return passable(copy, "the result of an item is")
    except BaseException:  # from a method that its class overrides
        return RuntimeError(f"a batch raised {type(error).__name__}, which cannot be copied for each caller")


class Queue:
    """The items of all tenants, with their counts.

    Args:
        cost: what an item costs; None: each costs 1.
        concurrency: how many batches are computed at a time.
    """

    def __init__(
        self, words: Words, max_batch_cost: float, max_items: int | None, cost: Callable[[Any], float] | None,
        concurrency: int = 1,
    ) -> None:  # fmt: skip
        max_batch_cost = check_number(words.limit, max_batch_cost)
        if cost is not None and not callable(cost):
            raise TypeError(f"cost takes a function of {words.an_item}, not {type(cost).__name__}")
        check_plain("cost=", cost)
        self.words = words
        self.max_batch_cost = max_batch_cost
        self.max_items = max_items
        self.pace: Pace = Pace(max_batch_cost, concurrency)
        self.cost: float = 0.0
        self.accepted: int = 0  # items, ever, as the next two
        self.dropped: int = 0
        self.refused: int = 0
        self.waited: float = 0.0  # seconds until their batch, all items together
        self.on_batch: Callable[[list[float]], None] | None = None  # told for how long each item of a batch has waited
        self._cost = cost
        self._items: dict[Entry, None] = {}  # by arrival
        self._groups: dict[float, Group] = {}  # by level

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._items)

    def cost_of(self, item: Any) -> float:
        """The cost of an item now.

        Raises:
            TaskTooLarge: if that is more than a batch may.
            ValueError, TypeError: if it is no number of at least 0.
        """
        words, most = self.words, self.max_batch_cost
        cost = 1.0 if self._cost is None else float(self._cost(item))
        if not 0 <= cost < inf:
            check_number(f"the cost of {words.an_item}", cost, zero=True)
        if cost > most:
            raise TaskTooLarge(
                f"{words.an_item} costs {cost:g}, and a {words.batch} at most {most:g} ({words.limit}): {words.cure}",
                ceil(cost),
                int(most),
            )
        return cost

    def check(self, rate: Rate) -> None:
        """Raise unless an item may join. The rate at which items are computed says when there will be room."""
        if self.max_items is not None and len(self._items) >= self.max_items:
            self.refused += 1
            full = QueueFull(
                f"{len(self._items):,} items wait for this batcher, which is its limit (max_queue): come back later,"
                " admit fewer callers at a time, or raise max_queue"
            )
            full.retry_after = rate.seconds_for(len(self._items))
            raise full

    def check_time(self, tenant: Tenant, cost: float, deadline: float, now: float) -> None:
        """Raise unless an item that joins now is likely to be computed in time, or is alone."""
        if deadline == inf or not (self._items or self.pace.running):
            return
        seconds = self.pace.expected(self._before(tenant, tenant.cost + cost), now)
        if seconds and seconds > SAFE * (deadline - now):
            self.refused += 1
            raise too_late(seconds, deadline - now)

    def shed(self, now: float) -> None:
        """Refuse items that can no longer be computed in time, the later ones of each tenant first. If nothing is
        computed now, one item is kept in any case."""
        alone = not self.pace.running
        for tenant in [tenant for group in self._groups.values() for tenant in group.tenants.values()]:
            kept = 0.0
            for entry in list(tenant.items):
                left, seconds = entry.deadline - now, 0.0
                if left < inf and not alone:
                    seconds = self.pace.expected(self._before(tenant, kept + entry.cost), now)
                if SAFE * seconds > left:
                    self.drop(entry)
                    entry.settle(too_late(seconds, left))
                else:
                    kept, alone = kept + entry.cost, False

    def _before(self, tenant: Tenant, cost: float) -> float:
        """The most that is computed, in cost, until a tenant's first items are done, which cost this much.

        Higher classes go first. The other tenants of its class get their shares by weight, and at most what they wait
        with.
        """
        group = tenant.group
        above = [other for other in self._groups.values() if other.level > group.level]
        higher = sum([one.cost for other in above for one in other.tenants.values()])
        others = [one for one in group.tenants.values() if one.items and one is not tenant]
        shares = sum([one.weight for one in others]) / tenant.weight
        return higher + cost + min(sum([one.cost for one in others]), cost * shares)

    def tenant(self, owner: Owner | None) -> Tenant:
        """The tenant of a scope, or of a caller in no scope; a new one if it is not known. Then push an item of it at
        once."""
        name, weight, level = (None, 1.0, 0) if owner is None else (owner.name, owner.weight, owner.priority.level)
        group = self._groups.get(level)
        if group is None:
            group = self._groups[level] = Group(level)
        tenant = group.tenants.get(name)
        if tenant is None:
            tenant = group.tenants[name] = Tenant(name=name, group=group)
            group.shares.join(tenant)
        tenant.weight = weight
        return tenant

    def push(self, waiting: Entry) -> None:
        self._add(waiting)
        waiting.tenant.items[waiting] = None
        waiting.tenant.cost += waiting.cost
        waiting.tenant.group.waiting += 1
        self.accepted += 1

    def drop(self, waiting: Entry) -> bool:
        """Drop an item whose caller has left. Returns whether it was here: in a batch, nothing happens to it."""
        if waiting not in self._items:
            return False
        self._remove(waiting)
        self.dropped += 1
        return True

    def form(self, now: float) -> list[Entry]:
        """Take the next batch: as many items as fit, shared fairly, and can be in time. Items that nobody wants are
        dropped."""
        batch: list[Entry] = []
        cost, groups, until = 0.0, self._present(), inf
        while self._items:
            tenant = min([group for group in groups if group.waiting], key=rank_of).first()
            first = next(iter(tenant.items))
            if not first.wanted(now):
                self.drop(first)
                first.settle(late(self.words))
                continue
            seconds = self.pace.seconds(cost + first.cost)
            if first.deadline < now + seconds and (batch or len(self._items) > 1):
                self.drop(first)
                first.settle(too_late(seconds, first.deadline - now))
            elif cost + first.cost > self.max_batch_cost or until < now + seconds:
                break
            else:
                self._charge(first)
                self._remove(first)
                batch.append(first)
                cost += first.cost
                until = min(until, first.deadline)
        self.pace.formed(cost, bool(self._items))
        return batch

    def empty(self) -> list[Entry]:
        """Drop everything. Returns what it was."""
        waiting = list(self._items)
        for one in waiting:
            self.drop(one)
        return waiting

    def _present(self) -> list[Group]:
        """The classes that have items. Others are forgotten."""
        for group in [group for group in self._groups.values() if not group.waiting]:
            del self._groups[group.level]
        return list(self._groups.values())

    def _charge(self, taken: Entry) -> None:
        """Charge the tenant and the class of an item that goes."""
        group = taken.tenant.group
        group.shares.charge(taken.tenant, taken.cost)
        for other in self._groups.values():
            other.passed += 1
        group.passed = 0

    def _add(self, entry: Entry) -> None:
        self._items[entry] = None
        self.cost += entry.cost

    def _remove(self, waiting: Entry) -> None:
        del self._items[waiting], waiting.tenant.items[waiting]
        self.cost -= waiting.cost
        waiting.tenant.cost -= waiting.cost
        group = waiting.tenant.group
        group.waiting -= 1
        if not self._items:
            self._forget_all()

    def _forget_all(self) -> None:
        """The queue is empty: forget all tenants, and rounding errors."""
        self._items.clear()
        self._groups.clear()
        self.cost = 0.0


class Parts:
    """The parts in which a failed batch is tried again, the oldest first: halves, until the item that makes it fail is
    alone.

    Theory of operation. A batch of n items that fails is cut into two parts, which are computed like batches of their
    own. A part that fails is cut again. A single item that fails keeps its error. So one guilty item takes two runs for
    each halving, 2 * ceil(log2(n)) in all. k of them take at most 2k * ceil(log2(n)), since no more than k parts of a
    size can fail. If all are guilty, say since the model is broken, every part is run: 2n - 2 runs, in which each item
    is computed ceil(log2(n)) times more. There is no other limit: with one, a client that sends several bad items would
    make others fail again.

    The parts are computed in the order in which they were cut, large ones first, so innocent callers get their results
    soon. Parts take turns with new batches, so callers in the queue go on, at half the pace at the worst. An item that
    nobody wants any more, since its caller has left or its deadline has passed, is left out of the next part.
    """

    def __init__(self) -> None:
        self._parts: deque[list[Entry]] = deque()
        self._had_turn = False  # a part went last

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Entry]:
        return (waiting for part in self._parts for waiting in part)

    def cut(self, items: list[Entry]) -> None:
        """Compute these again: in halves, where there are several."""
        middle = (len(items) + 1) // 2
        self._parts += [part for part in (items[:middle], items[middle:]) if part]

    def take(self, others_wait: bool) -> list[Entry] | None:
        """The next part. None if it is the turn of a new batch, for which others wait."""
        self._had_turn = bool(self._parts) and not (others_wait and self._had_turn)
        return self._parts.popleft() if self._had_turn else None

    def empty(self) -> list[Entry]:
        """Drop everything. Returns what it was."""
        items = list(self)
        self._parts.clear()
        return items
