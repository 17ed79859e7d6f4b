"""Whatever a user's object raises, and wherever, a pipeline's consumer is told: nothing hangs, and nothing ends in
silence."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline.pipeline import Pipeline
from tests.waiting import turns, until

from .rig import drain, same, same_in_thread

ENDINGS = [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError]


class Panic(BaseException):
    """Of a library of its own."""


def fail(error: BaseException, *args: Any) -> Any:
    raise error


class Raises:
    """A source or an order whose methods raise."""

    def __init__(self, error: type[BaseException], where: str, length: int = 9) -> None:
        self._error = error
        self._where = where
        self._length = length

    def __len__(self) -> int:
        if self._where == "len":
            raise self._error("it")
        return self._length

    def __getitem__(self, index: int) -> int:
        if self._where == "getitem" and index == 3:
            raise self._error("it")
        return index


@pytest.mark.parametrize("error", [*ENDINGS, LookupError, Panic])
@pytest.mark.parametrize("where", ["len", "getitem"])
@pytest.mark.parametrize("of", ["source", "order", "order of an epoch", "source in an order"])
async def test_a_length_or_an_item_that_cannot_be_had_is_no_end(
    s: asc.Scheduler, error: type[BaseException], where: str, of: str
) -> None:
    it, rows = Raises(error, where), Raises(error, "nowhere")
    make: dict[str, Callable[[], Pipeline[Any]]] = {
        "source": lambda: s.pipeline(it),
        "order": lambda: s.pipeline(rows, order=it),
        "order of an epoch": lambda: s.pipeline(rows, order=lambda epoch: it),
        "source in an order": lambda: s.pipeline(it, order=[*range(9)]),
    }
    if where == "len" and of == "source in an order":
        assert await drain(make[of]()) == [*range(9)]  # its length is not asked for
        return
    expected = RuntimeError if error in ENDINGS else error
    with pytest.raises(expected, match="it|CancelledError|GeneratorExit"):
        await drain(make[of]())


class Index:
    """A number that cannot be had."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __index__(self) -> int:
        raise self._error("it")


@pytest.mark.parametrize("error", [*ENDINGS, LookupError, IndexError, TypeError, Panic])
@pytest.mark.parametrize("source", [list(range(9)), Raises(LookupError, "nowhere")], ids=["in memory", "a thread"])
async def test_an_order_with_a_number_that_cannot_be_had(
    s: asc.Scheduler, error: type[BaseException], source: Any
) -> None:
    received = []
    with pytest.raises(RuntimeError if error in ENDINGS else error, match="it|CancelledError|GeneratorExit") as caught:
        async with s.pipeline(source, order=[2, 1, Index(error), 0]).open() as items:
            async for item in items:
                received.append(item)
    assert received == [2, 1]
    assert "stage 0 (source), at item 2 of the source" in caught.value.__notes__[0]


class Closing:
    """An iterator that raises when it is closed."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> Closing:
        return self

    def __next__(self) -> int:
        return 1

    def close(self) -> None:
        raise self._error


class AsyncClosing(Closing):
    """The same, asynchronous."""

    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncClosing:
        return self

    async def __anext__(self) -> int:
        return 1

    async def aclose(self) -> None:
        raise self._error


@pytest.mark.parametrize("error", [*ENDINGS, LookupError, Panic])
@pytest.mark.parametrize("kind", [Closing, AsyncClosing])
async def test_closing_a_source_tells_of_its_error_and_cancels_nobody(
    s: asc.Scheduler, error: type[BaseException], kind: type[Closing]
) -> None:
    with pytest.raises(RuntimeError if error in ENDINGS else error):
        async with s.pipeline(lambda epoch: kind(error())).map(same).open() as items:
            assert await anext(items) == 1
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_generator_that_raises_a_cancellation_when_it_is_closed_cancels_nobody(s: asc.Scheduler) -> None:
    def read() -> Iterator[int]:
        try:
            yield from range(99)
        finally:
            raise asyncio.CancelledError

    async def read_later() -> AsyncIterator[int]:
        try:
            for i in range(99):
                yield i
        finally:
            raise asyncio.CancelledError

    for source in (read, read_later):
        with pytest.raises(RuntimeError, match="closing the source raised CancelledError"):
            async with s.pipeline(lambda epoch, source=source: source()).open() as items:  # type: ignore[misc]
                assert await anext(items) == 0


class Sized:
    """An item whose size cannot be told."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    @property
    def nbytes(self) -> int:
        raise self._error("it")


@pytest.mark.parametrize("error", [*ENDINGS, LookupError, Panic, "a cycle"])
@pytest.mark.parametrize("where", ["thread", "threads", "unordered", "loop", "loops", "source", "async", "in memory"])
async def test_an_item_without_a_size_is_an_error_behind_those_before_it(
    s: asc.Scheduler, error: Any, where: str
) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)

    def make(i: int) -> Any:
        return i if i != 3 else cycle if error == "a cycle" else Sized(error)

    async def make_later(i: int) -> Any:
        return make(i)

    async def read() -> AsyncIterator[Any]:
        for i in range(9):
            yield make(i)

    bound = "64 MiB"
    pipe = {
        "thread": lambda: s.pipeline(range(9)).map(make, buffer=bound),
        "threads": lambda: s.pipeline(range(9)).map(make, workers=3, buffer=bound),
        "unordered": lambda: s.pipeline(range(9)).map(make, ordered=False, buffer=bound),
        "loop": lambda: s.pipeline(range(9)).map(make_later, buffer=bound),
        "loops": lambda: s.pipeline(range(9)).map(make_later, workers=3, buffer=bound),
        "source": lambda: s.pipeline(lambda epoch: map(make, range(9)), buffer=bound),
        "async": lambda: s.pipeline(lambda epoch: read(), buffer=bound),
        "in memory": lambda: s.pipeline([make(i) for i in range(9)], buffer=bound),
    }[where]()
    received = []
    expected = RecursionError if error == "a cycle" else RuntimeError if error in ENDINGS else error
    with pytest.raises(expected) as caught:
        async with pipe.open() as items:
            async for item in items:
                received.append(item)
    assert received[:3] == [0, 1, 2]
    assert len(received) == 3 or where == "unordered"  # what was begun comes before the error
    assert "at item 3 of the source" in caught.value.__notes__[0]


class NoText(str):
    """An item that cannot be shown."""

    def __repr__(self) -> str:
        raise Panic


class NoPath(os.PathLike[str]):
    """A path that is none."""

    def __fspath__(self) -> str:
        raise Panic


@pytest.mark.parametrize("item", [NoText("a"), NoPath(), (1, NoText("a"))])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("later", [False, True])
async def test_an_item_that_cannot_be_shown_hides_no_error(
    s: asc.Scheduler, item: Any, workers: int, later: bool
) -> None:
    async def fail_later(item: Any) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await drain(
            s.pipeline([item]).map(fail_later if later else partial(fail, LookupError("mine")), workers=workers)
        )


@pytest.mark.parametrize("error", [LookupError("it"), OSError(7, "it"), NoText])
async def test_an_exception_that_is_raised_again_gathers_no_notes(s: asc.Scheduler, error: Any) -> None:
    class Own(OSError):
        """It cannot be copied."""

    error = Own(7, "it") if error is NoText else error

    def fails(item: int) -> int:
        raise error

    async def read() -> AsyncIterator[int]:
        raise error
        yield 1

    for pipe in (s.pipeline(range(3)).map(fails), s.pipeline(lambda epoch: read())):
        for _ in range(3):
            with pytest.raises(type(error)) as caught:
                await drain(pipe)
            assert len([note for note in caught.value.__notes__ if "at item 0 of the source" in note]) in (1, 2)
            assert caught.value.args == error.args
    assert len(getattr(error, "__notes__", [])) <= 2


class Opened:
    """An iterator that is open from the beginning, as a file is."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Opened:
        return self

    def __next__(self) -> int:
        raise AssertionError

    def close(self) -> None:
        self.closed += 1
        raise Panic


class AsyncOpened(Opened):
    """The same, asynchronous."""

    close = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncOpened:
        return self

    async def __anext__(self) -> int:
        raise AssertionError

    async def aclose(self) -> None:
        await turns(2)
        self.closed += 1
        raise asyncio.CancelledError


@pytest.mark.parametrize("kind", [Opened, AsyncOpened])
@pytest.mark.parametrize("again", [False, True], ids=["the first epoch", "another"])
@pytest.mark.parametrize("shard", [False, True])
async def test_an_iterator_that_is_made_while_its_epoch_is_cancelled_is_closed(
    s: asc.Scheduler, kind: type[Opened], again: bool, shard: bool
) -> None:
    made, go_on, begun = kind(), threading.Event(), threading.Event()

    def source(epoch: int) -> Any:
        if epoch < again:
            return [0, 1]
        begun.set()
        assert go_on.wait(60)
        return made

    pipe = s.pipeline(source)
    pipe = (pipe.shard(0, 1) if shard else pipe).repeat(2)

    async def consume() -> None:
        async with pipe.open() as items:
            async for _ in items:
                pass

    task = asyncio.ensure_future(consume())
    await until(begun.is_set)
    task.cancel()
    await turns(5)
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert made.closed == 1


@pytest.mark.parametrize("number", [1, 2])
async def test_epochs_without_an_item_are_not_repeated_for_ever(s: asc.Scheduler, number: int) -> None:
    async def nothing(item: int) -> bool:
        return False

    data = list(range(10))
    for pipe in (
        s.pipeline(data).batch(64, drop_last=True).repeat(),
        s.pipeline(data).filter(nothing).repeat(),
        s.pipeline(data).filter(lambda item: False).repeat().batch(2),
        s.pipeline(lambda epoch: data if epoch < number else []).map(same_in_thread).repeat(),
        s.pipeline(data).shuffle(4, seed=0).batch(64, drop_last=True).to_device().repeat(),
    ):
        with pytest.raises(ValueError, match="nothing to repeat for ever"):
            await drain(pipe)


async def test_an_epoch_that_is_resumed_behind_its_last_item_is_no_empty_one(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(10)).batch(4, drop_last=True).repeat()
    pipe.load_state_dict({"epoch": 0, "taken": 8, "ahead": []})
    async with pipe.open() as items:
        assert (await anext(items)).tolist() == [0, 1, 2, 3]


class Unequal:
    """It cannot be compared, as an array of several numbers cannot."""

    def __eq__(self, other: object) -> bool:
        raise Panic

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("values"),
    [[np.ones(3), np.ones(3), np.zeros(3)], [Unequal(), Unequal()], [1, True, 1.0], [float("nan")] * 3],
    ids=["arrays", "raising", "equal", "nan"],
)
@pytest.mark.parametrize("workers", [1, 2])
async def test_what_a_call_sets_in_its_context_is_told_apart_by_identity(
    s: asc.Scheduler, values: list[Any], workers: int
) -> None:
    variable: ContextVar[Any] = ContextVar("variable", default=None)
    kept = ContextVar("kept", default=None)
    kept.set(values[0])

    async def fn(value: Any) -> Any:
        before = variable.get()
        variable.set(value)
        assert kept.get() is values[0]
        kept.set(value)
        return before

    assert await drain(s.pipeline(values).map(fn, workers=workers)) == [None] * len(values)
