"""What the tests of pipelines share."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from asyncsched.flow.pipeline.pipeline import Pipeline

# Stages that pass on some of the items. By this table tests resume, fail, overwrite and cancel behind each of them.
# With 1 they pass on at least the first 40 of a hundred, in order.
STAGES: dict[str, Callable[[Any, int], Any]] = {
    "filter": lambda pipe, n: pipe.filter(lambda item: True, workers=n),
    "take": lambda pipe, n: pipe.filter(lambda item: True).take(40 // n),
}


async def drain(pipe: Pipeline[Any]) -> list[Any]:
    """One epoch."""
    async with pipe.open() as items:
        return [item async for item in items]


async def take(pipe: Pipeline[Any], count: int) -> list[Any]:
    """The first items."""
    async with pipe.open() as items:
        return [await anext(items) for _ in range(count)]


def stages_of(items: Any) -> list[Any]:
    """The stages of an open epoch, that of the source first: how far each is while the consumer waits."""
    return list(items._stages)


async def same(item: Any) -> Any:
    return item


def same_in_thread(item: Any) -> Any:
    return item


def holding(number: int, threads: bool, then: Callable[[int], int] = same_in_thread) -> tuple[Any, Callable[[], None]]:
    """A stage that keeps one item back until it is let go; and what lets it go."""
    later, opened = asyncio.Event(), threading.Event()

    async def fn(i: int) -> int:
        if i == number:
            await later.wait()
        return then(i)

    def fn_in_thread(i: int) -> int:
        if i == number:
            assert opened.wait(60)
        return then(i)

    return fn_in_thread if threads else fn, lambda: (later.set(), opened.set())[0]


class Thing:
    """Something that can be referred to weakly."""


class Things:
    """A function for `map` that makes a thing of each item, and knows how many of them are still there."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Thing]] = []

    def __call__(self, item: object) -> Thing:
        self._made.append(weakref.ref(found := Thing()))
        return found

    @property
    def made(self) -> int:
        return len(self._made)

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self._made)


class Counted:
    """An iterable that says how far it was read, and whether it was closed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = 0
        self.closed = 0

    def __iter__(self) -> Iterator[int]:
        try:
            for i in range(self.count):
                self.asked += 1
                yield i
        finally:
            self.closed += 1


class Sized(Counted):
    """The same, with a length."""

    def __len__(self) -> int:
        return self.count


class AsyncCounted(Counted):
    """The same, asynchronous."""

    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for i in range(self.count):
                self.asked += 1
                await asyncio.sleep(0)
                yield i
        finally:
            await asyncio.sleep(0)
            self.closed += 1


class Mapped:
    """A length and items by index, as PyTorch's datasets have them. Says what was asked for."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self.count = count
        self.error = error  # of item 3
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index == 3 and self.error is not None:
            raise self.error
        return index


class MappedSequence(Mapped, Sequence[int]):  # type: ignore[misc]
    """The same, and iterates by what `Sequence` brings, which ends at an IndexError."""
