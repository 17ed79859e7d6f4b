"""The base of a pipeline's stages, and the links between them.

A stage takes items from one link and puts its results into the next. An error of its function ends its output: behind
the results of the items before it, and with nothing after it.

A link is a bounded row of items, with the waiters for items and for room.

Theory of operation. A stage reserves room in the link behind it *before* it takes an item from the link in front of it,
and a source does so before it is asked for anything. So an item has room from the moment it is read, and a pipeline
never holds more than the sum of its links. Each room goes round:

    reserve -> put -> take           a stage's result, which the next stage takes
    reserve -> unreserve             no item came: the items are at their end, or a filter has left it out
    put -> withdraw                  the stage takes back what nobody has taken
    take -> put_back                 the next stage returns it: the row is too full until that is taken again

The items are in a deque, and nothing is sent per item: only waiters are woken. A burst costs one step of the event
loop. A single item does not wait for others to join it, except in front of a stage that makes batches. That stage says
for how many items it waits (`wanted`). The row has more places for these (`gather`), so that they can be taken at once.
A row that is bounded in bytes has none: there a batch waits for half a row. A waiter for room is woken when half of the
row is free, since then it is worth a step, or when the next stage has nothing left to take. In a row of batches on a
device it is woken when one place is free.

A link may be bounded in bytes, too. Room is reserved before an item is there to be measured. So the link has room for
as many items as fit by the largest so far: of its own, and of those in front, which a stage holds while it works on
them. Until it knows the size of one of its own, it has room for one.

An `asyncio.Queue` between two stages reserves nothing, and wakes somebody for each item: `bench/pipeline.py` compares
the two.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any, TypeAlias

from ..._tree import leaves
from .marks import NESTED, Marked
from .position import EPOCH, Behind, Origin, Part, Position, Span, beside, brief, describe, joined, noted, spans_of

Numbered: TypeAlias = tuple[Origin, Any]
DROPPED = object()  # in place of an item that goes no further
WEIGHED = 64  # one item in so many is weighed, for `statistics()`, by so many of its parts: it takes a microsecond
MANY = 1024  # spans of numbers that are kept as they came, before adjoining ones are joined; a guess


class Link:
    """A row of at most `capacity` items: made, being made, or about to be made. One side puts, the other takes.

    An item that goes no further is put as `DROPPED`. Its number goes with the next item that is put. So it counts as
    received when the items in front of it are, and a position stays short however few items are kept.
    """

    def __init__(self, capacity: int, most_bytes: int | None = None) -> None:
        self._most_items = capacity
        self._most_bytes = most_bytes or sys.maxsize
        self._largest = 1  # bytes of an item
        self.fitted: list[Link] = [] if most_bytes is None else [self]  # links whose capacity follows items put here
        self.capacity: int = capacity if most_bytes is None else 1
        self.makers: int = 1  # workers that put
        self._gathered = 0  # of its places, those added for a taker that leaves its items here until it has enough
        self.room: int = self.capacity  # below 0 where items were put back, or were smaller before
        self.items: deque[Numbered] = deque()
        self.count: int = 0  # items ever put
        self.weight: float = 0.0  # mean bytes of an item, by those that were weighed
        self._weighed = 0  # how many were
        self._look_at = 0  # the number of the next item that `put` has a look at
        self.ended: bool = False
        self.more: bool = False  # another epoch will follow: only an error ends it
        self.error: BaseException | None = None  # why it ended
        self.for_items: WaitQueue = WaitQueue()
        self.for_room: WaitQueue = WaitQueue()
        self.shares: int = 2  # a waiter for room is woken when one of so many equal parts of the row is free
        self.wanted: int = 1  # for how many items the taker waits, while it does; read on any thread
        self._dropped: list[Span] = []
        self._many = MANY  # with more spans than these, adjoining ones are joined

    def try_reserve(self) -> bool:
        """Take room for an item, if there is any."""
        if self.room > 0:
            self.room -= 1
            return True
        return False

    async def reserve(self) -> None:
        """Wait for room for an item, and take it."""
        while not self.try_reserve():
            await self.for_room.wait()

    def reserve_some(self, most: int) -> int:
        """Take room for so many items, or as many as there is room for. Returns for how many."""
        room = max(0, min(most, self.room))
        self.room -= room
        return room

    def unreserve(self) -> None:
        """Give back room that was reserved, since no item came. Another worker may wait for room, and has to see that
        too."""
        self.room += 1
        if self.for_room.waiters:
            self.for_room.wake()

    def lift_bound(self) -> None:
        """Give room to all that wait for it, now or later: the stage has failed, and they will put nothing."""
        self.room = sys.maxsize
        self.for_room.wake_all()

    def put(self, origin: Origin, item: Any) -> None:
        """Add an item whose room was reserved, or give its room back if it was dropped."""
        if item is DROPPED:
            if self.fitted:
                self._measure(item)
            self.drop(origin)
            self.room += 1
            if self.for_room.waiters and (self.for_items.waiters or self.room * self.shares >= self.capacity):
                self.for_room.wake()
            return
        if self.count >= self._look_at:
            origin = self._look(origin, item)
        self.items.append((origin, item))
        self.count += 1
        if self.for_items.waiters and len(self.items) >= self.wanted:
            self.for_items.wake()

    def _look(self, origin: Origin, item: Any) -> Origin:
        """Measure an item, if links follow its size; weigh some. Returns its origin, with those dropped before it."""
        if self.fitted:
            self._measure(item)
        if self.count % WEIGHED == 0:
            with suppress(Exception):  # it cannot tell its size, which nobody has asked for
                self.weight += (_about(item) - self.weight) / (self._weighed + 1)
                self._weighed += 1
        self._look_at = 0 if self.fitted else self.count + WEIGHED - self.count % WEIGHED
        return self.dropped(origin) if self._dropped else origin

    def _offer_room(self) -> None:
        for _ in range(min(self.room, len(self.for_room.waiters))):
            self.for_room.wake()

    def _measure(self, item: Any) -> None:
        """Fit the capacity of links that are bounded in bytes to an item that is put here. Only the first item that is
        put into a link itself can make its capacity larger."""
        nbytes = size_of(item)
        for link in self.fitted:
            link._largest = max(link._largest, nbytes)
            most = link._most_items if link is self else link.capacity
            capacity = max(1, min(most, link._most_bytes // link._largest))
            if capacity != link.capacity:
                link.room += capacity - link.capacity
                link.capacity = capacity
                link.wanted = link._worth(link.wanted)
                if len(link.items) >= link.wanted:
                    link.for_items.wake()
            link._offer_room()

    def end(self, error: BaseException | None = None) -> None:
        """No more items will be put: there are none, or an error came."""
        if self.more and error is None:
            return
        self.ended, self.error = True, error
        self.for_items.wake_all()

    def gather(self, count: int) -> None:
        """Have `count` places more, for a taker that leaves its items here until it has so many. Items that are bounded
        in bytes get none: such a taker holds them."""
        if count != self._gathered and self._most_bytes == sys.maxsize:
            more, self._gathered = count - self._gathered, count
            self.capacity += more
            self.room += more
            if self.for_room.waiters:
                self._offer_room()

    def _worth(self, count: int) -> int:
        """For how many items a taker waits that needs `count`: at most for half of the row besides the places gathered
        for it, and leaving a place for each worker that puts."""
        others = self.capacity - self._gathered
        return max(1, min(count, self._gathered + min(others // 2, others - self.makers)))

    async def arrived(self, count: int = 1) -> bool:
        """Wait for an item; False if there will be none. A taker that is alone and needs `count` items waits for
        several."""
        while len(self.items) < (wanted := 1 if count == 1 else self._worth(count)):
            if self.ended:
                return bool(self.items)
            if self.for_room.waiters:
                self._offer_room()
            self.wanted = wanted
            try:
                await self.for_items.wait()
            finally:
                self.wanted = 1
        return True

    def take(self) -> Numbered:
        """The first item; there must be one.

        Raises:
            RuntimeError: if an array in it was written to since it was put. There are no more items then.
        """
        self.room += 1
        if self.for_room.waiters and self.room * self.shares >= self.capacity:
            self.for_room.wake()
        taken = self.items.popleft()
        return self._checked(taken) if type(taken[1]) is Marked else taken

    def take_some(self, most: int) -> list[Numbered]:
        """The first `most` items, or all if there are fewer, with their marks: for a stage that holds items, and checks
        them itself."""
        items = self.items
        if most < len(items):
            found = [items.popleft() for _ in range(most)]
        else:
            found = [*items]
            items.clear()
        self.room += len(found)
        if self.for_room.waiters and self.room * self.shares >= self.capacity:
            self._offer_room()
        return found

    def _checked(self, taken: Numbered) -> Numbered:
        origin, item = taken
        try:
            return origin, item.check(origin)
        except RuntimeError as error:
            self.items.clear()
            self.end(error)
            raise

    def drop(self, origin: Origin) -> None:
        """No result will be put for this item."""
        dropped, self._look_at = self._dropped, 0
        for span in spans_of(origin):
            # The gap behind an epoch stays apart: it is passed over, and the numbers around it are those of items.
            apart = not isinstance(span, Part) and not (span.start % EPOCH and span.stop % EPOCH)
            if dropped and not apart and (both := beside(dropped[-1], span)) is not None:
                dropped[-1] = both
            else:
                dropped.append(span)
        if len(dropped) > self._many:  # out of order, behind a shuffle: most spans adjoin each other
            self._dropped = joined(dropped)
            self._many = max(MANY, 2 * len(self._dropped))

    def dropped(self, behind: Origin = ()) -> Origin:
        """The origin of an item, or none, with the numbers that were dropped since the last call. They go with it."""
        dropped, self._dropped = self._dropped, []
        return Behind(behind, tuple(dropped))

    def withdraw(self) -> None:
        """Drop the items that were put and not taken, as if they had never been put."""
        self.room += len(self.items)
        self.count -= len(self.items)
        self.items.clear()

    def put_back(self, items: Iterable[Numbered]) -> None:
        """Put items back that were taken, in order: they will be taken again."""
        before = len(self.items)
        self.items.extendleft(reversed([*items]))
        self.room -= len(self.items) - before
        self.for_items.wake_all()

    def reopen(self) -> None:
        """Begin another epoch: the stages in front have ended, and had taken room for more items than they put."""
        self.ended = False
        self.room = self.capacity - len(self.items)

    def close(self) -> None:
        """Drop the items that are left."""
        self.items.clear()
        self.error = None


def size_of(item: Any) -> int:
    """Bytes of an item: of what has `nbytes`, as arrays do, or says its size to Python, as bytes, text and pandas'
    tables do; also in tuples, lists and dicts."""
    if type(item) is Marked:
        return size_of(item.item)
    if isinstance(item, NESTED):
        return sum([size_of(leaf) for leaf in leaves(item)])  # `map` would end at a StopIteration
    nbytes = getattr(item, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(item, 0)


def _about(item: Any) -> float:
    """As `size_of`, estimated from some parts where there are many: a million take half a second."""
    if type(item) is Marked:
        item = item.item
    if isinstance(item, dict):
        item = [*item.values()]
    if not isinstance(item, list | tuple):
        return size_of(item)
    some = item[:: len(item) // WEIGHED + 1]
    return sum(map(_about, some)) * len(item) / max(len(some), 1)


@dataclass(slots=True, eq=False)
class WaitQueue:
    """Coroutines that wait for a change, and are woken one at a time. A waiter that wakes looks again.

    Theory of operation. Each waiter has a future of its own, in a deque. A wake-up takes the first future out and gives
    it its result. So a future in the deque belongs to a waiter that nobody has woken yet, or to one that was cancelled
    and has not run since: a wake-up passes over it. A waiter that was woken, and then cancelled before it ran, hands
    its wake-up on. So no wake-up is lost, and each reaches a waiter.

    A wake-up is a hint and gives nothing: before the waiter runs, somebody else may take the item or the room. So a
    waiter looks again, in a loop.

    Alternatives. `asyncio.Condition` has a lock, which one thread does not need. `asyncio.Semaphore` has a count, which
    would repeat the length of the deque of items. A memory object stream of anyio, into which a None is sent per
    wake-up, was used before: it delivers to waiters that were cancelled, so it needed counters beside it.
    """

    waiters: deque[asyncio.Future[None]] = field(default_factory=deque)  # those that nobody has woken yet
    _inside: int = 0  # with those that were woken and have not run yet
    _seconds: float = 0.0  # for which they have waited, added up, less `_inside` times the present time

    async def wait(self) -> None:
        """Wait until it is woken. Always passes through the event loop."""
        future = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        self._inside += 1
        self._seconds -= perf_counter()
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.wake()  # this waiter was woken, and was cancelled: hand it on
            elif future in self.waiters:
                self.waiters.remove(future)
            raise
        finally:
            self._inside -= 1
            self._seconds += perf_counter()

    def wake(self) -> None:
        """Wake the first, if anybody waits."""
        while self.waiters:
            future = self.waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake everyone."""
        while self.waiters:
            self.wake()

    def seconds(self, now: float) -> float:
        """Seconds for which coroutines have waited here, added up."""
        return self._seconds + self._inside * now


class Stage:
    """The base of all stages."""

    def __init__(self, name: str, source: Link, out: Link, workers: int = 1, *, ordered: bool = True) -> None:
        self.name = name
        self.source = source
        self.out = out
        self.workers = out.makers = workers
        self.ordered = ordered
        self.epoch = 0
        self.skip: Position = Position()  # what counted when the block was opened
        self.skipped: int = 0  # items that it left out for an error
        self.failures: deque[str] = deque(maxlen=16)  # of the last of these
        self.held = 0  # items that it keeps besides those that have room in `out`
        self.closing: bool = False  # whether it is closing what it reads
        self.abandoned: bool = False  # whether nobody wants its output any more
        self.error: BaseException | None = None
        self.failed_at: Origin = ()
        self.failed_on: str = ""  # the item there, if it is brief
        self.started: float = perf_counter()
        self.ended: float = inf
        self.seconds: float | None = None  # of work, where its threads measure it

    async def work(self) -> None:
        """Run to the end of the output. Whatever ends it is told to the next stage, which would wait for it."""
        try:
            await self.run()
        except BaseException as error:
            self.fail((), _alone(error))
            self._finish()
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        else:
            self._finish()

    async def run(self) -> None:
        """Work until there is no more input. Raises nothing of its own: an error ends the output.

        Called again, after a clean end, for another epoch of a `repeat`.
        """
        raise NotImplementedError

    async def ready(self, count: int = 1) -> bool:
        """Wait for room, and take it, and for an item, or for several as `Link.arrived` does. False if it takes no more
        items."""
        if self.error is not None:
            return False
        if self.out.room > 0:  # `try_reserve`, written out
            self.out.room -= 1
        else:
            await self.out.reserve()
        if self.source.items or await self.source.arrived(count):
            return self.error is None
        self.out.unreserve()
        return False

    def stop(self) -> None:
        """Nobody wants its output any more: begin no more work."""
        self.abandoned = True

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        """Take no more items. The first error counts."""
        if self.error is None:
            self.error, self.failed_at, self.failed_on = error, origin, given
            self.source.end(error)  # also where another epoch would follow
            self.out.lift_bound()

    def pass_on(self, origin: Origin, item: Any) -> None:
        """Put an item that the stage is done with. The next stage may not be able to tell its size."""
        try:
            self.out.put(origin, item)
        except BaseException as error:
            self.fail(origin, error, brief(item))

    def figures(self, now: float) -> tuple[Any, ...]:
        """The fields of its `StageStatistics`, in order."""
        out, seconds = self.out, min(now, self.ended) - self.started
        waits = self.source.for_items.seconds(now), out.for_room.seconds(now)
        busy = self.seconds
        if busy is None:  # all time in which its workers have not waited
            busy = max(0.0, self.workers * seconds - sum(waits))
        rate = 1 / seconds if seconds > 0 else 0.0
        made = out.count, busy, *waits, out.count * rate, int(out.count * out.weight * rate), busy / max(out.count, 1)
        return self.name, self.workers, out.capacity + self.held, *made, self.skipped, tuple(self.failures)

    def _finish(self) -> None:
        """There will be no more output."""
        self.ended = perf_counter()
        self.out.end(self.source.error if self.error is None else self._noted(self.error))

    def _noted(self, error: BaseException) -> BaseException:
        """Add a note to an exception for the consumer: the stage and the item."""
        given = f": {self.failed_on}" if self.failed_on else ""
        where = f", at {describe(self.failed_at)}" if self.failed_at != () else ""
        return noted(error, f"raised in the pipeline's stage {self.name}{where}{given}")


def _alone(error: BaseException) -> BaseException:
    """The error, or the first of several workers', out of groups of its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
