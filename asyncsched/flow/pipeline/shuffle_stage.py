"""The stage that gives items in a random order, chosen among those that it holds.

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

from hashlib import blake2b
from typing import Any

from .links import Numbered
from .position import newest_of
from .stages import Stage


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
            items.append(source.take_marked())
        return bool(items) and (not lacking or source.error is None)


def choice(seed: int, epoch: int, newest: int, count: int) -> int:
    """A random number below `count`, the same for the same numbers on every machine.

    >>> [choice(0, 0, newest, 10) for newest in range(8)]
    [8, 9, 6, 6, 8, 6, 3, 5]
    """
    digest = blake2b(b"%d %d %d %d" % (seed, epoch, newest, count), digest_size=8).digest()
    return int.from_bytes(digest, "little") * count >> 64
