"""The kinds of sources, and which of their items are read in which order."""

from __future__ import annotations

import inspect
import operator
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._arguments import TABLE_TO_ROWS, check_plain, is_table
from ...errors import add_note, notes_of

_END = object()  # in place of an item
_IN_MEMORY = (list, tuple, range, np.ndarray)


@dataclass(frozen=True)
class Shard:
    """A share of the items: every `count`-th, beginning with `index`."""

    index: int
    count: int
    drop_last: bool

    @property
    def sure(self) -> int:
        """The place in each row of `count` items up to which the row must be there, before the share gives its item."""
        return self.count - 1 if self.drop_last else self.index

    def of(self, numbers: range) -> range:
        """The numbers of its items, out of these."""
        end = len(numbers) - len(numbers) % self.count if self.drop_last else len(numbers)
        return numbers[self.index : end : self.count]


class Arranged:
    """Items of a source in an order: `source[order[number]]` for some of the numbers from 0."""

    def __init__(self, source: Any, order: Any, shards: Sequence[Shard]) -> None:
        self.source = source
        self.order = order
        self._numbers = range(len(order))
        for shard in shards:
            self._numbers = shard.of(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Any:
        return self.source[self._index(number)]

    def _index(self, number: int) -> int:
        found = self.order[self._numbers[number]]
        several = isinstance(found, np.ndarray) and found.ndim
        if several or isinstance(found, bool | np.bool_) or not hasattr(type(found), "__index__"):
            told = f"order= holds indices of items, not {type(found).__name__}: batches are made by `.batch(size)`"
            raise TypeError(told)  # booleans would be taken for 0 and 1
        return operator.index(found)

    def place(self, number: int) -> str:
        """Where an item stands in the source."""
        return f"index {self._index(number)}"


class Strided:
    """The share of items that are read in a row."""

    def __init__(self, iterable: Any, shard: Shard) -> None:
        self.iterable = iterable
        self.shard = shard

    def __len__(self) -> int:
        return len(self.shard.of(range(len(self.iterable))))

    def place(self, number: int) -> str:
        """The name of an item by its number in the share."""
        return f"item {self.shard.index + number * self.shard.count} of the shared items"

    def __iter__(self) -> Iterator[Any]:
        shard, iterator, mine = self.shard, iter(self.iterable), None
        try:
            for number, item in enumerate(iterator):
                if number % shard.count == shard.index:
                    mine = item
                if number % shard.count == shard.sure:
                    yield mine
        finally:
            if callable(close := getattr(iterator, "close", None)):
                close()


class AsyncStrided(Strided):
    """A share of an async iterable."""

    __iter__: None = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[Any]:
        shard, iterator, mine, number = self.shard, aiter(self.iterable), None, 0
        try:
            async for item in iterator:
                if number % shard.count == shard.index:
                    mine = item
                if number % shard.count == shard.sure:
                    yield mine
                number += 1
        finally:
            await close_later(iterator)


class Zipped:
    """Several sources, read in step: a tuple of an item of each. An exception has a note of the one that raised it."""

    def __init__(self, sources: Sequence[Any], strict: bool) -> None:
        self.sources = sources
        self.strict = strict

    def __len__(self) -> int:
        lengths = [len(source) for source in self.sources]
        if self.strict and len({*lengths}) > 1:
            raise ValueError(f"zipped sources must have equally many items, not {', '.join(map(str, lengths))}")
        return min(lengths)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        opened, iterators = list[Any](), []
        try:
            for place, source in enumerate(self.sources):
                opened.append(_in_a_row(source))
                iterators.append(self._read(opened[-1], place))
            yield from zip(*iterators, strict=self.strict)
        finally:
            _close_all(opened)

    def _read(self, iterator: Iterator[Any], place: int) -> Iterator[Any]:
        try:
            for item in iterator:  # noqa: UP028  # `yield from` would close it, too
                yield item
        except Exception as error:
            self._note(error, place)
            raise

    def _note(self, error: Exception, place: int) -> None:
        """Say which of the sources raised an exception."""
        source = self.sources[place]
        note = f"raised by zipped source {place + 1} of {len(self.sources)}, of type {type(source).__name__}"
        if not isinstance(source, Zipped) and note not in notes_of(error):  # a user may raise the same again
            add_note(error, note)


class ZippedMap(Zipped):
    """Several sources that are read by index, in step."""

    __iter__: None = None  # type: ignore[assignment]

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if number < 0:  # from the end of the shortest
            number = range(len(self))[number]
        items: list[Any] = []
        try:
            for source in self.sources:
                items.append(source[number])
        except Exception as error:
            self._note(error, len(items))
            raise
        return tuple(items)


class AsyncZipped(Zipped):
    """Several async iterables, and sources in memory, in step."""

    __iter__: None = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[tuple[Any, ...]]:
        iterators = list[Any]()
        try:
            for source in self.sources:
                iterators.append(aiter(source) if hasattr(source, "__aiter__") else _later(source))
            while True:
                items: list[Any] = []
                try:
                    for iterator in iterators:
                        items.append(await anext(iterator, _END))
                        if items[-1] is _END and not self.strict:  # the next item of another may never come
                            return
                except Exception as error:
                    self._note(error, len(items))
                    raise
                if any(item is _END for item in items):
                    break
                yield tuple(items)
            if any(item is not _END for item in items):
                raise ValueError("zipped sources must have equally many items, and one ended before the others")
        finally:
            await _close_all_later([*iterators])


async def _later(source: Any) -> AsyncIterator[Any]:
    """The items of a source in memory, as an async iterator."""
    for item in _in_a_row(source):
        yield item


class ZippedOfEpoch:
    """A function of the epoch's number that zips sources, of which one is such a function."""

    def __init__(self, sources: Sequence[Any], strict: bool) -> None:
        self.sources = sources
        self._strict = strict

    def __call__(self, epoch: int) -> Any:
        return zipped([of_epoch(source, epoch, None) for source in self.sources], self._strict)


def _in_a_row(source: Any) -> Iterator[Any]:
    """An iterator over a source. (`iter` of what is read by index would take an IndexError from inside for the end, and
    ignore the length.)"""
    return (source[number] for number in range(len(source))) if is_map(source) else iter(source)


def _close_all(iterators: list[Any]) -> None:
    """Close those that can be closed, the last first, whatever they raise. An `ExitStack` would write to exceptions,
    which some refuse."""
    if iterators:
        try:
            if callable(close := getattr(iterators.pop(), "close", None)):
                close()
        finally:
            _close_all(iterators)


async def _close_all_later(iterators: list[Any]) -> None:
    """As `_close_all`, for async iterators."""
    if iterators:
        try:
            await close_later(iterators.pop())
        finally:
            await _close_all_later(iterators)


async def close_later(iterator: Any) -> None:
    """Close an async iterator, if it can be closed."""
    if callable(aclose := getattr(iterator, "aclose", None)) and inspect.isawaitable(closing := aclose()):
        await closing


def zipped(sources: Sequence[Any], strict: bool) -> Any:
    """One source made of several; a function of the epoch, if one of them is such. Raises TypeError if they cannot be
    read in step."""
    if not all(map(is_iterable, sources)):
        return ZippedOfEpoch(sources, strict)
    if all(is_in_memory(source) or is_map(source) for source in sources):
        return ZippedMap(sources, strict)
    if not any(hasattr(source, "__aiter__") for source in sources):
        return Zipped(sources, strict)
    if blocking := [it for it in unzipped(sources) if not (hasattr(it, "__aiter__") or is_in_memory(it))]:
        raise TypeError(
            f"{type(blocking[0]).__name__} may block, and an async source is read on the event loop: zip that with"
            " async iterables, lists and arrays alone"
        )
    return AsyncZipped(sources, strict)


def unzipped(sources: Sequence[Any]) -> list[Any]:
    """The sources that a user gave, taken out of zipped ones."""
    given: list[Any] = []
    for source in sources:
        given += unzipped(source.sources) if isinstance(source, Zipped | ZippedOfEpoch) else [source]
    return given


def of_epoch(source: Any, epoch: int, order: Any) -> Any:
    """A source; of a function of the epoch, what it returns. Raises TypeError if that cannot be read."""
    if is_iterable(source):
        return source
    made = source(epoch)
    if not is_iterable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise TypeError(f"the pipeline's source returned a {type(made).__name__}, which is not iterable")
    check_rows(made, order)
    return made


def arranged(source: Any, order: Any, shards: Sequence[Shard], epoch: int) -> Any:
    """The items that an epoch reads. Raises TypeError if the source or the order does not fit."""
    if order is None and (not shards or is_in_memory(source) or is_map(source)):
        return Arranged(source, range(len(source)), shards) if shards else source
    if order is None:
        for shard in shards:
            source = (AsyncStrided if hasattr(source, "__aiter__") else Strided)(source, shard)
        return source
    source = by_index(source)
    if isinstance(source, Zipped):
        len(source)  # raises if its sources differ in length, and are not to
    found = order(epoch) if callable(order) else order
    if _is_indexed(found):
        check_order(found)
    if not _is_indexed(found) or hasattr(found, "iloc"):
        found = list(found)  # of a sampler, or of a table's column, which is read by its labels
    return Arranged(source, found, shards)


def check_rows(source: Any, order: Any) -> None:
    """Raise TypeError for what does not iterate over its items: tables give columns, other collections of named arrays
    names. And for a table's column as a source with an order, which pandas reads by label."""
    kind = type(source).__name__
    if is_table(source):
        raise TypeError(f"{kind} iterates over its columns: give its rows, {TABLE_TO_ROWS}")
    if order is None and isinstance(source, Mapping) and not isinstance(source, dict):  # as a file of named arrays
        raise TypeError(f"{kind} iterates over its names: give one of its arrays, or `list(it)` for the names")
    if order is not None and hasattr(source, "iloc"):
        raise TypeError(f"order= holds places, and {kind} is read by its labels: give `to_numpy()` of it")


def by_index(source: Any) -> Any:
    """A source whose items are read by index. Raises TypeError if it, or one that is zipped in it, has none."""
    if isinstance(source, Zipped):
        return ZippedMap([by_index(one) for one in source.sources], source.strict)
    if not _is_indexed(source):
        raise TypeError(
            "order= takes the items by index: the source needs `__getitem__` and `__len__`, as PyTorch's datasets have"
            f" them, which {type(source).__name__} has not; give others a `.shuffle(buffer_size, seed=0)`"
        )
    return source


def check_order(order: Any) -> None:
    check_plain("order=", order)
    if callable(order) or (is_iterable(order) and not is_iterator(order)):
        if isinstance(order, np.ndarray) and (order.ndim != 1 or order.dtype.kind not in "iu"):
            raise TypeError(f"order= is one axis of integers, not {order.ndim} of {order.dtype}: see `np.flatnonzero`")
        if is_table(order):
            raise TypeError(f"order= is one axis of integers, not a table ({type(order).__name__}): give its column")
        if isinstance(order, Mapping):
            raise TypeError(f"order= is one axis of integers, not a {type(order).__name__}: give its values, in a list")
        return
    raise TypeError(
        "order= is a sequence of indices, a sampler that can be iterated over again, or a function of the epoch's"
        f" number that returns one, not {type(order).__name__}"
    )


def is_iterable(source: Any) -> bool:
    """Whether it can be iterated, also asynchronously, or only by `__getitem__`."""
    return hasattr(source, "__iter__") or hasattr(source, "__aiter__") or hasattr(source, "__getitem__")


def is_iterator(source: Any) -> bool:
    """Whether it can be read only once."""
    return any(hasattr(one, "__next__") or hasattr(one, "__anext__") for one in unzipped([source]))


def is_in_memory(source: Any) -> bool:
    """Whether its items are in memory, by index."""
    if isinstance(source, Arranged):
        return is_in_memory(source.source) and is_in_memory(source.order)
    if isinstance(source, ZippedMap):
        return all(map(is_in_memory, source.sources))
    return type(source) in _IN_MEMORY


def is_map(source: Any) -> bool:
    """Whether it is read by index: a plain iteration would do so too, and would end at any IndexError."""
    return getattr(type(source), "__iter__", None) in (None, Sequence.__iter__) and _is_indexed(source)


def _is_indexed(source: Any) -> bool:
    return hasattr(source, "__len__") and hasattr(source, "__getitem__")
