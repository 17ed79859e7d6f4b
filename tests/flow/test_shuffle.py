"""The shuffle of a pipeline: its order, how much it holds, and that a resumed epoch goes on in the same order."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline.loop_stages import choice
from asyncsched.flow.pipeline.pipeline import BUFFER
from tests.waiting import turns, until

from .rig import AsyncCounted, Counted, Things, drain, same, same_in_thread, take


@pytest.mark.parametrize("size", [1, 2, 7, 50, 51, 1000])
async def test_each_item_comes_once_and_less_than_the_buffer_early(s: asc.Scheduler, size: int) -> None:
    found = await drain(s.pipeline(range(50)).shuffle(size, seed=0))
    assert sorted(found) == list(range(50))
    assert all(place > number - size for place, number in enumerate(found))
    assert (found == list(range(50))) == (size == 1)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 4])
async def test_workers_at_the_end_let_go_of_the_room_that_others_wait_for(
    s: asc.Scheduler, workers: int, ordered: bool
) -> None:
    for count in range(1, 10):
        pipe = s.pipeline(range(count)).map(same, workers=workers, ordered=ordered, buffer=0)
        async with asyncio.timeout(60):
            assert sorted(await drain(pipe.shuffle(100, seed=0))) == list(range(count))
            assert sorted(await drain(pipe.batch(100, collate=sorted))) == [list(range(count))]


async def test_orders_differ_by_epoch_and_seed_and_by_nothing_else(s: asc.Scheduler) -> None:
    def pipe(seed: int, source: Any = range(50)) -> Any:
        return s.pipeline(source, buffer=3).map(same_in_thread, workers=2).shuffle(8, seed=seed).map(same)

    first = pipe(0)
    epochs = [await drain(first) for _ in range(3)]
    for source in (list(range(50)), Counted(50), AsyncCounted(50)):
        again = pipe(0, source)
        assert [await drain(again) for _ in range(3)] == epochs
    found = [*epochs, await drain(pipe(1)), await drain(pipe(2**70))]
    assert len({tuple(order) for order in found}) == 5


async def test_orders_are_about_even(s: asc.Scheduler) -> None:
    """Of five that are all held any may come first, and any last."""
    pipe = s.pipeline(range(5)).shuffle(5, seed=0)
    orders = [await drain(pipe) for _ in range(500)]
    for place in (0, 4):
        found = Counter(order[place] for order in orders)
        assert all(60 < found[number] < 140 for number in range(5))
    assert len({tuple(order) for order in orders}) > 110  # of 120
    steps = Counter(choice(0, 0, newest, 7) for newest in range(7000))
    assert all(850 < steps[place] < 1150 for place in range(7))


@pytest.mark.parametrize("source", [range(60), Counted(60), AsyncCounted(60)], ids=["range", "iterable", "async"])
@pytest.mark.parametrize("size", [1, 9, 100])
async def test_a_resumed_epoch_goes_on_in_the_same_order(s: asc.Scheduler, source: Any, size: int) -> None:
    def make() -> Any:
        return s.pipeline(source).map(same, workers=2).shuffle(size, seed=3).map(same_in_thread, workers=2)

    pipe = make()
    epochs = [await drain(pipe), await drain(pipe)]
    for taken in (0, 1, 8, 30, 59, 60):
        pipe = make()
        await drain(pipe)  # the second epoch
        assert await take(pipe, taken) == epochs[1][:taken]
        state = json.loads(json.dumps(pipe.state_dict()))
        other = make()
        other.load_state_dict(state)
        assert await take(other, (60 - taken) // 2) == epochs[1][taken : taken + (60 - taken) // 2]
        other.load_state_dict(other.state_dict())
        assert await drain(other) == epochs[1][taken + (60 - taken) // 2 :]


KEEPS = {"not the first of each epoch": lambda item: item[1] > 0, "nothing of the second": lambda item: item[0] != 1}


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
async def test_so_do_several_epochs_with_a_filter_behind(s: asc.Scheduler, keep: Any) -> None:
    def make() -> Any:
        return s.pipeline(lambda epoch: [(epoch, i) for i in range(5)]).repeat(3).shuffle(6, seed=0).filter(keep)

    unbroken = await drain(make())
    for taken in range(len(unbroken)):
        pipe, other = make(), make()
        received = await take(pipe, taken)
        other.load_state_dict(pipe.state_dict())
        assert received + await drain(other) == unbroken


@pytest.mark.parametrize("before", [True, False])
async def test_where_others_change_the_order_each_item_comes_once(s: asc.Scheduler, before: bool) -> None:
    async def late(i: int) -> int:
        await turns(i % 7)
        return i

    pipe = s.pipeline(range(100))
    pipe = pipe.map(late, workers=5, ordered=False).shuffle(9, seed=0) if before else pipe.shuffle(9, seed=0)
    pipe = pipe if before else pipe.map(late, workers=5, ordered=False)
    received: list[int] = []
    for _ in range(3):
        received += await take(pipe, 7)
        pipe.load_state_dict(pipe.state_dict())
    assert sorted(received + await drain(pipe)) == list(range(100))


async def test_resuming_far_into_what_lies_in_memory_takes_no_time(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(10**12)).shuffle(2, seed=0)
    pipe.load_state_dict({"epoch": 0, "taken": 10**11, "ahead": [10**11 + 1]})
    assert set(await take(pipe, 2)) < {10**11, 10**11 + 2, 10**11 + 3}


async def test_it_reads_ahead_by_what_it_holds_and_what_may_wait(s: asc.Scheduler) -> None:
    source = Counted(1000)
    pipe = s.pipeline(source, buffer=3).shuffle(20, seed=0)
    async with pipe.open() as items:
        await anext(items)
        most = 3 + 20 + BUFFER  # room is taken first: when all is full, one that was given may not be replaced yet
        await until(lambda: source.asked >= most - 1)
        await turns(20)
        assert most - 1 <= source.asked <= most
        found = pipe.statistics().stages[1]
        assert (found.name, found.workers, found.capacity) == ("1 (shuffle 20)", 1, 20 + BUFFER)
        assert found.items == 1 + BUFFER
        assert found.room_wait_seconds > 0


async def test_what_it_holds_is_dropped_where_the_epoch_is_left(s: asc.Scheduler) -> None:
    things = Things()
    pipe = s.pipeline(range(1000)).map(things).shuffle(20, seed=0)
    async with pipe.open() as items:
        await anext(items)
        assert things.alive >= 19
    del items
    gc.collect()
    assert things.alive == 0
    assert len(await drain(pipe)) == 1000


@pytest.mark.parametrize("size", [5, 100])
async def test_an_error_comes_without_what_is_held_and_the_epoch_can_be_resumed(s: asc.Scheduler, size: int) -> None:
    broken = True

    def fails(i: int) -> int:
        if broken and i == 30:
            raise OSError("no such file")
        return i

    pipe = s.pipeline(range(50)).map(fails).shuffle(size, seed=0)
    received = []
    with pytest.raises(OSError, match="no such file") as caught:
        async with pipe.open() as items:
            async for item in items:
                received.append(item)
    assert "map fails" in caught.value.__notes__[0]
    assert len(received) == max(0, 31 - size)
    broken = False
    pipe.load_state_dict(pipe.state_dict())
    received += await drain(pipe)
    assert received == await drain(s.pipeline(range(50)).shuffle(size, seed=0))


async def test_batches_of_it_go_to_the_device(s: asc.Scheduler) -> None:
    pipe = s.pipeline(np.arange(10.0)).shuffle(4, seed=0).batch(5).to_device()
    found: list[float] = []
    async with pipe.open() as items:
        async for batch in items:
            found += (await batch.numpy()).tolist()
    assert sorted(found) == list(range(10))


async def test_what_is_refused(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(3))
    with pytest.raises(ValueError, match="buffer_size must be at least 1"):
        pipe.shuffle(0, seed=0)
    with pytest.raises(TypeError, match="seed must be an int"):
        pipe.shuffle(2, seed=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be at least 0"):
        pipe.shuffle(2, seed=-1)
    with pytest.raises(ValueError, match="one shuffle"):
        pipe.shuffle(2, seed=0).batch(2).shuffle(2, seed=0)
    assert repr(pipe.shuffle(2, seed=0)) == "Pipeline(range, shuffle 2)"
