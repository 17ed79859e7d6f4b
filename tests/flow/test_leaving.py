"""Leaving a pipeline: by its end, early, by an error, by cancellation. Nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import random
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline import epoch
from tests.processes import fresh
from tests.waiting import no_collector, outlasts_cancellations, turns, until

from .rig import STAGES, AsyncCounted, Counted, Things, drain, same, same_in_thread


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


@pytest.mark.drops_at_once
async def test_no_item_of_a_batch_that_is_not_full_outlives_the_block(s: asc.Scheduler) -> None:
    things = Things()

    async def read() -> AsyncIterator[int]:
        for i in range(16):
            yield i
        await asyncio.Event().wait()

    with no_collector():
        async with s.pipeline(read()).map(things).batch(10).open() as items:
            await anext(items)
            await until(lambda: things.made == 16)
            await turns()
        del items
        await until(lambda: not things.alive)  # threads let go of them when they get to it


async def test_stages_that_outlast_an_interrupted_exit_tell_nobody(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(task: asyncio.Task[Any]) -> None:
        stages.append(task)
        raise KeyboardInterrupt

    stages: list[asyncio.Task[Any]] = []
    monkeypatch.setattr(epoch, "ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        async with s.pipeline(range(100)).map(same).open() as items:
            await anext(items)
    await asyncio.wait(stages)
    assert items._out.error is None  # the link of all epochs that are closed


class Closes:
    """An iterator that is no generator, and can be closed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.closed = 0
        self.error = error

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        return 1

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


class ClosesAsync(Closes):
    """The same, asynchronous."""

    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> int:
        return 1

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        super().close()


class ClosesAtOnce(ClosesAsync):
    """Its `aclose` is no coroutine function."""

    def aclose(self) -> None:  # type: ignore[override]
        Closes.close(self)


@pytest.mark.parametrize("kind", [Closes, ClosesAsync, ClosesAtOnce])
async def test_leaving_closes_an_iterator_that_is_no_generator(s: asc.Scheduler, kind: type[Closes]) -> None:
    source = kind()
    async with s.pipeline(lambda epoch: source).open() as items:
        assert await anext(items) == 1
    assert source.closed == 1
    with pytest.raises(LookupError, match="closing failed"):
        async with s.pipeline(kind(LookupError("closing failed"))).open() as items:
            await anext(items)


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
        pipe = pipe.filter(lambda x: x[0] % 3, workers=rng.randint(1, 3)) if rng.random() < 0.5 else pipe
        pipe = pipe.shuffle(rng.randint(1, 9), seed=0) if rng.random() < 0.5 else pipe
        pipe = pipe.flat_map(lambda x: [x] * 3, buffer=1, retry=1, skip=OSError) if rng.random() < 0.5 else pipe
        for make in STAGES.values():
            pipe = make(pipe, rng.randint(1, 4)) if rng.random() < 0.3 else pipe
        pipe = pipe.take(rng.randint(1, 400)) if rng.random() < 0.5 else pipe
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


async def test_a_source_that_is_being_closed_is_closed_though_the_consumer_is_cancelled(s: asc.Scheduler) -> None:
    closing, go_on, closed = asyncio.Event(), asyncio.Event(), False

    async def source() -> AsyncIterator[int]:
        nonlocal closed
        try:
            for i in range(9):
                yield i
        finally:
            closing.set()
            await go_on.wait()
            closed = True

    async def consume() -> None:
        async with s.pipeline(source()).take(1).map(same).open() as items:
            async for _ in items:
                await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await closing.wait()
    task.cancel()
    await turns(9)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed


async def test_a_source_that_waits_for_an_item_that_is_not_wanted_is_closed(s: asc.Scheduler) -> None:
    closed = 0

    async def source(epoch: int) -> AsyncIterator[int]:
        nonlocal closed
        try:
            yield 10 + epoch
            await asyncio.Event().wait()
            yield -1
        finally:
            await turns(3)
            closed += 1

    async with s.pipeline(source).filter(same).take(1).repeat(3).open() as items:
        assert [item async for item in items] == [10, 11, 12]
    assert closed == 3


async def test_no_thread_outlives_its_epoch(s: asc.Scheduler) -> None:
    pipe = s.pipeline(Counted(20)).map(same_in_thread, workers=3).batch(2)
    before = {*threading.enumerate()}
    for _ in range(10):
        await drain(pipe)
    await until(lambda: {*threading.enumerate()} <= before)  # each has told its end, and has nothing left to do


@pytest.mark.one_loop
async def test_processes_end_with_the_block(s: asc.Scheduler) -> None:
    async with s.pipeline(range(10**6)).map(math.factorial, workers=2, processes=True, buffer=0).open() as items:
        assert await anext(items) == 1
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()


_KILLED = """
import asyncsched as asc
from tests.flow import in_processes

async def main():
    async with asc.Scheduler("cpu") as s:
        async with s.pipeline([0]).map(in_processes.outlives_its_parent, processes=True).open() as items:
            await anext(items)

if __name__ == "__main__":
    asc.run(main)
"""


@pytest.mark.one_loop
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_processes_of_a_program_that_was_killed_end_in_silence() -> None:
    assert fresh(_KILLED) == ""


async def test_a_scheduler_closed_meanwhile_ends_it_with_an_error() -> None:
    with pytest.raises(asc.SchedulerClosed):
        async with asc.Scheduler("cpu") as s, s.pipeline([np.ones(3)] * 99).to_device().open() as items:
            await anext(items)
            await s.aclose()
            async for _ in items:
                pass
