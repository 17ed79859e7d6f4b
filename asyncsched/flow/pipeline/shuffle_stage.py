"""The stage that gives items in a random order, chosen among those that it holds.

Theory of operation. It holds the first `size` items that it has not given, in the order in which they came, and gives
one of them: which one is a function of the seed and of what is held (the number of the newest item, and how many there
are), and of nothing else. So all that it will give follows from *which* items were given. A pipeline knows that anyway
(`Position`), and a resumed epoch, whose source leaves those out, goes on in the order of the unbroken one: nothing is
saved for it, and nothing is gone through again. The newest item is another at each step, until there are no more; then
they get fewer. So each step asks for another number.

Alternatives. A choice by how many were given needs that count in the position, since a filter may stand before it. To
put the next item in the place of the one that was given, as shuffles of this kind mostly do, saves moving some pointers
(1 us of 10,000 items). But where an item stands then depends on the way there, and a position would have to hold the
items' places. Behind a second shuffle the items that were received are not the first that this one gave, so what it
held cannot be told from them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from .links import Numbered
from .position import EPOCH, last_of
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
                behind, newest = divmod(last_of(items[-1][0]), EPOCH)
                out.put(*items.pop(choice(self._seed, self.epoch + behind, newest, len(items))))
        finally:
            items.clear()
        self.finish()

    async def _filled(self) -> bool:
        """Whether there is an item to give: all that are to be held are, or there are no more.

        After an error none is, as no batch is that is not full: a resumed epoch gives it in its turn.
        """
        items, source = self._items, self.source
        while (lacking := self.held - len(items)) and (source.items or await source.arrived(lacking)):
            items.append(source.take())
        return bool(items) and (not lacking or source.error is None)


def choice(seed: int, epoch: int, newest: int, count: int) -> int:
    """A random number below `count`, the same for the same numbers on every machine.

    >>> [choice(0, 0, newest, 10) for newest in range(8)]
    [8, 9, 6, 6, 8, 6, 3, 5]
    """
    digest = blake2b(b"%d %d %d %d" % (seed, epoch, newest, count), digest_size=8).digest()
    return int.from_bytes(digest, "little") * count >> 64
