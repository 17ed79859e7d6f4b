"""Pipelines: what comes out, in which order, how far ahead, and what they tell of themselves."""

from __future__ import annotations

import asyncio
import io
import math
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline.functions import EntryQueue
from asyncsched.runtime.threads import YIELDED
from tests.waiting import turns, until

from .conftest import MakeTable
from .rig import AsyncCounted, Counted, drain, holding, same, same_in_thread, stages_of


async def numbers(epoch: int = 0) -> AsyncIterator[int]:
    for i in range(50):
        yield i + 100 * epoch


class ByIndex:
    """Read by `__getitem__` alone."""

    def __getitem__(self, i: int) -> int:
        if i >= 50:
            raise IndexError
        return i


SOURCES: dict[str, Any] = {
    "list": list(range(50)),
    "tuple": tuple(range(50)),
    "range": range(50),
    "array": np.arange(50),
    "dict": dict.fromkeys(range(50)),
    "iterable": Counted(50),
    "by index": ByIndex(),
    "async iterable": AsyncCounted(50),
    "function of the epoch": lambda epoch: (i for i in range(50)),
    "async generator function": lambda epoch: numbers(),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_every_source_is_read_again_each_epoch(s: asc.Scheduler, source: Any) -> None:
    pipe = s.pipeline(source, buffer=3).map(same, buffer=2)
    for _ in range(3):
        assert await drain(pipe) == list(range(50))


@pytest.mark.parametrize("make", [lambda: iter(range(50)), numbers], ids=["iterator", "async iterator"])
async def test_an_iterator_is_read_once(s: asc.Scheduler, make: Any) -> None:
    pipe = s.pipeline(make())
    assert await drain(pipe) == list(range(50))
    with pytest.raises(RuntimeError, match="a function of the epoch's number that makes one"):
        await drain(pipe)


async def test_a_function_is_told_the_epoch(s: asc.Scheduler) -> None:
    pipe = s.pipeline(numbers)
    assert [(await drain(pipe))[0] for _ in range(3)] == [0, 100, 200]
    with pytest.raises(TypeError, match="returned a int, which is not iterable"):
        await drain(s.pipeline(lambda epoch: epoch))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("fn", [same, same_in_thread])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("buffer", [0, 1, 16])
@pytest.mark.parametrize("ordered", [True, False])
async def test_all_items_pass(s: asc.Scheduler, fn: Any, workers: int, buffer: int, ordered: bool) -> None:
    pipe = s.pipeline(range(200), buffer=max(1, buffer))
    for _ in range(3):
        pipe = pipe.map(fn, workers=workers, buffer=buffer, ordered=ordered)
    found = await drain(pipe)
    assert (found if ordered else sorted(found)) == list(range(200))


async def test_none_is_data(s: asc.Scheduler) -> None:
    pipe = s.pipeline([None] * 7).map(same_in_thread, workers=2).map(same).batch(3)
    assert await drain(pipe) == [[None] * 3, [None] * 3, [None]]


async def test_nothing_passes_as_nothing(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline([]).map(same).map(same_in_thread).batch(2).to_device()) == []


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("threads", [True, False])
async def test_order_is_kept_or_not(s: asc.Scheduler, threads: bool, ordered: bool) -> None:
    fn, let_go = holding(0, threads)
    pipe = s.pipeline(range(10)).map(fn, workers=2, ordered=ordered)
    async with pipe.open() as items:
        if not ordered:
            assert [await anext(items) for _ in range(9)] == list(range(1, 10))
        let_go()
        assert [item async for item in items] == (list(range(10)) if ordered else [0])


@pytest.mark.parametrize("workers", [1, 3])
async def test_as_many_as_there_are_workers_run_at_once(s: asc.Scheduler, workers: int) -> None:
    together = threading.Barrier(workers)
    running, most = 0, 0

    async def coroutine(i: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await turns(5)
        running -= 1

    await drain(s.pipeline(range(3 * workers)).map(lambda i: together.wait(60), workers=workers))
    await drain(s.pipeline(range(20)).map(coroutine, workers=workers))
    assert most == workers


async def test_stages_overlap(s: asc.Scheduler) -> None:
    """The first stage cannot finish item 2 before the second has begun item 1, nor that item 1 before the third 0."""
    begun = [[asyncio.Event() for _ in range(10)] for _ in range(3)]

    def stage(number: int) -> Any:
        async def fn(i: int) -> int:
            begun[number][i].set()
            if number < 2 and i > 0:
                await begun[number + 1][i - 1].wait()
            return i

        return fn

    pipe = s.pipeline(range(10))
    for number in range(3):
        pipe = pipe.map(stage(number), buffer=0)
    assert await drain(pipe) == list(range(10))


@pytest.mark.parametrize("kind", [Counted, AsyncCounted])
async def test_the_source_is_never_asked_for_more_than_there_is_room_for(s: asc.Scheduler, kind: type[Counted]) -> None:
    source = kind(1000)
    pipe = s.pipeline(source, buffer=3).map(same, workers=2, buffer=1).map(same_in_thread, workers=2, buffer=2)
    async with pipe.open() as items:
        room = sum(stage.capacity for stage in pipe.statistics().stages)
        assert room == 3 + 3 + 4
        for received in range(1, 300):
            await anext(items)
            assert source.asked <= received + room
        while source.asked < received + room - 4:  # it does read ahead
            await asyncio.sleep(0)
        assert source.asked <= received + room


@pytest.mark.parametrize(("source", "ahead"), [(range(99), 64), (Counted(99), 16), (lambda epoch: [epoch], 64)])
async def test_more_is_read_ahead_of_what_is_in_memory_anyway(s: asc.Scheduler, source: Any, ahead: int) -> None:
    for buffer, capacity in ((None, ahead), (2, 2)):
        pipe = s.pipeline(source, buffer=buffer)
        async with pipe.open():
            assert pipe.statistics().stages[0].capacity == capacity


async def test_the_items_of_a_batch_wait_in_front_of_it(s: asc.Scheduler) -> None:
    made: list[int] = []
    pipe = s.pipeline(range(1000)).map(lambda i: made.append(i) or i, buffer=3).batch(10)
    async with pipe.open() as items:
        await anext(items)
        stages = pipe.statistics().stages
        await until(lambda: len(made) == 3 * 10 + stages[1].capacity)  # a batch is taken, two are ahead
        assert stages[1].capacity == 1 + 3 + 10
        await turns()
        assert len(made) == 3 * 10 + stages[1].capacity


async def test_a_batch_counts_as_its_items(s: asc.Scheduler) -> None:
    source = Counted(1000)
    pipe = s.pipeline(source, buffer=4).batch(10)
    async with pipe.open() as items:
        for received in range(10, 500, 10):
            await anext(items)
            assert source.asked <= received + 4 + 2 * 10


async def test_batches(s: asc.Scheduler) -> None:
    found = await drain(s.pipeline(range(10)).batch(4))
    assert [batch.tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(await drain(s.pipeline(range(10)).batch(4, drop_last=True))) == 2
    assert await drain(s.pipeline(range(5)).batch(2, collate=sum)) == [1, 5, 4]
    nested = await drain(s.pipeline(range(8)).batch(2).batch(2))
    assert [batch.tolist() for batch in nested] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


async def test_items_that_wait_to_be_a_batch_keep_no_worker_from_the_next(s: asc.Scheduler) -> None:
    gates = [asyncio.Event() for _ in range(8)]
    begun: list[int] = []

    async def fn(item: int) -> int:
        begun.append(item)
        await gates[item].wait()
        return item

    async with s.pipeline(range(8)).map(fn, workers=4, buffer=0).batch(8).open() as items:
        for gate in gates:
            await until(lambda: len(begun) == min(8, 4 + sum(gate.is_set() for gate in gates)))
            gate.set()
        assert (await anext(items)).tolist() == list(range(8))


async def test_threads_tell_of_a_batch_in_bursts(
    s: asc.Scheduler, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[EntryQueue[Any], list[int]] = {}
    drain_as_before = EntryQueue.drain

    def counted(queue: EntryQueue[Any]) -> None:
        told.setdefault(queue, []).append(len(queue.things))
        drain_as_before(queue)

    monkeypatch.setattr(EntryQueue, "drain", counted)
    pipe = s.pipeline(range(8)).map(lambda i: gate.wait(60) if i == 1 else i).batch(8)
    async with pipe.open() as items:
        stage: Any = stages_of(items)[1]
        await until(lambda: len(stage._calls) == 6 and stage.out.wanted == 8)
        gate.set()
        await anext(items)
        assert told[stage._made][0] == 8


async def test_what_is_no_batch_yet_is_told_when_the_threads_have_nothing_to_do(s: asc.Scheduler) -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[int]:
        for i in range(8):
            if i == 4:
                await more.wait()
            yield i

    pipe = s.pipeline(lambda epoch: source()).map(same_in_thread, workers=2).batch(8)
    async with pipe.open() as items:
        await until(lambda: pipe.statistics().stages[1].items == 4)
        more.set()
        assert (await anext(items)).tolist() == list(range(8))


@pytest.mark.parametrize("together", [True, False])
async def test_every_call_finds_a_thread_that_is_free(s: asc.Scheduler, together: bool) -> None:
    meet = threading.Barrier(3)

    async def source() -> AsyncIterator[int]:
        for i in range(30):
            if not together:
                await asyncio.sleep(0)
            yield i

    def fn(i: int) -> int:
        meet.wait(60)  # for a call in each of the other threads
        return i

    assert await drain(s.pipeline(lambda epoch: source()).map(fn, workers=3)) == [*range(30)]


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a process's, not a thread's")
async def test_threads_of_a_pipeline_yield_to_others(s: asc.Scheduler) -> None:
    def niceness(_: object = None) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    def source() -> Iterator[int]:
        yield niceness()

    mine = niceness()
    pipe = s.pipeline(lambda epoch: source()).map(lambda read: [read, niceness()]).batch(1, collate=lambda made: made)
    assert await drain(pipe) == [[[min(mine + YIELDED, 19)] * 2]]
    assert niceness() == mine == await s.call(niceness)


@pytest.mark.one_loop
async def test_processes(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(30)).map(math.factorial, workers=2, processes=True)
    assert await drain(pipe) == [math.factorial(i) for i in range(30)]
    with pytest.raises(ValueError, match="not defined for negative") as caught:
        await drain(s.pipeline([3, -1]).map(math.factorial, processes=True))
    assert "stage 1 (map factorial), at item 1 of" in caught.value.__notes__[-1]


async def test_repr_names_the_stages(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(3)).map(math.factorial).batch(2).to_device()
    assert repr(pipe) == "Pipeline(range, map factorial, batch 2, to_device)"

    def source(epoch: int) -> range:
        return range(epoch)

    assert repr(s.pipeline(source)) == "Pipeline(source)"


async def test_statistics_name_the_bottleneck(s: asc.Scheduler, gate: threading.Event) -> None:
    def stop_at_third(i: int) -> int:
        if i == 2:
            gate.wait(60)
        return i

    pipe = s.pipeline(range(200)).map(same).map(stop_at_third).map(same)
    assert pipe.statistics().stages == ()
    async with pipe.open() as items:
        assert [await anext(items) for _ in range(2)] == [0, 1]
        waiting = asyncio.ensure_future(anext(items))
        await until(lambda: pipe.statistics().wait_seconds >= 0.2)
        gate.set()
        assert await waiting == 2
        assert [item async for item in items] == list(range(3, 200))
    found = pipe.statistics()
    assert found == pipe.statistics()  # it stands still when closed
    assert [stage.name for stage in found.stages] == [
        "0 (source)", "1 (map same)", "2 (map stop_at_third)", "3 (map same)",
    ]  # fmt: skip
    assert [stage.items for stage in found.stages] == [200] * 4
    assert found.bottleneck == "2 (map stop_at_third)"
    busy = found.stages[2].busy_seconds
    assert found.stages[3].input_wait_seconds > busy / 2
    assert found.stages[0].room_wait_seconds > 0
    assert found.stages[1].room_wait_seconds > 0
    assert busy / 2 < found.wait_seconds <= found.seconds


async def test_a_slow_consumer_is_the_bottleneck(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(10)).map(same).map(same_in_thread)
    assert pipe.statistics().bottleneck == ""
    async with pipe.open() as items:
        await anext(items)
        await until(lambda: pipe.statistics().stages[2].items >= 10)
        await until(lambda: pipe.statistics().bottleneck == "the consumer")


async def test_others_get_their_turn_while_items_are_taken(s: asc.Scheduler) -> None:
    other = asyncio.ensure_future(turns(20))
    async with s.pipeline(range(2000)).map(same).open() as items:
        async for _ in items:
            pass
    assert other.done()


async def test_misuse_is_told() -> None:
    async with asc.Scheduler("cpu") as s:
        pipe = s.pipeline(range(5))
        for misuse, error, text in (
            (lambda: s.pipeline(3), TypeError, "not int"),  # type: ignore[arg-type]
            (lambda: s.pipeline(asc.ones(3)), TypeError, "not Tensor"),
            (lambda: s.pipeline(np.float64(3)), TypeError, "not float64"),  # type: ignore[arg-type]
            (lambda: s.pipeline(np.array(3)), TypeError, "not ndarray"),
            (lambda: s.pipeline(lambda: [1]), TypeError, r"takes? .*too many.*pass `lambda epoch: <lambda>\(\)`"),  # type: ignore[arg-type]
            (lambda: pipe.map(same, workers=0), ValueError, "workers must be at least 1, not 0"),
            (lambda: pipe.map(same, buffer=True), TypeError, "buffer must be an int, not bool"),
            (lambda: pipe.map(3), TypeError, "a function of one item, not int"),  # type: ignore[arg-type, call-overload]
            (lambda: pipe.map(same, processes=True), TypeError, "leave out processes=True"),  # type: ignore[call-overload]
            (lambda: pipe.map(lambda i: i, processes=True), TypeError, "define <lambda> at the top of a module"),
            (lambda: pipe.batch(2, collate=same), TypeError, r"add a `.map`"),
            (lambda: pipe.to_device(depth=0), ValueError, "depth must be at least 1"),
        ):
            with pytest.raises(error, match=text):
                misuse()
        async with pipe.open() as items:
            with pytest.raises(RuntimeError, match="leave its block first"):
                await drain(pipe)
            with pytest.raises(RuntimeError, match="leave its block first"):
                pipe.load_state_dict(pipe.state_dict())
            with pytest.raises(RuntimeError, match="opened before"):
                await items.__aenter__()
            assert await anext(items) == 0
        with pytest.raises(RuntimeError, match="the pipeline is closed"):
            await anext(items)
        with pytest.raises(RuntimeError, match="the pipeline is not open yet"):
            await anext(pipe.open())
    with pytest.raises(asc.SchedulerClosed):
        await drain(pipe)


async def test_a_table_is_no_source(s: asc.Scheduler, table: MakeTable) -> None:
    made = table({"a": [1, 2, 3], "b": [4, 5, 6]})
    for order in (None, [2, 0, 1], lambda epoch: [0]):
        with pytest.raises(TypeError, match="iterates over its columns: give its rows"):
            s.pipeline(made, order=order)
        with pytest.raises(TypeError, match="iterates over its columns: give its rows"):
            await drain(s.pipeline(lambda epoch: made, order=order))
    assert len(await drain(s.pipeline([made, made]))) == 2


async def test_the_rows_and_the_columns_of_a_table_are_sources(s: asc.Scheduler, frame: MakeTable) -> None:
    made = frame({"a": [1, 2, 3], "b": [4, 5, 6]})
    found = await drain(s.pipeline(made.to_numpy(), order=[2, 0]))
    assert [row.tolist() for row in found] == [[3, 6], [1, 4]]
    assert await drain(s.pipeline(made["a"])) == [1, 2, 3]


async def test_a_column_with_labels_is_not_read_by_places(s: asc.Scheduler, pandas: Any) -> None:
    column = pandas.Series([10, 20, 30], index=[2, 1, 0])
    with pytest.raises(TypeError, match="read by its labels"):
        s.pipeline(column, order=[0, 1, 2])
    assert await drain(s.pipeline(column)) == [10, 20, 30]


async def test_a_column_of_a_table_is_an_order_by_its_rows(s: asc.Scheduler, pandas: Any, table: MakeTable) -> None:
    order = pandas.Series([2, 0, 1], index=[1, 2, 0])
    assert await drain(s.pipeline([10, 20, 30], order=order)) == [30, 10, 20]
    assert await drain(s.pipeline([10, 20, 30], order=lambda epoch: order)) == [30, 10, 20]
    for wrong in (table({"a": [1, 2]}), lambda epoch: table({"a": [1, 2]})):
        with pytest.raises(TypeError, match="order= is one axis of integers, not a table"):
            await drain(s.pipeline([10, 20, 30], order=wrong))


async def test_a_mapping_is_no_order(s: asc.Scheduler) -> None:
    for wrong in (Counter("abc"), {0: 2, 1: 0}):  # a counter has a 0 for every place
        for order in (wrong, lambda epoch, wrong=wrong: wrong):
            with pytest.raises(TypeError, match="give its values, in a list"):
                await drain(s.pipeline([10, 20, 30], order=order))  # type: ignore[arg-type]


async def test_a_file_of_named_arrays_is_no_source(s: asc.Scheduler) -> None:
    file = io.BytesIO()
    np.savez(file, x=np.arange(3), y=np.arange(3))
    file.seek(0)
    arrays = np.load(file)
    with pytest.raises(TypeError, match="NpzFile iterates over its names"):
        s.pipeline(arrays)
    with pytest.raises(TypeError, match="NpzFile iterates over its names"):
        await drain(s.pipeline(lambda epoch: arrays))
    assert await drain(s.pipeline(list(arrays))) == ["x", "y"]
    assert await drain(s.pipeline({0: "a", 1: "b"}, order=[1, 0])) == ["b", "a"]


async def test_two_coroutines_may_not_wait_for_one_pipeline(s: asc.Scheduler) -> None:
    gate = asyncio.Event()

    async def wait(i: int) -> int:
        await gate.wait()
        return i

    async with s.pipeline(range(3)).map(wait).open() as items:
        first = asyncio.ensure_future(anext(items))
        await turns()
        with pytest.raises(RuntimeError, match="another coroutine waits"):
            await anext(items)
        gate.set()
        assert await first == 0


def iterate(values: list[int]) -> Iterator[int]:
    yield from values


async def test_a_pipeline_is_a_description_that_can_branch(s: asc.Scheduler) -> None:
    start = s.pipeline(lambda epoch: iterate([1, 2, 3]))
    double, square = start.map(lambda i: 2 * i), start.map(lambda i: i * i)
    assert await drain(double) == [2, 4, 6]
    assert await drain(square) == [1, 4, 9]
    assert await drain(start) == [1, 2, 3]
