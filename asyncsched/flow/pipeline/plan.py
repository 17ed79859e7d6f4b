"""The parts of a pipeline, and how many items it gives."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from .order import Shard, arranged, is_iterable, of_epoch
from .position import EPOCH, Position
from .stages import Link, Stage

BUFFER: Final = 16  # finished items that may wait for the next stage: enough for several to share a step of the loop
IN_MEMORY: Final = 64  # as `BUFFER`, for a source in memory: its items take no more memory while they wait
_UNKNOWN = "the length of this pipeline is not known"


class StagePlan(NamedTuple):
    """The plan of a stage: its name, how many items it may have, and the function that makes it of a name and two
    links."""

    label: str
    capacity: int
    make: Callable[[str, Link, Link], Stage]
    # Of a number of items it gets, how many it makes; by default as many. Raises TypeError if that is not known.
    length: Callable[[int], int] = int
    # Of a number of items it makes, how many it needs for the first ones; by default as many. None: that is not known.
    needs: Callable[[int], int] | None = int
    most_bytes: int | None = None  # of the items that it may have
    shuffles: bool = False
    unbatches: bool = False


class Plan(NamedTuple):
    """A source and its stages."""

    source: Any
    buffer: tuple[int, int | None] | None = None  # items that may be read ahead of the first stage, and bytes
    order: Any = None
    shards: tuple[Shard, ...] = ()
    stages: tuple[StagePlan, ...] = ()
    epochs: int | None = 1  # that are read in one `open()`; None for no end
    repeated: int = 0  # how many of the stages stand before the `repeat`, and see each epoch end
    most: int = sys.maxsize  # items that are read in each epoch: enough for each `take`
    takes: tuple[tuple[int, int], ...] = ()  # behind how many of the stages each `take` stands, and of how many items

    def labels(self) -> list[str]:
        """The names of its parts, in order."""
        labels = [stage.label for stage in self.stages]
        if self.epochs != 1:
            labels.insert(self.repeated, "repeat" if self.epochs is None else f"repeat {self.epochs}")
        for place, count in reversed(self.takes):  # they stand before the `repeat`
            labels.insert(place, f"take {count}")
        return [f"shard {shard.index} of {shard.count}" for shard in self.shards] + labels

    def read(self, epoch: int) -> Any:
        """The source and order of an epoch, where they are functions of its number. Raises TypeError if the result
        cannot be read."""
        return arranged(of_epoch(self.source, epoch, self.order), self.order, self.shards, epoch)

    def readable(self, epoch: int) -> Any:
        """As `read`, but never calls a function that makes the source, which may block: then it raises TypeError."""
        if not is_iterable(self.source):
            raise TypeError(f"{_UNKNOWN}: a function of the epoch makes its source; in its block `len(items)` may be")
        return self.read(epoch)

    def length(self, iterable: Any, position: Position) -> int:
        """How many items this iterable gives from a position on, as if all epochs were as long as this one.

        Raises TypeError if that is not known.
        """
        if self.epochs is None:
            raise TypeError(f"{_UNKNOWN}: `repeat()` goes on for ever; `repeat(epochs)` does not")
        try:
            count = len(iterable)
        except TypeError as error:
            raise TypeError(f"{_UNKNOWN}: its source has none ({error})") from None
        count = min(count, self.most)
        now = position.now()
        received = Counter(number // EPOCH for number in now.ahead)
        received[0] += now.taken
        before, behind = self.stages[: self.repeated], self.stages[self.repeated :]
        whole = _through(before, count)
        total = whole * (self.epochs - now.epoch % self.epochs)
        total -= sum(whole - _through(before, max(0, count - taken)) for taken in received.values())
        return _through(behind, total)


def _through(stages: Iterable[StagePlan], count: int) -> int:
    """How many items these stages make of `count` items."""
    for stage in stages:
        count = stage.length(count)
    return count


def unknown_after(label: str, items: int) -> int:
    """The length behind a filter."""
    raise TypeError(f"{_UNKNOWN}: `{label}` decides as it goes which items it keeps")
