"""The sources of a pipeline's items.

A list, tuple, range or array is read on the event loop, since indexing it cannot block. Any other iterable may open
files or compute, so a thread of its own reads it, and gets room for many items at a time. A source with a length and
items by index, such as PyTorch's datasets, is read by index in such a thread: `iter` would take an IndexError from
inside for its end. Async iterables are read on the loop. Items are numbered from 0 in each epoch; a resumed epoch
leaves out those that were received before.

A `take` ends the source before its last item. Then nothing behind the last wanted item is read, and the source is
closed at once, while that item may still wait for the consumer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import anyio

from ...errors import passable
from ...runtime.threads import in_thread, taken, yield_to_streams
from .functions import EntryQueue, in_threads
from .loop_stages import run_apart
from .marks import marked
from .order import Arranged, Strided, close_later, is_in_memory, is_iterator, is_map, unzipped
from .position import Origin, Position
from .stages import Link, Stage

_NAME = "0 (source)"
_END = object()  # in place of an item


class SourceStage(Stage):
    """The base of all sources. The link in front of a source stays empty."""

    def __init__(self, iterable: Any, skip: Position, source: Link, out: Link, first: int, most: int) -> None:
        super().__init__(_NAME, source, out)
        self.iterable = iterable
        self.opened = False  # whether it has begun to read: then it closes what it reads
        self.skip: Position = skip
        self.first = first  # the number of the first item
        self.most = most  # items to read
        self.until: int = first + most  # the number of the first item that is not wanted
        self.end: int = first  # the number behind the last item, once that was read
        self.closing_error: BaseException | None = None  # raised by a generator when it was closed

    def read_no_more(self) -> None:
        """No more items are wanted in this epoch."""
        self.until = self.first

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        if isinstance(self.iterable, Arranged | Strided) and isinstance(origin, int):
            with suppress(BaseException):  # the order itself may be what has failed
                given = self.iterable.place(origin - self.first)
        super().fail(origin, error, given)


def make_source(iterable: Any, *args: Any) -> SourceStage:
    """The kind of source that an iterable needs."""
    if is_in_memory(iterable):
        return IndexedSource(iterable, *args)
    if hasattr(iterable, "__aiter__"):
        return AsyncSource(iterable, *args)
    return (MapSource if is_map(iterable) else ThreadSource)(iterable, *args)


async def close(iterable: Any) -> None:
    """Close a source that was not read, if it is an iterator. Raises nothing: whatever ended the epoch is raised."""
    while isinstance(iterable, Arranged | Strided):
        iterable = iterable.source if isinstance(iterable, Arranged) else iterable.iterable
    for source in filter(is_iterator, unzipped([iterable])):
        with suppress(BaseException):
            if callable(getattr(source, "aclose", None)):
                await close_later(source)
            elif callable(closing := getattr(source, "close", None)):
                await in_thread(closing, "closing a source")


def _opened(opens: Callable[[Any], Any], iterable: Any) -> Any:
    try:
        return opens(iterable)
    except (StopIteration, StopAsyncIteration) as error:
        raise passable(error, f"`__{opens.__name__}__` of the source raised") from error


class IndexedSource(SourceStage):
    """Items in memory."""

    async def run(self) -> None:
        out, items, first, ahead = self.out, self.iterable, self.first, self.skip.ahead
        number = first
        try:
            self.end: int = first + min(len(items), self.most)
            for number in range(max(first, self.skip.taken), self.end):
                if number in ahead:
                    continue
                if out.room > 0:  # `try_reserve`, written out
                    out.room -= 1
                else:
                    await out.reserve()
                if number >= self.until:
                    self.end = number
                    break
                out.put(number, items[number - first])
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self.fail(number, error)  # of an index
        except BaseException as error:  # an array without a length; a list that was longer before
            self.fail(number, error)


class AsyncSource(SourceStage):
    """An async iterable."""

    _reading: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        await run_apart(self, self._read)

    def read_no_more(self) -> None:
        super().read_no_more()
        if self._reading is not None and not self.closing:
            self._reading.cancel()  # the next item may never come

    async def _read(self) -> bool:
        self._reading = asyncio.current_task()
        number = self.first
        iterator = None
        try:
            self.opened = True
            iterator = _opened(aiter, self.iterable)
            while self.error is None and number < self.until:
                await self.out.reserve()
                item: Any = None
                while number < self.until:
                    item = await anext(iterator, _END)
                    if item is _END or not self.skip.has(number):
                        break
                    number += 1
                if item is _END or number >= self.until:
                    break
                self.out.put(number, marked(item, self.name))
                number += 1
                del item
        except BaseException as error:
            if self.error is None and self.until > self.first:
                self.fail(number, error)
            elif not isinstance(error, asyncio.CancelledError):  # the source answers a cancellation so
                self.closing_error = error
        finally:
            self.end: int = number
            self.closing = True
            self._reading = None
            await self._close(iterator)
        return False

    async def _close(self, iterator: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            await close_later(iterator)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancellations:
                raise
            self.closing_error: BaseException | None = error


class ThreadSource(SourceStage):
    """An iterable that may block."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._room: SimpleQueue[int] = SimpleQueue()  # for how many more items there is room; 0 to stop
        self._read_so_far = EntryQueue(self._take_in, self.fail)
        self._feeding = anyio.CancelScope()
        self._failed: tuple[int, BaseException] | None = None
        self._iterator: Any = None
        self.seconds: float = 0.0

    async def run(self) -> None:
        await in_threads(self, self._read, self._feed, self._room)
        self._read_so_far.drain()

    async def _feed(self) -> None:
        """Give the thread all room there is, until this is cancelled."""
        with self._feeding:
            while True:
                await self.out.reserve()
                self._room.put(1 + self.out.reserve_some(self.out.room))

    def _read(self) -> None:
        """Read the iterable. Runs on a thread of its own."""
        yield_to_streams()
        number, so_far, out = self.first, self._read_so_far, self.out
        try:
            self.opened = True
            self._open()
            while number < self.until and (room := taken(self._room)):
                while room and number < self.until and not self.abandoned:
                    started = perf_counter()
                    if (item := self._get(number)) is _END:
                        self.end: int = number
                        return
                    self.seconds += perf_counter() - started
                    if not self.skip.has(number):
                        room -= 1
                        so_far.things.append((number, marked(item, self.name)))
                        if not so_far.awake and (not room or len(out.items) + len(so_far.things) >= out.wanted):
                            so_far.wake()
                    number += 1
                    del item  # while it waits, a thread holds nothing
            self.end = number
        except BaseException as error:
            self._failed = number, error
        finally:
            self._close()
            so_far.things.append(None)
            so_far.wake()

    def _open(self) -> None:
        self._iterator = _opened(iter, self.iterable)

    def _get(self, number: int) -> Any:
        """The next item, which has this number, or `_END`."""
        return next(self._iterator, _END)

    def _close(self) -> None:
        iterator, self._iterator = self._iterator, None
        try:
            if callable(close := getattr(iterator, "close", None)):
                close()
        except BaseException as error:
            self.closing_error: BaseException | None = error

    def read_no_more(self) -> None:
        super().read_no_more()
        self._room.put(0)

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        self.abandoned = True
        self._feeding.cancel()
        super().fail(origin, error, given)

    def _take_in(self, so_far: deque[tuple[int, Any] | None]) -> None:
        while (read := so_far.popleft()) is not None:
            if self.error is None:
                self.pass_on(*read)
            del read  # while it waits, the loop holds nothing
            if not so_far:
                return
        failed, self._failed = self._failed, None
        if failed is not None:
            self.fail(*failed)
        self._feeding.cancel()


class MapSource(ThreadSource):
    """A source with a length and items by index. Indexing may block."""

    def _open(self) -> None:
        self._length = _opened(len, self.iterable)

    def _get(self, number: int) -> Any:
        if number - self.first >= self._length:
            return _END
        if self.skip.has(number):
            return None  # the item is left out, and need not be read
        try:
            return self.iterable[number - self.first]
        except StopIteration as error:
            raise passable(error, "`__getitem__` of the source raised") from error
