"""Errors in a pipeline: where they come, what they say, and what they leave behind."""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline.functions import Call, ThreadStage
from tests.waiting import no_collector, no_tasks, tasks_made_by, turns, until

from . import in_processes
from .rig import STAGES, Mapped, MappedSequence, Things, drain, holding, same, same_in_thread, stages_of


async def fail_at(number: int, error: BaseException, item: Any) -> Any:
    if item == number:
        raise error
    return item


def fail_in_thread_at(number: int, error: BaseException, item: Any) -> Any:
    if item == number:
        raise error
    return item


async def kept_until(number: int, error: BaseException, item: Any) -> bool:
    return kept_in_thread_until(number, error, item)


def kept_in_thread_until(number: int, error: BaseException, item: Any) -> bool:
    if item == number:
        raise error
    return True


def failing_generator(error: BaseException, epoch: int = 0) -> Iterator[int]:
    yield from range(30)
    raise error


async def failing_async_generator(error: BaseException, epoch: int = 0) -> AsyncIterator[int]:
    for i in range(30):
        yield i
    raise error


FAILING: dict[str, Any] = {
    "coroutine": lambda s, e: s.pipeline(range(100)).map(partial(fail_at, 30, e)),
    "coroutines": lambda s, e: s.pipeline(range(100)).map(partial(fail_at, 30, e), workers=4),
    "thread": lambda s, e: s.pipeline(range(100)).map(partial(fail_in_thread_at, 30, e)),
    "threads": lambda s, e: s.pipeline(range(100)).map(partial(fail_in_thread_at, 30, e), workers=4),
    "filter": lambda s, e: s.pipeline(range(100)).filter(partial(kept_until, 30, e), workers=2),
    "filter in threads": lambda s, e: s.pipeline(range(100)).filter(partial(kept_in_thread_until, 30, e), workers=2),
    "shuffled": lambda s, e: s.pipeline(range(100)).shuffle(1, seed=0).map(partial(fail_at, 30, e)),
    "shared": lambda s, e: s.pipeline(range(100), order=range(100)).shard(0, 1).map(partial(fail_at, 30, e)),
    "the first": lambda s, e: s.pipeline(range(100)).map(partial(fail_at, 30, e)).take(40),
    **{
        f"behind {name}": lambda s, e, make=make: make(s.pipeline(range(100)), 1).map(partial(fail_at, 30, e))
        for name, make in STAGES.items()
    },
    **{
        f"before {name}": lambda s, e, make=make: make(s.pipeline(range(100)).map(partial(fail_at, 30, e)), 1)
        for name, make in STAGES.items()
    },
    "parts": lambda s, e: s.pipeline(range(100)).flat_map(lambda i: [i]).map(partial(fail_at, 30, e)),
    "parts made": lambda s, e: s.pipeline(range(100)).flat_map(lambda i: [fail_in_thread_at(30, e, i)]),
    "zipped": lambda s, e: s.pipeline(range(100)).zip(partial(failing_generator, e)).map(lambda both: both[0]),
    "tried": lambda s, e: s.pipeline(range(100)).map(partial(fail_at, 30, e), retry=2, skip=ZeroDivisionError),
    "repeated": lambda s, e: s.pipeline(range(100)).map(partial(fail_at, 30, e)).repeat(2),
    "behind a repeat": lambda s, e: s.pipeline(range(100)).repeat().map(partial(fail_at, 30, e)),
    "generator": lambda s, e: s.pipeline(partial(failing_generator, e)),
    "async generator": lambda s, e: s.pipeline(partial(failing_async_generator, e)),
}


@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("behind", [0, 2])
async def test_an_error_comes_bare_after_the_items_before_it_and_says_where(
    s: asc.Scheduler, make: Any, behind: int
) -> None:
    pipe = make(s, LookupError("it"))
    for fn in (same, same_in_thread)[:behind]:
        pipe = pipe.map(fn, workers=2)
    received = []
    with pytest.raises(LookupError, match="it") as caught:
        async with pipe.open() as items:
            async for item in items:
                received.append(item)
    assert received == list(range(30))
    *zipped, note = caught.value.__notes__
    assert len(zipped) == ("zip" in str(pipe))  # which source it was
    assert "at item 30 of the source" in note
    assert re.search(r"stage \d \((source|map |flat_map |filter )", note)
    assert s.statistics().bytes_retained == 0


def refuse(item: Any) -> Any:
    raise LookupError("it")


async def refuse_later(item: Any) -> Any:
    raise LookupError("it")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fn", [refuse, refuse_later])
@pytest.mark.parametrize(
    ("item", "told"),
    [
        (Path("a.png"), f": {Path('a.png')!r}"),
        ((np.int64(3), "a.png"), f": {(np.int64(3), 'a.png')!r}"),
        ("x" * 1000, ""),
        ([1, 2], ""),
        (np.ones(3), ""),
    ],
)
async def test_the_note_names_the_item_where_that_is_brief(
    s: asc.Scheduler, workers: int, fn: Any, item: Any, told: str
) -> None:
    pipe = s.pipeline([item]).map(fn, workers=workers)
    with pytest.raises(LookupError) as caught:
        await drain(pipe)
    assert caught.value.__notes__[0].endswith(f"at item 0 of the source{told}")


@dataclass(frozen=True)
class Frozen(Exception):
    """It refuses assignments, so also `add_note`."""

    code: int


@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
async def test_an_exception_that_refuses_notes_comes_with_one(s: asc.Scheduler, make: Any) -> None:
    with pytest.raises(Frozen) as caught:
        await drain(make(s, Frozen(7)))
    assert "at item 30 of the source" in caught.value.__notes__[-1]


@pytest.mark.parametrize("threads", [True, False])
async def test_in_order_the_first_error_is_that_of_the_first_item(s: asc.Scheduler, threads: bool) -> None:
    """Item 5 fails before item 3 does."""

    error = LookupError()

    def fail(i: int) -> int:
        if i in (3, 5):
            raise error
        return i

    fn, let_go = holding(3, threads, fail)
    pipe = s.pipeline(range(20)).map(fn, workers=4)
    async with pipe.open() as items:
        assert [await anext(items) for _ in range(3)] == [0, 1, 2]
        await until(lambda: any(stage.error for stage in stages_of(items)))
        let_go()
        with pytest.raises(LookupError) as caught:
            await anext(items)
    (note,) = caught.value.__notes__
    assert "at item 3 of the source" in note


async def test_a_failed_stage_lets_go_every_worker_whatever_it_waits_for(s: asc.Scheduler) -> None:
    """Also one that was woken, since there was room, and finds that another has taken it."""

    async def fn(number: int, i: int) -> int:
        await turns(i % 3)
        return fail_in_thread_at(number, LookupError(), i)

    for number in range(40):
        with pytest.raises(LookupError):
            await drain(s.pipeline(range(40), buffer=4).map(partial(fn, number), workers=4, buffer=0))


async def test_what_a_thread_has_taken_it_works_on_though_a_later_item_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = threading.Event()

    make = ThreadStage._make

    def slow(stage: ThreadStage, call: Call, function: Any) -> None:
        """The thread that has taken item 0 sleeps until item 1 has failed."""
        if call.origin == 0:
            assert failed.wait(60)
        make(stage, call, function)

    monkeypatch.setattr(ThreadStage, "_make", slow)
    async with asc.Scheduler("cpu") as s:
        pipe = s.pipeline(range(9)).map(partial(fail_in_thread_at, 1, LookupError()), workers=2)
        async with pipe.open() as items:
            await until(lambda: stages_of(items)[1].error)
            failed.set()
            assert await anext(items) == 0
            with pytest.raises(LookupError):
                await anext(items)


@pytest.mark.drops_at_once
@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
async def test_an_error_pins_nothing_once_the_block_is_left(s: asc.Scheduler, make: Any) -> None:
    pipe = make(s, LookupError)  # made when it is raised: nobody else holds it

    async def consume() -> None:
        held = await s.put(np.ones(1000))
        async with pipe.open() as items:
            async for _ in items:
                await held.sum()

    with no_collector():
        with suppress(LookupError):
            await consume()
        assert s.statistics().bytes_retained == 0


@pytest.mark.drops_at_once
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", ["function", "generator", "async generator", "by index"])
async def test_what_a_source_held_when_it_failed_goes_with_the_block(s: asc.Scheduler, kind: str, whole: bool) -> None:
    """Also where the loop is left before the error comes."""
    read = Things()

    def fail(item: int) -> int:
        held = read(item)
        if item == 3:
            raise LookupError(held)
        return item

    async def later(epoch: int) -> AsyncIterator[int]:
        for item in range(9):
            yield fail(item)

    class Dataset(Mapped):
        def __getitem__(self, index: int) -> int:
            return fail(index)

    sources: dict[str, Any] = {
        "function": lambda epoch: [fail(item) for item in range(9)],
        "generator": lambda epoch: map(fail, range(9)),
        "async generator": later,
    }
    pipe = s.pipeline(sources.get(kind, Dataset(9)))
    with no_collector():
        with suppress(LookupError):
            async with pipe.open() as items:
                async for _ in items:
                    await until(lambda: stages_of(items)[0].error)
                    if not whole:
                        break
        await until(lambda: not read.alive)


@pytest.mark.drops_at_once
async def test_an_error_of_a_thread_goes_with_its_pipeline(s: asc.Scheduler) -> None:
    class Unread(Exception):
        """Its instances can be referred to weakly."""

    made: list[weakref.ref[Unread]] = []

    def fn(item: int) -> None:
        error = Unread()
        made.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    with no_collector():
        with suppress(Unread):
            await drain(s.pipeline([0]).map(fn))
        await until(lambda: [ref() for ref in made] == [None])  # its thread lets go of it when it gets to it


async def test_a_source_that_breaks_is_an_error_that_says_where(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError, match="unsized") as caught:
        await drain(s.pipeline(lambda epoch: np.array(3)))
    assert "stage 0 (source), at item 0" in caught.value.__notes__[0]
    source = list(range(9))
    with pytest.raises(IndexError) as shorter:
        async with s.pipeline(source, buffer=2).map(same).open() as items:
            async for _ in items:
                source.clear()
    assert "stage 0 (source), at item" in shorter.value.__notes__[0]

    async def coroutine(epoch: int) -> list[int]:
        return [epoch]

    with pytest.raises(TypeError, match="returned a coroutine, which is not iterable"):
        await drain(s.pipeline(coroutine))  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [True, False])
async def test_out_of_order_an_error_comes_after_what_was_begun(s: asc.Scheduler, threads: bool) -> None:
    fn = partial(fail_in_thread_at if threads else fail_at, 5, LookupError())
    received = []
    with pytest.raises(LookupError):
        async with s.pipeline(range(1000)).map(fn, workers=3, ordered=False).open() as items:
            async for item in items:
                received.append(item)
    assert 5 not in received
    assert len(received) < 100


async def test_an_error_of_a_batch_names_its_items(s: asc.Scheduler) -> None:
    items = [np.ones(3)] * 9 + [np.ones(4)] + [np.ones(3)] * 9
    with pytest.raises(ValueError, match=r"differ in shape: \(3,\) and, at 1, \(4,\)") as caught:
        await drain(s.pipeline(items).batch(4))
    assert "stage 1 (batch 4), at items 8 to 11 of the source" in caught.value.__notes__[0]
    with pytest.raises(LookupError):
        await drain(s.pipeline(range(100)).map(partial(fail_at, 30, LookupError())).batch(64).to_device())


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("fn", [fail_at, fail_in_thread_at])
@pytest.mark.parametrize("workers", [1, 2])
async def test_what_would_mean_something_else_is_wrapped(s: asc.Scheduler, error: Any, fn: Any, workers: int) -> None:
    with pytest.raises(RuntimeError, match=f"raised {error.__name__}") as caught:
        await drain(s.pipeline(range(9)).map(partial(fn, 3, error()), workers=workers))
    assert isinstance(caught.value.__cause__, error)


async def test_a_coroutine_from_a_plain_function_is_an_error(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError, match="pass the coroutine function"):
        await drain(s.pipeline(range(3)).map(lambda i: same(i)))


async def test_an_error_is_raised_again_and_the_next_epoch_is_a_new_one(s: asc.Scheduler) -> None:
    error = LookupError()
    pipe = s.pipeline(range(9)).map(partial(fail_at, 3, error))
    async with pipe.open() as items:
        for _ in range(3):
            await anext(items)
        for _ in range(2):
            with pytest.raises(LookupError):
                await anext(items)
    with pytest.raises(LookupError):
        await drain(pipe)
    assert pipe.state_dict()["epoch"] == 1


@pytest.mark.parametrize("kind", [Mapped, MappedSequence])
@pytest.mark.parametrize("error", [IndexError("inside"), LookupError("inside"), StopIteration("inside")], ids=repr)
async def test_what_is_read_by_index_raises_what_that_raises(
    s: asc.Scheduler, error: Exception, kind: type[Mapped]
) -> None:
    received = []
    told = (RuntimeError, "StopIteration") if isinstance(error, StopIteration) else (type(error), "inside")
    with pytest.raises(told[0], match=told[1]) as caught:
        async with s.pipeline(kind(8, error)).open() as items:
            async for item in items:
                received.append(item)
    assert received == [0, 1, 2]
    assert "stage 0 (source), at item 3 of the source" in caught.value.__notes__[0]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (in_processes.of_two, in_processes.OfTwo, "it failed with 7"),
        (in_processes.of_one, in_processes.OfOne, "it failed"),
        (in_processes.of_the_system, in_processes.OfTheSystem, "[Errno 7] failed: 'it'"),
        (in_processes.of_a_local_class, RuntimeError, "Local: it failed (it cannot be passed on from its process"),
        (in_processes.not_made, LookupError, "it cannot be made"),
        (in_processes.not_pickled, Exception, "pickle"),
        (in_processes.coroutine, TypeError, "pass the coroutine function"),
        (in_processes.dies, BrokenProcessPool, "died, with exit code 3"),
    ],
    ids=lambda fn: getattr(fn, "__name__", ""),
)
async def test_an_error_in_a_process_comes_bare_and_says_where(
    s: asc.Scheduler, fn: Any, error: type[Exception], text: str
) -> None:
    received = []
    with pytest.raises(error, match=re.escape(text)) as caught:
        workers = 2 if fn is in_processes.dies else 1  # each takes as long to start as all else here
        async with s.pipeline(range(5)).map(fn, processes=True, workers=workers).open() as items:
            async for item in items:
                received.append(item)
    assert received == [0, 1, 2]
    (note,) = caught.value.__notes__
    assert note.endswith("at item 3 of the source: 3")
    if fn is in_processes.of_one:
        assert caught.value.args == (text,)
    if fn is in_processes.of_two:
        assert caught.value.code == 7
        assert "in of_two" in str(caught.value.__cause__)


@pytest.mark.one_loop
async def test_an_item_that_a_process_cannot_make_fails_alone(s: asc.Scheduler) -> None:
    source = [in_processes.NotMade(number) for number in range(5)]
    received = []
    with pytest.raises(LookupError, match="it cannot be made") as caught:
        async with s.pipeline(source).map(in_processes.same, processes=True, workers=2).open() as items:
            async for item in items:
                received.append(item)
    assert received == [0, 1, 2]
    assert caught.value.__notes__[0].endswith("at item 3 of the source")


@pytest.mark.one_loop
async def test_a_call_in_a_process_leaves_nothing_to_the_next(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline(range(3)).map(in_processes.counts, processes=True)) == [1, 1, 1]


class NoIterator:
    """Its `__iter__` raises what would end an iteration."""

    def __iter__(self) -> Any:
        raise StopIteration


class NoAsyncIterator:
    """The same, asynchronous."""

    def __aiter__(self) -> Any:
        raise StopAsyncIteration


@pytest.mark.parametrize("source", [NoIterator(), NoAsyncIterator(), lambda epoch: NoIterator()])
async def test_what_cannot_be_iterated_is_no_empty_epoch(s: asc.Scheduler, source: Any) -> None:
    with pytest.raises(RuntimeError, match="of the source raised Stop") as caught:
        await drain(s.pipeline(source))
    assert "stage 0 (source)" in caught.value.__notes__[0]


async def cancel_myself() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await asyncio.sleep(0)


async def cancels_itself(item: int) -> int:
    if item == 3:
        await cancel_myself()
    return item


async def cancels_itself_between(epoch: int) -> AsyncIterator[int]:
    for item in range(4):
        yield item
        if item == 2:
            await cancel_myself()


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.pipeline(cancels_itself_between),
        lambda s: s.pipeline(range(9)).map(cancels_itself),
        lambda s: s.pipeline(range(9)).map(cancels_itself, workers=3),
        lambda s: s.pipeline(range(9)).map(cancels_itself, ordered=False),
    ],
    ids=["source", "map", "workers", "unordered"],
)
async def test_what_cancels_its_own_task_is_told_as_an_error_of_its_own(s: asc.Scheduler, make: Any) -> None:
    received = []
    with pytest.raises(RuntimeError, match="the function raised CancelledError") as caught:
        async with make(s).map(same).open() as items:
            async for item in items:
                received.append(item)
    assert received == [0, 1, 2]
    assert "at item 3 of the source" in caught.value.__notes__[0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("ordered", [True, False])
async def test_a_call_leaves_nothing_to_the_next(s: asc.Scheduler, workers: int, ordered: bool) -> None:
    number = ContextVar("number", default=0)

    async def fn(item: int) -> tuple[int, int]:
        task, before = asyncio.current_task(), number.get()
        assert task is not None
        count = task.cancelling()
        number.set(before + 1)
        with suppress(asyncio.CancelledError):
            await cancel_myself()
        return before, count

    def fn_in_thread(item: Any) -> int:
        number.set(number.get() + 1)
        return number.get()

    assert await drain(s.pipeline(range(5)).map(fn, workers=workers, ordered=ordered)) == [(0, 0)] * 5
    assert await drain(s.pipeline(range(5)).map(fn_in_thread, workers=workers, ordered=ordered)) == [1] * 5
    assert await drain(s.pipeline(range(5)).batch(1, collate=fn_in_thread)) == [1] * 5


@pytest.mark.parametrize(
    ("name", "later"),
    [("pipeline", False), ("pipeline", True), ("pipeline stage 0 (source)", True), ("pipeline stage 1 (map fn)", True)],
)
async def test_whoever_else_cancels_a_stage_the_consumer_is_told(s: asc.Scheduler, name: str, later: bool) -> None:
    begun = asyncio.Event()

    async def fn(item: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def endless(epoch: int) -> AsyncIterator[int]:
        while True:
            yield 0

    async with s.pipeline(endless).map(fn).open() as items:
        if later:
            await begun.wait()
        (stage,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
        stage.cancel()
        with pytest.raises(RuntimeError, match="CancelledError, which cannot pass"):
            await anext(items)


async def test_a_pipeline_that_cannot_begin_can_be_opened_again(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(3))
    with tasks_made_by(no_tasks), pytest.raises(LookupError, match="no more tasks"):
        await pipe.open().__aenter__()
    assert await drain(pipe) == [0, 1, 2]
