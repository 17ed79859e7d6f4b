"""The numbers of the source's items of which an item was made, and which items the consumer has received, in which
epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

_NUMBERS = (int, float, np.integer)
_FIELDS, _TEXT = 4, 200  # most parts of a tuple, and most characters of a text: as of a path, not of a document

EPOCH = 1 << 48
"""The distance between the numbers of one epoch's items and those of the next, where `repeat` reads several epochs."""

Origin: TypeAlias = "int | Behind | tuple[Origin, ...]"
"""An item's number in the source, or the numbers of a whole batch, which may be nested."""


class Behind(NamedTuple):
    """The origin of an item in front of which others were dropped. They count as received when it is."""

    origin: Origin
    dropped: tuple[range, ...]


def numbers_of(origin: Origin) -> list[int]:
    """The numbers of the items of which an item was made, without those that were dropped in front of it.

    >>> numbers_of(((0, 1), Behind((4, 5), (range(2, 4),))))
    [0, 1, 4, 5]
    """
    if isinstance(origin, Behind):
        return numbers_of(origin.origin)
    return [origin] if isinstance(origin, int) else [number for part in origin for number in numbers_of(part)]


def last_of(origin: Origin) -> int:
    """The last of `numbers_of`. There must be one."""
    while not isinstance(origin, int):
        origin = origin.origin if isinstance(origin, Behind) else origin[-1]
    return origin


def spans_of(origin: Origin) -> Iterator[range]:
    """All numbers that go with an item, with those that were dropped in front of it.

    >>> [*spans_of((0, Behind(4, (range(2, 4),))))]
    [range(0, 1), range(2, 4), range(4, 5)]
    """
    if isinstance(origin, int):
        yield range(origin, origin + 1)
        return
    if isinstance(origin, Behind):
        yield from origin.dropped
        origin = (origin.origin,)
    for part in origin:
        yield from spans_of(part)


def joined(spans: Iterable[range]) -> list[range]:
    """
    >>> joined([range(4, 5), range(0, 2), range(2, 4), range(7, 9)])
    [range(0, 5), range(7, 9)]
    """
    found: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and found[-1].stop == span.start:
            found[-1] = range(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def describe(origin: Origin) -> str:
    """
    >>> describe((8, 9, 10, 11))
    'items 8 to 11 of the source'
    """
    if not (numbers := numbers_of(origin)):
        return "no item of the source"
    (before, first), (epoch, last) = divmod(min(numbers), EPOCH), divmod(max(numbers), EPOCH)
    if (before, first) == (epoch, last):
        return f"item {first} of the source"
    return f"items {first} to {last} of the source{', of the epoch behind' if before < epoch else ''}"


def brief(item: Any) -> str:
    """An item in a few words, where it is a path or an index, say, or a tuple of such; else nothing.

    >>> brief(("a.png", 3)), brief([0.5] * 1000)
    ("('a.png', 3)", '')
    """
    try:
        return repr(item) if _is_brief(item) else ""
    except BaseException:  # of the user's class: what is to be told is the error of the function
        return ""


def _is_brief(item: Any) -> bool:
    if isinstance(item, tuple):
        return len(item) <= _FIELDS and all(map(_is_brief, item))
    return isinstance(item, _NUMBERS) or (isinstance(item, str | os.PathLike) and len(os.fspath(item)) <= _TEXT)


@dataclass
class Position:
    """Which items of the source the consumer is done with, in which epoch, and which one it has."""

    epoch: int = 0
    taken: int = 0
    """All items below this number count."""
    ahead: set[int] = field(default_factory=set)
    """Other items that count: results that came out of order."""
    over: dict[int, int] = field(default_factory=dict)
    """More items that count: from those left out at the end of one epoch, over the gap behind it, to the first
    of another."""
    in_hand: Origin | None = None
    """Of the item that the consumer has: it has not asked for another."""

    def put_down(self) -> None:
        """Count the item in hand."""
        if self.in_hand is not None:
            self.receive(self.in_hand)
            self.in_hand = None

    def receive(self, origin: Origin) -> None:
        """Count an item that was made of these."""
        for span in spans_of(origin):
            if span.start <= self.taken:
                self.taken = max(self.taken, span.stop)
            else:
                if (behind := span.stop // EPOCH * EPOCH) > span.start:
                    self.over[span.start] = behind
                self.ahead.update(range(max(span.start, behind), span.stop))
        while True:
            if self.taken in self.ahead:
                self.ahead.remove(self.taken)
                self.taken += 1
            elif self.taken in self.over:
                self.taken = self.over.pop(self.taken)
            else:
                return

    @property
    def begun(self) -> bool:
        """Whether any item of the epoch counts."""
        return bool(self.taken or self.ahead)

    def has(self, number: int) -> bool:
        """Whether the item of this number counts."""
        return number < self.taken or number in self.ahead

    def copy(self) -> Position:
        """A copy of its own."""
        return replace(self, ahead=set(self.ahead), over=dict(self.over))

    def now(self) -> Position:
        """The same, counted from the beginning of its epoch."""
        behind, taken = divmod(self.taken, EPOCH)
        ahead = {number - behind * EPOCH for number in self.ahead if number > self.taken}
        return Position(self.epoch + behind, taken, ahead)

    def state(self) -> dict[str, Any]:
        now = self.now()
        return {"epoch": now.epoch, "taken": now.taken, "ahead": sorted(now.ahead)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Position:
        """The position of which this is the `state()`. Raises ValueError for anything else."""
        try:
            epoch, taken, ahead = state["epoch"], state["taken"], state["ahead"]
            numbers = [epoch, taken, *ahead]
        except (KeyError, TypeError):
            raise ValueError(f"not a state of a pipeline: {state!r}; load what `state_dict()` gave") from None
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"the state of a pipeline is made of counts, not {state!r}: load what `state_dict()` gave")
        return cls(epoch, taken, set(ahead))
