"""Members that stay: their places in the queue, and which of them the next step has.

Theory of operation. A member is an entry of the queue that comes back to it after each step. If all fit into a step,
all go, and nothing is counted. If not, two questions are asked for each place. *Which tenant?* The one that has got
least, by cost over weight: the queue's own order. *Which of its members?* Each member has a place on a clock: where its
next step would end if members got equal shares of cost. That is the later of two times (the clock when it joined the
queue, and its own last place), plus its cost. The first in this order that fits goes, and the clock moves on to its
place (self-clocked fair queueing: Golestani, INFOCOM 1994). So a member that costs 32 stands behind others that cost 1,
and takes the room that they leave. Their places move on, so it goes before them once each has had 32. Nobody saves up:
a member that was paused begins at the clock, and so do all after a step in which all went.

Parts of prompts stand behind all others. A part of a prompt is the step of a member that has had no output yet, and
costs more than one that has, whose reader would see the gap. Parts take the room that is left, however many come at
once. So that they do not wait for ever if there is none, one goes first after `PATIENCE` steps that left all of them
out.

Members whose scope has a deadline do not share: where one of them would go, the oldest that can goes. Else all would be
late together. A member that could not have its last output in time is refused. That is estimated by the cost of those
before it, and by how many steps members took lately.

Alternatives. The oldest first, as with a batcher's items: then long prompts go before the tokens of others, whose gaps
grow. Only shares of cost: if prompts come together, each then goes before the tokens of those that went first. The
cheapest first: then a prompt never goes while streams of tokens fill the steps. Lists that are kept sorted: members
come back at each step, so it costs less to sort those that are there.

`one_each` checks what a function of a batch returns: one result for each item, in their order.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, Final, cast

from ..._arguments import is_table
from ..._core.admission import PATIENCE, rank_of
from ..._core.tenants import Tenant as Owner
from ...errors import TaskCancelled
from ...runtime.context import Ambient
from ...runtime.rates import SAFE, Pace, Took
from ..scope import Scope
from .queue import STEP, Entry, Group, Queue, Tenant, Words, late, too_late

NOBODY: Final = Tenant(name=None, group=Group(0))  # the tenant of a member that has not been in a row yet


@dataclass(slots=True, eq=False)
class Seat(Entry):
    """A member, and its outputs that nobody has read yet. It waits for a step, or to grow before one, or is in one
    (`going`). Or it is paused, since too many outputs are unread. Or it has ended, and is in no step any more."""

    future: asyncio.Future[None] | None  # of a reader, or of the coroutine that leaves
    owner: Owner | None  # the tenant of the scope it joined in
    number: int  # in the order of joining
    ended_step: Callable[[Seat, Any], None]  # gets what a step gave for it, on the loop's thread
    loop: asyncio.AbstractEventLoop
    joined_in: Ambient | None  # the scope that it joined in
    joined_by: weakref.ref[asyncio.Task[Any]]  # the asyncio task that joined
    unread: deque[Any] = field(default_factory=deque)
    since: float = 0.0  # when it joined, was given its last output, or went on after a pause
    stands: float = 0.0  # its place on the clock of its tenant, see the head of this file
    steps: int = 0  # that it has had
    done: float = 0.0  # the cost of these
    in_row: bool = False  # whether it is among the items of its tenant
    joined: bool = False  # it has its reserve, if it needs one
    room: Scope | None = None  # the scope with its reserve
    reserved: int = 0
    growing: asyncio.Task[None] | None = None  # while it waits to reserve more
    going: bool = False
    ended: bool = False  # by its last output, or an error
    left: bool = False  # its block is being left
    begun: bool = False  # it has had an output
    error: BaseException | None = None  # to be raised once

    @property
    def paused(self) -> bool:
        """Whether it is in no step until somebody reads."""
        return self.joined and not (self.going or self.ended)

    def wanted(self, now: float) -> bool:
        return now < self.deadline and not self.left

    def settle(self, result: Any) -> None:
        self.ended_step(self, result)

    def give_up(self) -> None:
        self.ended_step(self, TaskCancelled("the steps of this member were cancelled, as when the event loop ends"))

    async def changed(self) -> None:
        """Wait until a step ends that gave it something, or that had it for the last time."""
        self.future = future = self.loop.create_future()
        try:
            await future
        finally:
            if self.future is future:
                self.future = None

    def wake(self) -> None:
        """Wake the coroutine that waits in `changed`."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class MemberQueue(Queue):
    """The members that wait for a step. They are put into the rows of their tenants only when not all fit: mostly they
    wait for one turn of the loop, and then all go."""

    refused: int

    def join(self, seat: Seat, cost: float, now: float) -> None:
        """A member waits for its next step, which has this cost."""
        seat.cost, seat.arrived, seat.going = cost, now, True
        self._add(seat)

    def __init__(self, max_cost: float, cost: Callable[[Any], float] | None) -> None:
        super().__init__(STEP, max_cost, None, cost)
        self.pace: Pace = Pace(max_cost, 1, 1 / 32, 1 / 32)  # a member takes many steps, so their mean counts
        self.seats: dict[int, Seat] = {}  # of the members that are there, or wait for their reserve; by identity
        # How many steps a member takes, and what they cost in all. A larger number weighs no more than a smaller one:
        # they vary, and do not get slower.
        self._steps, self._work = Took(1 / 32, 1 / 32), Took(1 / 32, 1 / 32)

    def check_member(self, seat: Seat, deadline: float, now: float) -> None:
        """Raise QueueFull unless a member that joins now is likely to have its last output in time, or is alone."""
        others = [one for one in self.seats.values() if one is not seat and not one.ended]
        if deadline == inf or not others or not self._steps.mean:
            return
        seconds = self._expected(seat, [*others, seat])
        if seconds > SAFE * (deadline - now):
            self.refused += 1
            raise too_late(seconds, deadline - now)

    def learn(self, seat: Seat, *, whole: bool) -> None:
        """Learn from a member that leaves: after all of its steps (`whole`), or cut short. Refuse members that have not
        begun, and can no longer have their last output in time."""
        for took, found in ((self._steps, seat.steps), (self._work, seat.done)):
            took.add(found) if whole else took.at_least(found)
        now, before = monotonic(), list[Seat]()
        for one in list(self.seats.values()):
            if one.ended or one is seat:
                continue
            before.append(one)
            if one.steps or one not in self._items or one.deadline == inf or len(before) == 1:
                continue
            if one.deadline < now + SAFE * (seconds := self._expected(one, before)):
                self.drop(before.pop())
                one.settle(too_late(seconds, one.deadline - now))

    def _expected(self, seat: Seat, upto: list[Seat]) -> float:
        """Seconds until a member has its last output: until there is room for it in a step, and then its own steps.

        Only the members in `upto` are before it; it is the last of these. It waits for as much work of each other
        tenant as of its own, by their weights, at most.
        """
        cost = sum([one.cost for one in upto])
        own = self._steps.likely * self.pace.seconds(min(cost, self.pace.full))
        if cost <= self.pace.full:
            return own
        left = [(_owner(one), max(0.0, self._work.mean - one.done)) for one in upto]
        (name, weight), last = left.pop()
        mine = last + sum([work for (other, _), work in left if other == name])
        shares = sum(dict([owner for owner, _ in left] + [(name, weight)]).values()) / weight
        total = last + sum([work for _, work in left])
        return own + (min(total, mine * shares) - last) / self.pace.full * self.pace.seconds(self.pace.full)

    def shed(self, now: float) -> None:
        """Members are refused as others leave: see `learn`."""

    def form(self, now: float) -> list[Entry]:
        """Take the members of the next step: all if they fit, else those that have got least. Those that nobody wants
        are dropped."""
        for entry in [entry for entry in self._items if not entry.wanted(now)]:
            self.drop(entry)
            entry.settle(late(STEP))
        leaves = self.cost > self.max_batch_cost or not all(seat.joined for seat in self.seats.values())
        if self.cost > self.max_batch_cost:
            step = list(self._chosen())
            for entry in step:
                self._remove(entry)
        else:
            step = list(self._items)
            self._forget_all()
            for seat in cast(list[Seat], step):
                seat.stands, seat.in_row = 0.0, False
        cost = 0.0
        for seat in cast(list[Seat], step):
            cost += seat.cost
            seat.steps, seat.done = seat.steps + 1, seat.done + seat.cost
        self.pace.formed(cost, leaves)
        return step

    def _remove(self, entry: Entry) -> None:
        seat = cast(Seat, entry)
        if not seat.in_row:
            self._put_into_row(seat)
        seat.in_row = False
        super()._remove(seat)

    def _put_into_row(self, seat: Seat) -> None:
        seat.in_row, seat.tenant = True, self.tenant(seat.owner)
        seat.stands = max(seat.stands, seat.tenant.clock) + seat.cost
        seat.tenant.items[seat] = None
        seat.tenant.cost += seat.cost
        seat.tenant.group.waiting += 1

    def _chosen(self) -> Iterator[Entry]:
        """The members of the next step, if not all fit."""
        for seat in cast(list[Seat], self._items):
            if not seat.in_row:
                self._put_into_row(seat)
        groups = self._present()
        for group in groups:
            group.first()
        tenants = [tenant for group in groups for tenant in group.tenants.values()]
        lines = {tenant: iter(_in_order(tenant)) for tenant in tenants}
        room = self.max_batch_cost
        while (found := self._next(groups, lines, room)) is not None:
            tenant, entry = found
            self._charge(entry)
            tenant.clock = max(tenant.clock, entry.stands)
            if not entry.begun:
                tenant.left_out = 0
            room -= entry.cost
            yield entry

    def _next(
        self, groups: list[Group], lines: dict[Tenant, Iterator[Seat]], room: float
    ) -> tuple[Tenant, Seat] | None:
        for group in sorted(groups, key=rank_of):
            for tenant in group.shares:
                for entry in lines[tenant]:  # members that were passed over do not fit any more
                    if entry.cost <= room:
                        return tenant, entry
        return None


def _owner(seat: Seat) -> tuple[Hashable, float]:
    return (None, 1.0) if seat.owner is None else (seat.owner.name, seat.owner.weight)


def _in_order(tenant: Tenant) -> list[Seat]:
    """The members of a tenant in the order in which they go, as far as they fit."""
    seats = cast(Iterable[Seat], tenant.items)
    least = min([seat.cost for seat in seats if seat.begun], default=inf)
    prompts = {seat for seat in seats if not seat.begun and seat.cost > least}
    tenant.left_out = tenant.left_out + 1 if prompts else 0
    line = sorted(seats, key=lambda seat: (seat in prompts, seat.stands))
    dated = sorted([seat for seat in line if seat.deadline < inf], key=lambda seat: (seat in prompts, seat.number))
    if dated:
        oldest = iter(dated)
        line = [next(oldest) if seat.deadline < inf else seat for seat in line]
    if tenant.left_out > PATIENCE:
        line.insert(0, line.pop(-len(prompts)))
    return line


def one_each(returned: Any, wanted: int, name: str, words: Words) -> list[Any]:
    """What a function of a batch returned, as a list of one result for each item.

    Raises:
        TypeError, ValueError: if it is none.
    """
    if type(returned) is list and len(returned) == wanted:  # as almost always
        return returned
    if (refused := _refused(returned)) is not None:
        raise TypeError(f"{name} must return a list of {words.results}, one per {words.item}, not {refused}")
    results = list(islice(returned, max(wanted, len(returned)) + 1))  # not more, where it has no end
    if len(results) != wanted:
        raise ValueError(
            f"{name} got {wanted} {words.item}s and returned {len(results)} {words.results}: return one per"
            f" {words.item}, in order"
        )
    if not isinstance(returned, Sequence | ValuesView) and not getattr(returned, "shape", ()):
        kind = type(returned).__name__  # its length may be that of its rows, while it iterates over something else
        raise TypeError(f"{name} must return a list of {words.results}, one per {words.item}, and not a {kind}")
    return results


def _refused(returned: Any) -> str | None:
    """In words, why an object is no list of results; None if it may be one. Refused are also kinds that could have the
    right length only by chance."""
    kind = type(returned).__name__
    if getattr(returned, "ndim", 1) == 0:  # an array without axes: its length raises
        return "a single number"
    if isinstance(returned, tuple):  # the results of a function that returns several, each for all items
        return f"{kind}: `list(zip(*parts))` of arrays of all items gives each item its own; else make a list of it"
    if is_table(returned):
        return f"{kind}, which iterates over its columns: give its rows, as by `to_numpy()`"
    if not hasattr(returned, "__len__") or isinstance(returned, Mapping | Set | str | bytes | bytearray):
        return kind
    return None
