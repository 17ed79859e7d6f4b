"""The filter of a pipeline: what it keeps, how its errors come, and that a position stays short and right."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import until

from . import in_processes
from .rig import AsyncCounted, Counted, drain, same


def third(i: int) -> bool:
    return i % 3 == 0


async def third_later(i: int) -> int:
    await asyncio.sleep(0)
    return int(i % 3 == 0)


@pytest.mark.parametrize("fn", [third, third_later])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("buffer", [0, 16])
@pytest.mark.parametrize("ordered", [True, False])
async def test_what_is_kept_is_what_the_function_says(
    s: asc.Scheduler, fn: Any, workers: int, buffer: int, ordered: bool
) -> None:
    pipe = s.pipeline(range(100), buffer=2).filter(fn, workers=workers, buffer=buffer, ordered=ordered).map(same)
    found = await drain(pipe)
    assert (found if ordered else sorted(found)) == list(range(0, 100, 3))
    assert [stage.items for stage in pipe.statistics().stages] == [100, 34, 34]


@pytest.mark.one_loop
async def test_in_processes_the_items_stay_here(s: asc.Scheduler) -> None:
    things = [np.arange(i) for i in range(5)]
    found = await drain(s.pipeline(things).filter(in_processes.is_long, processes=True))
    assert [id(thing) for thing in found] == [id(thing) for thing in things[3:]]


async def test_items_that_are_false_themselves_pass(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline([None, 0, "", False]).filter(lambda item: True)) == [None, 0, "", False]
    assert await drain(s.pipeline(range(5)).filter(lambda item: np.False_).batch(2).to_device()) == []


async def test_batches_are_filled_from_what_is_kept(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(20)).filter(third).batch(3, collate=list)
    assert await drain(pipe) == [[0, 3, 6], [9, 12, 15], [18]]
    assert await drain(s.pipeline(range(12)).batch(2, collate=tuple).filter(lambda batch: 5 in batch)) == [(4, 5)]


async def test_an_item_that_is_kept_is_not_held_up_by_those_that_are_not(s: asc.Scheduler) -> None:
    """Four are worked on at once, of which three are dropped while nobody takes an item and the first is still busy."""
    held, asked = asyncio.Event(), set()

    async def fn(i: int) -> bool:
        asked.add(i)
        if i == 0:
            await held.wait()
        return i % 7 == 0

    async with s.pipeline(range(100)).filter(fn, workers=4, buffer=0, ordered=False).open() as items:
        waiting = asyncio.ensure_future(anext(items))
        assert await waiting == 7
        await until(lambda: len(asked) > 20)
        held.set()
        assert sorted([7, *[item async for item in items]]) == list(range(0, 100, 7))


@pytest.mark.parametrize("source", [range(30), Counted(30), AsyncCounted(30)], ids=["range", "iterable", "async"])
@pytest.mark.parametrize("taken", range(11))
async def test_a_resumed_epoch_goes_on_behind_the_last_item_that_was_received(
    s: asc.Scheduler, source: Any, taken: int
) -> None:
    pipe = s.pipeline(source).filter(third_later, workers=2).map(same).filter(lambda i: i != 15)
    kept = [i for i in range(0, 30, 3) if i != 15]
    async with pipe.open() as items:
        assert [await anext(items) for _ in range(min(taken, 9))] == kept[:taken]
    state = json.loads(json.dumps(pipe.state_dict()))
    assert state == {"epoch": 0, "taken": kept[taken - 1] + 1 if 0 < taken < 10 else 28 if taken else 0, "ahead": []}
    pipe.load_state_dict(state)
    assert await drain(pipe) == kept[taken:]


async def test_a_position_stays_short_however_few_are_kept(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(40_000)).filter(lambda i: i % 20_000 == 19_999).batch(1).filter(lambda batch: True)
    async with pipe.open() as items:
        assert (await anext(items)).tolist() == [19_999]
        assert pipe.state_dict() == {"epoch": 0, "taken": 20_000, "ahead": []}
    pipe = s.pipeline(range(100)).map(same, workers=3, ordered=False).filter(third_later, workers=3, ordered=False)
    async with pipe.open() as items:
        async for _ in items:
            assert len(pipe.state_dict()["ahead"]) <= sum(stage.capacity for stage in pipe.statistics().stages)


@pytest.mark.parametrize("later", [True, False])
async def test_an_error_names_its_item_alone(s: asc.Scheduler, later: bool) -> None:
    async def refuse_later(i: int) -> bool:
        return refuse(i)

    def refuse(i: int) -> bool:
        if i == 20:
            raise LookupError("it")
        return i == 10

    for behind in (False, True):
        pipe = s.pipeline(range(100)).filter(lambda i: i % 5 == 0)
        pipe = pipe.filter(refuse_later if later else refuse) if not behind else pipe.map(refuse)
        received = []
        with pytest.raises(LookupError, match="it") as caught:
            async with pipe.open() as items:
                async for item in items:
                    received.append(item)
        assert received == ([False, False, True, False] if behind else [10])
        assert caught.value.__notes__[0].endswith("at item 20 of the source: 20")


async def test_what_is_refused(s: asc.Scheduler) -> None:
    pipe = s.pipeline([np.ones(2)])
    with pytest.raises(TypeError, match="filter takes a function of one item, not NoneType"):
        pipe.filter(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="leave out processes=True"):
        pipe.filter(third_later, processes=True)
    with pytest.raises(ValueError, match="truth value of an array"):
        await drain(pipe.filter(lambda item: item > 0))
    with pytest.raises(TypeError, match="pass the coroutine function"):
        await drain(s.pipeline([1]).filter(lambda i: third_later(i)))
    assert repr(pipe.filter(third)) == "Pipeline(list, filter third)"
