"""Several epochs in one block: where they end, which numbers they have, and what goes on behind them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from . import in_processes
from .asking import Panic
from .rig import AsyncCounted, Counted, Mapped, Things, drain, same, same_in_thread


def of_epoch(epoch: int) -> list[int]:
    return [10 * epoch + i for i in range(5)]


SOURCES: dict[str, Any] = {
    "list": lambda epoch: of_epoch(epoch),
    "generator": lambda epoch: (i for i in of_epoch(epoch)),
    "async": lambda epoch: later(of_epoch(epoch)),
    "by index": lambda epoch: ByIndex(of_epoch(epoch)),
}


async def later(items: list[int]) -> Any:
    for item in items:
        await asyncio.sleep(0)
        yield item


class ByIndex:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_what_stands_before_sees_each_epoch_end_and_what_stands_behind_does_not(
    s: asc.Scheduler, source: Any
) -> None:
    pipe = s.pipeline(source, buffer=2)
    behind = pipe.map(same).repeat(2).batch(3, collate=list)
    assert await drain(behind) == [[0, 1, 2], [3, 4, 10], [11, 12, 13], [14]]
    assert await drain(behind) == [[20, 21, 22], [23, 24, 30], [31, 32, 33], [34]]
    before = pipe.batch(3, collate=list).map(same_in_thread, workers=2).repeat(2).map(same)
    assert await drain(before) == [[0, 1, 2], [3, 4], [10, 11, 12], [13, 14]]
    full = pipe.batch(3, collate=list, drop_last=True).repeat(3)
    assert await drain(full) == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert full.state_dict() == {"epoch": 3, "taken": 0, "ahead": []}


@pytest.mark.parametrize("size", [1, 3, 10])
async def test_the_order_of_an_epoch_is_that_of_an_epoch_alone(s: asc.Scheduler, size: int) -> None:
    def permutation(epoch: int) -> Any:
        return np.random.default_rng((1, epoch)).permutation(7)

    once = s.pipeline(range(7), order=permutation).shuffle(size, seed=0)
    epochs = [await drain(once) for _ in range(4)]
    assert len({tuple(order) for order in epochs}) == 4
    twice = once.repeat(2)
    assert [await drain(twice), await drain(twice)] == [epochs[0] + epochs[1], epochs[2] + epochs[3]]
    across = await drain(s.pipeline(range(7)).repeat(3).shuffle(size, seed=0))
    assert sorted(across) == sorted(3 * list(range(7)))


async def test_a_position_counts_each_epoch(s: asc.Scheduler) -> None:
    pipe = s.pipeline(Counted(3)).repeat(2).map(same)
    states = []
    async with pipe.open() as items:
        async for _ in items:
            states.append(pipe.state_dict())
    assert [(state["epoch"], state["taken"]) for state in states] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert pipe.state_dict() == {"epoch": 2, "taken": 0, "ahead": []}
    pipe.load_state_dict({"epoch": 3, "taken": 2, "ahead": []})
    assert await drain(pipe) == [2]  # the last of the second block
    assert pipe.state_dict()["epoch"] == 4
    async with pipe.open() as items:  # left early
        await anext(items)
    assert len(await drain(pipe)) == 6
    assert pipe.state_dict()["epoch"] == 8


async def test_it_may_go_on_for_ever(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(3)).map(same_in_thread, workers=2).filter(lambda i: i != 1).repeat().batch(4)
    async with pipe.open() as items:
        assert [(await anext(items)).tolist() for _ in range(50)] == [[0, 2, 0, 2]] * 50
        assert pipe.state_dict() == {"epoch": 99, "taken": 3, "ahead": []}
    async with pipe.open() as items:
        await anext(items)
        assert pipe.state_dict() == {"epoch": 101, "taken": 3, "ahead": []}
    for asked in (pipe, s.pipeline(range(3)).repeat()):
        with pytest.raises(TypeError, match="the length of this pipeline is not known"):
            len(asked)
    with pytest.raises(ValueError, match="nothing to repeat for ever"):
        await drain(s.pipeline([]).map(same).repeat().map(same))
    assert await drain(s.pipeline([]).map(same).repeat(1000)) == []


@pytest.mark.parametrize("behind", [False, True], ids=["in front of the repeat", "behind it"])
async def test_epochs_of_which_nothing_is_kept_take_no_memory(s: asc.Scheduler, behind: bool) -> None:
    found, calls = list[int](), 0

    async def last_of_2001(i: int) -> bool:
        nonlocal calls
        calls += 1
        if calls in (3000, 6000):
            found.append(sys.getallocatedblocks())
        return calls == 6003

    pipe = s.pipeline(range(3))
    pipe = pipe.repeat().filter(last_of_2001) if behind else pipe.filter(last_of_2001).repeat(2001)
    async with pipe.open() as items:
        assert await anext(items) == 2
        assert pipe.state_dict() == {"epoch": 2000, "taken": 3, "ahead": []}
    assert found[1] - found[0] < 300  # it was some 3 blocks an epoch


async def test_an_epoch_that_is_shorter_than_the_position_in_it_is_over(s: asc.Scheduler) -> None:
    pipe = s.pipeline(lambda epoch: iter(range(3 if epoch else 5))).repeat()
    pipe.load_state_dict({"epoch": 1, "taken": 4, "ahead": [7]})  # as if epoch 1 had been longer
    async with pipe.open() as items:
        assert [await anext(items) for _ in range(5)] == [0, 1, 2, 0, 1]
        assert pipe.state_dict() == {"epoch": 3, "taken": 2, "ahead": []}


async def test_what_unordered_stages_have_of_two_epochs_comes_once(s: asc.Scheduler) -> None:
    held = asyncio.Event()

    async def hold_first(i: int) -> int:
        if i == 0 and not held.is_set():
            await held.wait()
        return i

    pipe = s.pipeline(lambda epoch: of_epoch(epoch)).repeat(3).map(hold_first, workers=2, ordered=False)
    async with pipe.open() as items:
        assert [await anext(items) for _ in range(6)] == [1, 2, 3, 4, 10, 11]
        state = pipe.state_dict()
        assert (state["epoch"], state["taken"]) == (0, 0)
        held.set()
    pipe.load_state_dict(state)
    assert sorted(await drain(pipe)) == [0, 12, 13, 14, *of_epoch(2)]


async def test_each_epoch_may_have_a_source_of_another_kind(s: asc.Scheduler) -> None:
    pairs = list(product(SOURCES.values(), repeat=2))
    pipe = s.pipeline(lambda epoch: pairs[epoch // 2][epoch % 2](epoch)).repeat(2)
    for number in range(len(pairs)):
        assert await drain(pipe) == of_epoch(2 * number) + of_epoch(2 * number + 1)
        assert pipe.statistics().stages[0].busy_seconds > 0


async def test_statistics_add_up(s: asc.Scheduler) -> None:
    pipe = s.pipeline(Counted(50)).map(same_in_thread, workers=2).batch(20).repeat(4).map(same)
    assert len(await drain(pipe)) == 12
    found = pipe.statistics()
    assert [stage.items for stage in found.stages] == [200, 200, 12, 12]
    assert all(0 <= stage.busy_seconds <= stage.workers * found.seconds for stage in found.stages)
    assert repr(pipe) == "Pipeline(Counted, map same_in_thread, batch 20, repeat 4, map same)"
    assert repr(s.pipeline([1]).repeat()) == "Pipeline(list, repeat)"


async def test_the_length_is_that_of_all_epochs(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(7)).batch(2).repeat(3).batch(5, collate=list)
    assert len(pipe) == len(await drain(pipe)) == 3  # of four batches in each of three epochs
    async with pipe.open() as items:
        for left in (3, 2, 1):
            assert len(items) == left
            await anext(items)
        assert len(items) == 0
    pipe.load_state_dict({"epoch": 4, "taken": 6, "ahead": []})
    assert len(pipe.open()) == 1  # five of twelve batches were received, so to say
    assert len(await drain(pipe)) == 1


@pytest.mark.parametrize("kind", [Counted, AsyncCounted])
async def test_each_epoch_closes_its_source_and_leaving_the_last(s: asc.Scheduler, kind: type[Counted]) -> None:
    pipe = s.pipeline(source := kind(10)).map(same).batch(3).repeat(5)
    async with pipe.open() as items:
        for _ in range(9):
            await anext(items)
        await until(lambda: source.closed >= 2)
        await turns(200)  # it reads as far as there is room: leaving cancels one that is about to end by itself
    assert source.closed == -(-source.asked // 10)
    assert source.asked < 50


@pytest.mark.parametrize("kind", [LookupError, Panic])
@pytest.mark.parametrize("where", ["function", "source", "stage"])
async def test_an_error_in_a_later_epoch_comes_after_what_was_read(
    s: asc.Scheduler, where: str, kind: type[BaseException]
) -> None:
    class Source(Counted):
        def __init__(self, epoch: int) -> None:
            super().__init__(3)
            if epoch == 1 and where == "function":
                raise kind("it")
            self.fails = epoch == 1

        def __iter__(self) -> Iterator[int]:
            yield from super().__iter__()
            if self.fails and where == "source":
                raise kind("it")

    def fails_in_second(i: int) -> int:
        count.append(i)
        if where == "stage" and len(count) == 5:
            raise kind("it")
        return i

    count: list[int] = []
    pipe = s.pipeline(lambda epoch: Source(epoch)).map(fails_in_second).repeat(3).map(same)
    received = []
    with pytest.raises(kind, match="it") as caught:
        async with pipe.open() as items:
            async for item in items:
                received.append(item)
    assert received == {"function": [0, 1, 2], "source": [0, 1, 2] * 2, "stage": [0, 1, 2, 0]}[where]
    told = {"function": "the source of epoch 1", "source": "stage 0 (source), at item 3", "stage": "at item 1 of"}
    assert told[where] in caught.value.__notes__[0]


class ClosesBadly:
    """An iterator of one item that raises where it is closed."""

    def __init__(self) -> None:
        self.items = iter([0])

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        return next(self.items)

    def close(self) -> None:
        raise LookupError("closing failed")


async def broken(item: int) -> int:
    raise LookupError(item)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fn", [broken, lambda item: [][item]], ids=["loop", "thread"])
async def test_an_error_right_behind_it_waits_for_no_other_item(s: asc.Scheduler, fn: Any, ordered: bool) -> None:
    async def read() -> Any:
        yield 1
        await asyncio.Event().wait()

    pipe = s.pipeline(lambda epoch: read()).repeat(2).map(fn, workers=3, ordered=ordered)
    with pytest.raises(LookupError) as raised:
        await drain(pipe)
    assert "stage 1 (map" in raised.value.__notes__[0]
    assert "at item 0 of the source: 1" in raised.value.__notes__[0]


async def test_an_error_of_closing_an_earlier_source_is_not_lost(s: asc.Scheduler) -> None:
    pipe = s.pipeline(lambda epoch: [epoch] if epoch else ClosesBadly()).repeat(3)
    received = []
    with pytest.raises(LookupError, match="closing failed"):
        async with pipe.open() as items:
            async for item in items:
                received.append(item)
    assert received == [0, 1, 2]


async def test_leaving_between_two_epochs_waits_for_the_function_that_makes_a_source(s: asc.Scheduler) -> None:
    begun, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def source(epoch: int) -> list[int]:
        if epoch == 1:
            begun.set()
            assert let_go.wait(60)
            ended.set()
        return [epoch]

    async with s.pipeline(source).repeat(2).open() as items:
        assert await anext(items) == 0
        await until(begun.is_set)
        let_go.set()
    assert ended.is_set()


async def test_nothing_of_an_epoch_stays_for_the_next(s: asc.Scheduler) -> None:
    things = Things()
    pipe = s.pipeline(range(10)).map(things).shuffle(4, seed=0).map(same_in_thread, workers=2).repeat()
    async with pipe.open() as items:
        for _ in range(200):
            await anext(items)
        room = sum(stage.capacity for stage in pipe.statistics().stages)
        assert things.alive <= room + 4
    del items
    gc.collect()
    assert things.alive == 0


async def test_batches_ahead_go_back_to_the_host_in_each_epoch() -> None:
    """Each of them fits, but not two with what the consumer computes."""
    async with asc.Scheduler("cpu", max_bytes="200 KiB") as s:
        batch = np.ones(64 * 1024 // 8)
        pipe = s.pipeline([batch] * 5).to_device(depth=2).repeat(3)
        received = 0
        async with pipe.open() as items:
            async for x in items:
                y = x + 1.0
                assert await (y * 2.0).sum().item() == 4.0 * batch.size
                received += 1
                del x, y
        assert received == 15


@pytest.mark.one_loop
async def test_processes_serve_each_epoch(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline(range(2)).map(in_processes.same, processes=True).repeat(2)) == [0, 1, 0, 1]


async def test_what_is_refused(s: asc.Scheduler) -> None:
    pipe = s.pipeline(Mapped(3))
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0: use None for no end"):
        pipe.repeat(0)
    with pytest.raises(TypeError, match="epochs must be an int or None, not float"):
        pipe.repeat(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="repeated once"):
        pipe.repeat(2).batch(2).repeat(2)
    with pytest.raises(TypeError, match="an iterator, which can be read once"):
        s.pipeline(iter([1])).repeat(2)
    assert await drain(pipe.repeat(1).repeat(1)) == [0, 1, 2]
