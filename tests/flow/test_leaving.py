"""Leaving a pipeline: by its end, early, by an error, by cancellation. Nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline import threads as threads_of_stages
from tests.waiting import no_collector, outlasts_cancellations, turns, until

from .rig import AsyncCounted, Counted, drain, holding, same, same_in_thread


async def fail_at(number: int, error: BaseException, item: Any) -> Any:
    if item == number:
        raise error
    return item


def fail_in_thread_at(number: int, error: BaseException, item: Any) -> Any:
    if item == number:
        raise error
    return item


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
    assert len(caught.value.__notes__) == 1
    assert "at item 30 of the source" in caught.value.__notes__[0]
    assert "stage 0 (source)" in caught.value.__notes__[0] or "stage 1 (map " in caught.value.__notes__[0]
    assert s.statistics().bytes_retained == 0


@dataclass(frozen=True)
class Frozen(Exception):
    """It refuses assignments, so also `add_note`."""

    code: int


@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
async def test_an_exception_that_refuses_notes_comes_with_one(s: asc.Scheduler, make: Any) -> None:
    with pytest.raises(Frozen) as caught:
        await drain(make(s, Frozen(7)))
    assert "at item 30 of the source" in caught.value.__notes__[0]


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
        await until(lambda: any(stage.error for stage in items._stages))
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

    class Slow(SimpleQueue):  # type: ignore[type-arg]
        """Gives item 0 to a thread that then sleeps until item 1 has failed."""

        def get(self, *args: Any) -> Any:
            call = super().get(*args)
            if call is not None and call.origin == 0:
                assert failed.wait(60)
            return call

    monkeypatch.setattr(threads_of_stages, "SimpleQueue", Slow)
    async with asc.Scheduler("cpu") as s:
        pipe = s.pipeline(range(9)).map(partial(fail_in_thread_at, 1, LookupError()), workers=2)
        async with pipe.open() as items:
            await until(lambda: items._stages[1].error)
            failed.set()
            assert await anext(items) == 0
            with pytest.raises(LookupError):
                await anext(items)


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


async def test_a_source_that_breaks_is_an_error_that_says_where(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError, match="unsized") as caught:
        await drain(s.pipeline(np.array(3)))
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


@pytest.mark.parametrize("kind", [Counted, AsyncCounted])
@pytest.mark.parametrize("items_taken", [0, 1, 7])
async def test_leaving_early_closes_the_source(s: asc.Scheduler, kind: type[Counted], items_taken: int) -> None:
    source = kind(1000)
    pipe = s.pipeline(source).map(same).map(same_in_thread, workers=2).batch(2)
    async with pipe.open() as items:
        await until(lambda: source.asked > 0)
        for _ in range(items_taken):
            await anext(items)
    assert source.closed == 1
    assert source.asked < 200


def stubborn(error: type[BaseException], epoch: int) -> Iterator[int]:
    try:
        yield from range(1000)
    finally:
        raise error("closing failed")


async def stubborn_async(error: type[BaseException], epoch: int) -> AsyncIterator[int]:
    try:
        for i in range(1000):
            yield i
    finally:
        raise error("closing failed")


async def stubborn_waiting(error: type[BaseException], epoch: int) -> AsyncIterator[int]:
    try:
        yield 0
        await asyncio.Event().wait()
    finally:
        raise error("closing failed")


@pytest.mark.parametrize("error", [LookupError, SystemExit])
@pytest.mark.parametrize("source", [stubborn, stubborn_async, stubborn_waiting])
async def test_an_error_of_closing_the_source_is_not_lost(s: asc.Scheduler, source: Any, error: Any) -> None:
    source = partial(source, error)
    with pytest.raises(error, match="closing failed"):
        async with s.pipeline(source).open() as items:
            await anext(items)
            await turns()
    with pytest.raises(ZeroDivisionError):
        async with s.pipeline(source).open() as items:
            await anext(items)
            raise ZeroDivisionError


async def count(s: asc.Scheduler, number: int) -> AsyncIterator[int]:
    """As one writes around a pipeline, to do something with its items."""
    async with s.pipeline(range(number)).map(same).map(same_in_thread).open() as items:
        async for item in items:
            yield item


async def test_blocks_end_in_any_order(s: asc.Scheduler) -> None:
    long = count(s, 9)
    assert [(i, await anext(long)) async for i in count(s, 3)] == [(0, 0), (1, 1), (2, 2)]
    assert [i async for i in long] == list(range(3, 9))
    first, second = s.pipeline(range(9)).open(), s.pipeline(range(9)).open()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert await anext(second) == 0
    await second.__aexit__(None, None, None)


async def test_a_block_is_left_in_another_task_than_it_was_entered_in(s: asc.Scheduler) -> None:
    before = asyncio.all_tasks()
    items = count(s, 99)
    assert [await asyncio.create_task(anext(items)) for _ in range(3)] == [0, 1, 2]  # type: ignore[arg-type]
    await asyncio.create_task(items.aclose())  # type: ignore[attr-defined]
    async for _ in count(s, 99):
        break
    gc.collect()  # the loop closes what nobody iterates any more, in a task of its own
    await until(lambda: asyncio.all_tasks() == before)


async def test_whoever_waits_when_the_block_is_left_is_told(s: asc.Scheduler) -> None:
    async with s.pipeline(range(9)).map(never).open() as items:
        waiting = asyncio.ensure_future(anext(items))
        await turns()
    with pytest.raises(RuntimeError, match="the pipeline is closed"):
        await waiting


async def never(i: int) -> None:
    await asyncio.Event().wait()


async def test_leaving_waits_for_functions_that_run(s: asc.Scheduler) -> None:
    begun, gate, ended = threading.Event(), threading.Event(), []

    def fn(i: int) -> None:
        begun.set()
        assert gate.wait(60)
        ended.append(i)

    async def leave() -> None:
        async with s.pipeline(range(100)).map(fn, workers=1).open():
            await until(begun.is_set)

    task = asyncio.create_task(leave())
    await until(begun.is_set)
    await turns()
    await outlasts_cancellations(task, gate)
    assert ended == [0]


async def test_coroutines_are_cancelled_once_and_may_await_while_they_end(s: asc.Scheduler) -> None:
    ended = []

    async def fn(i: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(5)
            ended.append(i)

    async def stubborn_fn(i: int) -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return i

    async with s.pipeline(range(9)).map(fn, workers=2).open():
        await turns()
    assert sorted(ended) == [0, 1]
    for workers in (1, 2):
        async with s.pipeline(range(9)).map(stubborn_fn, workers=workers).open():
            await turns()

    async def stubborn_source(epoch: int) -> AsyncIterator[int]:
        while True:
            yield await stubborn_fn(epoch)

    async with s.pipeline(stubborn_source).open():
        await turns()


async def test_an_exception_in_the_block_leaves_as_it_is(s: asc.Scheduler) -> None:
    with pytest.raises(ZeroDivisionError):
        async with s.pipeline(range(100)).map(same_in_thread).open() as items:
            await anext(items)
            raise ZeroDivisionError


async def test_cancelling_the_wait_for_an_item_loses_none(s: asc.Scheduler) -> None:
    rng = random.Random(7)

    async def sometimes_slow(i: int) -> int:
        await turns(rng.randrange(4))
        return i

    received = []
    async with s.pipeline(range(300)).map(sometimes_slow).map(same_in_thread).open() as items:
        while len(received) < 300:
            wait = asyncio.create_task(anext(items))  # type: ignore[arg-type]
            await turns(rng.randrange(6))
            wait.cancel()
            with suppress(asyncio.CancelledError):
                received.append(await wait)
    assert received == list(range(300))


@pytest.mark.parametrize("seed", range(40))
async def test_cancelled_anywhere_nothing_stays_behind(seed: int) -> None:
    rng = random.Random(seed)
    source = rng.choice([Counted, AsyncCounted])(500)

    async def consume(s: asc.Scheduler) -> None:
        pipe = s.pipeline(source, buffer=rng.randint(1, 4)).map(same, workers=rng.randint(1, 3))
        pipe = pipe.map(lambda i: np.full(100, i), workers=rng.randint(1, 3), ordered=rng.random() < 0.5)
        pipe = pipe.batch(rng.randint(1, 5)).to_device(depth=rng.randint(1, 3))
        async with pipe.open() as items:
            async for batch in items:
                await (batch + 1)
                del batch

    async with asc.Scheduler("cpu", max_bytes="30 KiB") as s:
        before = asyncio.all_tasks()
        task = asyncio.create_task(consume(s))
        for _ in range(rng.randrange(400)):
            await asyncio.sleep(0)
            if task.done():
                break
        task.cancel()
        await turns(rng.randrange(3))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before
        assert source.asked == 0 or source.closed == 1
        await s.barrier()
        del task
        found = s.statistics()
        assert (found.tasks_pending, found.tasks_in_flight, found.bytes_reserved, found.bytes_in_flight) == (0, 0, 0, 0)
        assert found.bytes_retained == 0


async def test_no_thread_outlives_its_epoch(s: asc.Scheduler) -> None:
    pipe = s.pipeline(Counted(20)).map(same_in_thread, workers=3).batch(2)
    before = {*threading.enumerate()}
    for _ in range(10):
        await drain(pipe)
    await until(lambda: {*threading.enumerate()} <= before)  # each has told its end, and has nothing left to do


async def test_processes_end_with_the_block(s: asc.Scheduler) -> None:
    async with s.pipeline(range(10**6)).map(math.factorial, workers=2, processes=True, buffer=0).open() as items:
        assert await anext(items) == 1
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()


async def test_a_scheduler_closed_meanwhile_ends_it_with_an_error() -> None:
    with pytest.raises(asc.SchedulerClosed):
        async with asc.Scheduler("cpu") as s, s.pipeline([np.ones(3)] * 99).to_device().open() as items:
            await anext(items)
            await s.aclose()
            async for _ in items:
                pass
