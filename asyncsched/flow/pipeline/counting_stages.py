"""The stages that count: `unbatch`, which makes several items of one, and `take` where the source cannot count for it.

Theory of operation. A position has the numbers of the source's items. Two things are not told by these: which parts of
one item were received, and how many items a filter let through. So both stages number what they give, as places in a
group, and the position keeps for each group which places were received (`Part`). A resumed stage goes by that: it
leaves out the parts that were received, or gives so many items less.

Behind a filter, a shuffle or an `unbatch` nobody knows how many items of the source a `take` needs. So it tells the
source when it has enough. Items that were read by then come to it all the same, and count as received.

The stage that gives items in a random order, chosen among those that it holds.

Theory of operation. It holds the first `size` items that it has not given, in the order in which they came, and gives
one of them. The choice is a function of the seed and of the held items (the number of the newest, and how many they
are), and of nothing else. So the order of all items to come follows from *which* items were given. A pipeline knows
that anyway (`Position`). A resumed epoch, whose source leaves out the given items, thus goes on in the order of an
unbroken one: nothing is saved for it, and nothing is computed again. At each step either the newest item is another,
or, at the end, the items are fewer. So each step draws another number.

Alternatives. A choice by how many items were given needs that count in the position, since a filter may stand before
it. Most shuffles of this kind put the next item in the place of the one that was given. That saves moving some pointers
(1 us for 10,000 items), but then an item's place depends on all steps before, and a position would have to hold the
places. Behind a second shuffle the received items are not the first that this one gave, so its held items cannot be
told from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from ..._arguments import TABLE_TO_ROWS, is_table
from .marks import marked
from .position import EPOCH, Part, Position, brief, last_of, newest_of
from .stages import DROPPED, Numbered, Stage

_NONE = Position()


class UnbatchStage(Stage):
    """Gives the parts of each item, on the event loop."""

    async def run(self) -> None:
        out = self.out
        part_of: Any = None
        try:
            while await self.ready():
                origin, item = self.source.take()
                try:
                    count, part_of = parts_of(item)
                except BaseException as error:
                    self.fail(origin, error, brief(item))
                    return
                del item
                key = last_of(origin)
                received, has_room = self.skip.parts.get(key, _NONE), True
                for place in range(count):
                    if received.has(place):
                        continue
                    if not has_room and not out.try_reserve():
                        await out.reserve()
                    if self.error is not None:
                        return
                    try:
                        out.put(Part(origin, key, range(place, place + 1), count), marked(part_of(place), self.name))
                    except BaseException as error:  # of a class of the user's, or a file that is read by rows
                        self.fail(origin, error)
                        return
                    has_room = False
                part_of = None  # while it waits for an item, it holds none
                if has_room:
                    out.put(origin, DROPPED)
        finally:
            part_of = None  # a cancellation keeps this frame, until the garbage collector comes


class TakeStage(Stage):
    """Gives the first `most` items of an epoch, or of a whole block if it stands behind the `repeat`."""

    def __init__(self, most: int, number: int, *args: Any) -> None:
        super().__init__(*args)
        self._most = most
        self._number = number  # of the stage, from 1
        self._epoch = 0  # number in the block
        self.of_block: bool = True
        self.enough: Callable[[], None] = lambda: None  # has the source read no more

    async def run(self) -> None:
        out, source = self.out, self.source
        self._epoch += 1
        key = -self._number if self.of_block else self._epoch * EPOCH - self._number
        received = self.skip.parts.get(key, _NONE)
        place, left = 0, self._most - received.count
        while left > 0 and await self.ready():
            ((origin, item),) = source.take_some(1)
            while received.has(place):
                place += 1
            out.put(Part(origin, key, range(place, place + 1), 0), item)
            del item  # while it waits, it holds nothing
            place, left = place + 1, left - 1
        if left > 0:
            return
        self.enough()
        if self.of_block:  # else the stages are used again, and an error of theirs counts
            out.end()
        while await source.arrived():
            out.drop(source.take_some(1)[0][0])
        if self.of_block:
            source.error = None  # of an item that nobody asked for


def parts_of(item: Any) -> tuple[int, Callable[[int], Any]]:
    """How many items were batched in this one, and a function that gives them: what `collate` undoes.

    >>> count, part_of = parts_of({"x": [1, 2], "y": ["a", "b"]})
    >>> [part_of(place) for place in range(count)]
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
    """
    if isinstance(item, Mapping):
        count, values_of = _in_step([*item.values()])
        return count, lambda place: dict(zip(item, values_of(place), strict=True))
    if isinstance(item, tuple):
        count, values_of = _in_step(item)
        named = hasattr(item, "_fields")
        return count, lambda place: type(item)(*values_of(place)) if named else tuple(values_of(place))
    if is_table(item):
        raise TypeError(f"{type(item).__name__} is no batch of items, but a table: give its rows, {TABLE_TO_ROWS}")
    if isinstance(item, list) or getattr(item, "shape", None):
        return len(item), getattr(item, "iloc", item).__getitem__  # of pandas, whose columns are read by their labels
    raise TypeError(
        f"`.unbatch()` takes arrays, lists, and tuples and dicts of these, not {type(item).__name__}: with"
        " `.flat_map(fn)` a function gives the items"
    )


def _in_step(fields: Any) -> tuple[int, Callable[[int], list[Any]]]:
    """The same of several batches of as many items."""
    found = [parts_of(field) for field in fields]
    counts = {count for count, _ in found}
    if len(counts) > 1:
        raise ValueError(f"the parts of an item are to be as many in each of its fields, not {sorted(counts)}")
    return max(counts, default=0), lambda place: [part_of(place) for _, part_of in found]


class ShuffleStage(Stage):
    """Gives one of `size` items, on the event loop."""

    def __init__(self, size: int, seed: int, *args: Any) -> None:
        super().__init__(*args)
        self.held = size
        self._seed = seed
        self._items: list[Numbered] = []

    async def run(self) -> None:
        items, out = self._items, self.out
        try:
            while True:
                if not out.try_reserve():
                    await out.reserve()
                if not await self._filled():
                    break
                behind, newest = newest_of(items[-1][0])
                out.put(*items.pop(choice(self._seed, self.epoch + behind, newest, len(items))))
        finally:
            items.clear()

    async def _filled(self) -> bool:
        """Whether there is an item to give: it holds `size` items, or no more come.

        After an error there is none, as no batch is given that is not full: a resumed epoch gives the items.
        """
        items, source = self._items, self.source
        while (lacking := self.held - len(items)) and (source.items or await source.arrived(lacking)):
            items += source.take_some(lacking)
        return bool(items) and (not lacking or source.error is None)


def choice(seed: int, epoch: int, newest: int, count: int) -> int:
    """A random number below `count`, the same for the same numbers on every machine.

    >>> [choice(0, 0, newest, 10) for newest in range(8)]
    [8, 9, 6, 6, 8, 6, 3, 5]
    """
    digest = blake2b(b"%d %d %d %d" % (seed, epoch, newest, count), digest_size=8).digest()
    return int.from_bytes(digest, "little") * count >> 64
