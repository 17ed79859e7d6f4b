"""Where a pipeline is: which of the source's items count as received, in which epoch.

An item's *origin* says of which of the source's items it was made. A `Position` says which items count. `Progress`
keeps the position of a pipeline, and says which one a state has that is saved now.

Theory of operation. A training must lose no item and repeat none. But between the arrival of an item and the step that
uses it a loop may be cancelled: where it waits for a window, for a `put`, for a loss. So there are two rules:

1. *A loop that steps an optimiser.* An item counts when a commit was issued behind it, and that commit moved the
   parameters. Each commit is kept, with the position at which it was issued, until it has decided: a commit that was
   cancelled leaves the position of the one before. A commit that is pending counts: `save` writes what it gives.
2. *Any other loop.* An item counts when it is received, since nothing tells when it was used. But it does not if the
   loop was cut short with the item in hand: by an exception that leaves the block or is being handled, or by a
   cancellation.

The end of an epoch, and the beginning of another, count for all items of the epoch behind it.

Gradients are a sign that a step will come, if there is an optimiser at all: the batches that they are accumulated from
count with the step. An optimiser belongs to the loop if the asyncio task that steps it received the last item, or
opened the epoch. If another task steps, items were handed on, and may be in a queue: then the second rule holds.

Alternatives. An item could count when the next one is asked for. Then a loop that saves in its body, behind the step,
would do this step twice. The window could count it. But a loop may have none, and may wait in other places.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..._core.endings import Commit
from ..._core.failure import copied
from ...errors import add_note, notes_of, passable
from .order import is_in_memory, is_map

_NUMBERS = (int, float, np.integer)
_FIELDS, _TEXT = 4, 200  # most parts of a tuple, and most characters of a text: as of a path, not of a document

EPOCH = 1 << 48
"""The distance between the numbers of one epoch's items and those of the next, where `repeat` reads several epochs."""

Origin: TypeAlias = "int | Behind | Part | tuple[Origin, ...]"
"""An item's number in the source, or the numbers of a whole batch, which may be nested."""


class Behind(NamedTuple):
    """The origin of an item in front of which others were dropped. They count as received when it is."""

    origin: Origin
    dropped: tuple[Span, ...]


class Part(NamedTuple):
    """The origin of items that a stage has counted, and how it counts them.

    An `unbatch` makes `of` parts of one item. That item counts as received when all its parts are: a resumed pipeline
    reads it again, and leaves out the parts that were received. A `take` counts what it gives, so that a resumed one
    gives the rest. Its items count one by one, and `of` is 0.
    """

    origin: Origin
    key: int  # of the group: the last number of an `unbatch`'s item; for a `take` one that no item has
    places: range  # in the group
    of: int


Span: TypeAlias = "range | Part"
"""Numbers of items, or places in a group, that lie side by side."""


def numbers_of(origin: Origin) -> list[int]:
    """The numbers of the items of which an item was made, without those that were dropped in front of it.

    >>> numbers_of(((0, 1), Behind((4, 5), (range(2, 4),))))
    [0, 1, 4, 5]
    """
    if isinstance(origin, Behind | Part):
        return numbers_of(origin.origin)
    return [origin] if isinstance(origin, int) else [number for part in origin for number in numbers_of(part)]


def last_of(origin: Origin) -> int:
    """The last of `numbers_of`. There must be one."""
    return _last_of(origin)[0]


def newest_of(origin: Origin) -> tuple[int, int]:
    """The epoch's number in the block, and a number that no other item of the epoch has.

    >>> newest_of(3), newest_of(Part(3, 3, range(1, 2), 5))
    ((0, 3), (0, 281474976710659))
    """
    if isinstance(origin, int):  # most often
        return divmod(origin, EPOCH)
    number, place = _last_of(origin)
    epoch, number = divmod(number, EPOCH)
    return epoch, number + place * EPOCH


def _last_of(origin: Origin) -> tuple[int, int]:
    """The last number, and the place among the parts of its item."""
    place = 0
    while not isinstance(origin, int):
        if isinstance(origin, Part) and origin.of:
            place = origin.places.start
        origin = origin.origin if isinstance(origin, Behind | Part) else origin[-1]
    return origin, place


def spans_of(origin: Origin) -> Iterator[Span]:
    """All numbers that go with an item, with those that were dropped in front of it.

    >>> [*spans_of((0, 1, Behind(4, (range(2, 4),))))]
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    if isinstance(origin, int):
        yield range(origin, origin + 1)
        return
    if isinstance(origin, Part):
        yield origin if origin.of else origin._replace(origin=())
        if origin.of:
            return
        origin = (origin.origin,)
    elif isinstance(origin, Behind):
        yield from origin.dropped
        origin = (origin.origin,)
    start = stop = -1  # of numbers that lie side by side, as most of a batch do
    for part in origin:
        if part == stop:
            stop += 1
            continue
        if start < stop:
            yield range(start, stop)
        if isinstance(part, int):
            start, stop = part, part + 1
        else:
            start = stop = -1
            yield from spans_of(part)
    if start < stop:
        yield range(start, stop)


def beside(first: Span, then: Span) -> Span | None:
    """Two spans as one, if the second begins where the first ends.

    >>> beside(range(0, 2), range(2, 4)), beside(Part(7, 7, range(0, 1), 3), Part(7, 7, range(1, 2), 3))
    (range(0, 4), Part(origin=7, key=7, places=range(0, 2), of=3))
    """
    if isinstance(first, Part) or isinstance(then, Part):
        if not (isinstance(first, Part) and isinstance(then, Part)) or first.key != then.key:
            return None
        places = beside(first.places, then.places)
        return then._replace(places=places) if isinstance(places, range) else None
    return range(first.start, then.stop) if first.stop == then.start else None


def joined(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, with adjoining ones joined.

    >>> joined([range(4, 5), range(0, 2), range(2, 4), range(7, 9)])
    [range(0, 5), range(7, 9)]
    """
    found: list[Span] = []
    for span in sorted(spans, key=_in_order):
        if found and (both := beside(found[-1], span)) is not None:
            found[-1] = both
        else:
            found.append(span)
    return found


def _in_order(span: Span) -> tuple[bool, int, int]:
    return (True, span.key, span.places.start) if isinstance(span, Part) else (False, 0, span.start)


def describe(origin: Origin) -> str:
    """The source's items of which an item was made, in words.

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
    """An item as text, if that is short: of a path, a number, or a tuple of such. Else nothing.

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
    """Gaps behind epochs that count, with items dropped right before: from the first number there to the next epoch's.
    """
    parts: dict[int, Position] = field(default_factory=dict)
    """The places that count in groups of which not all count, by the key of the group."""
    in_hand: Origin | None = None
    """The origin of the item that the consumer has, until it asks for another."""

    def put_down(self) -> None:
        """Count the item in hand."""
        if self.in_hand is not None:
            self.receive(self.in_hand)
            self.in_hand = None

    def receive(self, origin: Origin) -> None:
        """Count an item with this origin."""
        for span in spans_of(origin):
            if isinstance(span, Part):
                self._receive_part(span)
            elif span.start <= self.taken:
                self.taken = max(self.taken, span.stop)
            else:
                if (behind := span.stop // EPOCH * EPOCH) > span.start:
                    self.over[span.start] = behind
                self.ahead.update(range(max(span.start, behind), span.stop))
        self._join()

    def _receive_part(self, part: Part) -> None:
        within = self.parts.setdefault(part.key, Position())
        if part.places.start <= within.taken:
            within.taken = max(within.taken, part.places.stop)
        else:
            within.ahead.update(part.places)
        within._join()
        if within.taken == part.of > 0:
            del self.parts[part.key]
            self.receive(part.origin)

    def _join(self) -> None:
        """Count in `taken` what adjoins it."""
        while True:
            if self.taken in self.ahead:
                self.ahead.remove(self.taken)
                self.taken += 1
            elif self.taken in self.over:
                self.taken = self.over.pop(self.taken)
            else:
                return

    @property
    def count(self) -> int:
        """How many items count."""
        return self.taken + len(self.ahead)

    def check(self, iterable: Any) -> None:
        """Raise ValueError if this is behind the end of a source that is read by index: it is of another pipeline."""
        now = self.now()
        received = max([now.taken, *[number + 1 for number in now.ahead if number < EPOCH]])
        if received and (is_in_memory(iterable) or is_map(iterable)) and received > (count := len(iterable)):
            raise ValueError(
                f"the loaded position is behind {received} items, and the source has {count}: load the `state_dict()`"
                " of a pipeline with the same source"
            )

    def reaches(self, first: int) -> bool:
        """Whether any item from this number on counts."""
        return self.taken > first or any(number >= first for number in (*self.ahead, *self.parts))

    def has(self, number: int) -> bool:
        """Whether the item of this number counts."""
        return number < self.taken or number in self.ahead

    def copy(self) -> Position:
        """A copy of its own."""
        parts = {key: within.copy() for key, within in self.parts.items()}
        return replace(self, ahead=set(self.ahead), over=dict(self.over), parts=parts)

    def now(self) -> Position:
        """This position, with numbers that begin with the epoch that it is in."""
        behind, taken = divmod(self.taken, EPOCH)
        ahead = {number - behind * EPOCH for number in self.ahead if number > self.taken}
        # Keys below 0 are of the whole block. Those of epochs that are over have no meaning any more.
        keys = {key: key if key < 0 else key - behind * EPOCH for key in self.parts}
        parts = {now: self.parts[key] for key, now in keys.items() if key < 0 or now >= 0}
        return Position(self.epoch + behind, taken, ahead, parts=parts)

    def state(self) -> dict[str, Any]:
        now = self.now()
        state: dict[str, Any] = {"epoch": now.epoch, "taken": now.taken, "ahead": sorted(now.ahead)}
        if now.parts:
            state["parts"] = [[key, within.taken, sorted(within.ahead)] for key, within in sorted(now.parts.items())]
        return state

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Position:
        """The position of which this is the `state()`. Raises ValueError for anything else."""
        try:
            epoch, taken, ahead = state["epoch"], state["taken"], state["ahead"]
            parts = {key: cls(0, first, {*others}) for key, first, others in state.get("parts", ())}
            numbers = [epoch, taken, *ahead, *[n for one in parts.values() for n in (one.taken, *one.ahead)]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(f"not a state of a pipeline: {state!r}; load what `state_dict()` gave") from None
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"the state of a pipeline is made of counts, not {state!r}: load what `state_dict()` gave")
        return cls(epoch, taken, set(ahead), parts=parts)


class Progress:
    """Where a pipeline is.

    Args:
        epochs: how many are read in one `open()`. While they are open, `position` is where the first of them begins.
        optimizers: those of the scheduler.
    """

    def __init__(self, epochs: int | None, optimizers: Collection[object] = ()) -> None:
        self._epochs = epochs
        self._optimizers = optimizers
        self.position: Position = Position()
        self.open: bool = False
        self.unread: bool = False  # an epoch was begun, and neither read to its end nor replaced by `load`
        self._opener = self._receiver = _Consumer(None)
        self.began: Position = Position()  # where the epoch did
        # Once the consumer has stepped an optimiser: what counts without the last commits, and with each of these.
        self._moved: Position | None = None
        self._commits: deque[tuple[Position, Commit]] = deque()

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a position that was saved."""
        self.must_rest()
        self.position, self.unread = Position.of(state), False
        self._moved = None
        self._commits.clear()

    def state(self) -> dict[str, Any]:
        """The position to save now."""
        self._settle()
        if self._moved is None:
            return (self.position if self._cut_short(sys.exception()) else self.received()).state()
        return [self._moved, *[one for one, commit in self._commits if commit.decision is not False]][-1].state()

    def received(self) -> Position:
        """A copy of the position, with the item in hand."""
        position = self.position.copy()
        position.put_down()
        return position

    def next(self) -> Position:
        """Where the next epoch begins."""
        if not self.unread:
            return self.position
        epochs = self._epochs or 1
        return Position((self.received().now().epoch // epochs + 1) * epochs)

    def begin(self) -> Position:
        """An epoch is opened. Returns where it begins."""
        self.finish()
        self.open = True
        self._opener = self._receiver = _Consumer(asyncio.current_task())
        self.began = self.position.copy()
        return self.position

    def asked(self) -> None:
        """An item is asked for: the first, or one that is not there yet. The one in hand counts."""
        self.position.put_down()
        task = asyncio.current_task()
        if self._receiver.task() is not task:
            self._receiver = _Consumer(task)
        elif task is not None:
            self._receiver.cancellations = task.cancelling()

    def finish(self) -> None:
        """This epoch is over. The next one is another."""
        self.position, self.unread = self.next(), False
        if self._moved is not None:
            self._settle()
            if self._commits:
                self._commits[-1] = self.position.copy(), self._commits[-1][1]
            else:
                self._moved = self.position.copy()

    def close(self, error: BaseException | None) -> None:
        """The block is left."""
        if not self._cut_short(error):
            self.position = self.received()
        self.position.in_hand, self.open = None, False
        self._opener = self._receiver = _Consumer(None)

    def must_rest(self) -> None:
        if self.open:
            raise RuntimeError("an epoch of this pipeline is open: leave its block first, or make another pipeline")

    def learned(self) -> None:
        """Somebody has issued gradients. If there is an optimiser, items count with its step from now on."""
        if self._moved is None and self._optimizers and self._is_here():
            self._moved = self.began

    def stepped(self, commit: Commit) -> None:
        """Somebody's optimiser has issued this commit."""
        if self._is_here():
            self._settle()
            self._moved = self._moved or self.began
            self._commits.append((self.received(), commit))

    def _is_here(self) -> bool:
        return asyncio.current_task() in (self._opener.task(), self._receiver.task())

    def _settle(self) -> None:
        """Take in what commits have decided, in order."""
        while self._commits and self._commits[0][1].decision is not None:
            position, commit = self._commits.popleft()
            if commit.decision:
                self._moved = position

    def _cut_short(self, error: BaseException | None) -> bool:
        """Whether the consumer has an item in hand, and fails with this error, or was cancelled. A generator that is
        closed does not fail: whoever reads it has done `break`."""
        if self.position.in_hand is None:
            return False
        failed = error is not None and not isinstance(error, GeneratorExit)
        return failed or self._opener.was_cancelled() or self._receiver.was_cancelled()


class _Consumer:
    """An asyncio task that takes items. Held weakly, since a task that has ended holds its result."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.task: Callable[[], asyncio.Task[Any] | None] = (lambda: None) if task is None else weakref.ref(task)
        self.cancellations: int = 0 if task is None else task.cancelling()  # when it asked for an item

    def was_cancelled(self) -> bool:
        """Whether it was cancelled since then."""
        task = self.task()
        return task is not None and task.cancelling() > self.cancellations


def noted(error: BaseException, note: str) -> BaseException:
    """A copy of an exception for the consumer, with a note: a user may raise the same again in each epoch."""
    error = passable(error, "the function raised")
    copy = copied(error, error.__traceback__, error.__context__, notes_of(error))
    if note not in notes_of(copy):  # it cannot be copied, and has it
        add_note(copy, note)
    return copy
