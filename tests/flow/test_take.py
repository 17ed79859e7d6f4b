"""The first items of each epoch: no more are read, the source is closed then, and a resumed epoch counts on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import until

from .rig import AsyncCounted, Counted, Mapped, Sized, drain, same, same_in_thread, take

SOURCES: dict[str, Any] = {
    "list": lambda n: list(range(n)),
    "array": np.arange,
    "by index": Mapped,
    "iterable": Counted,
    "async": AsyncCounted,
    "function of the epoch": lambda n: lambda epoch: iter(range(n)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("n", [0, 1, 6, 7, 8, 100])
async def test_the_first_come_and_a_resumed_epoch_gives_the_rest(s: asc.Scheduler, source: Any, n: int) -> None:
    def make() -> Any:
        return s.pipeline(source(7), buffer=2).map(same, workers=2).take(n).map(same_in_thread)

    first = list(range(min(n, 7)))
    pipe = make()
    assert [await drain(pipe), await drain(pipe)] == [first, first]
    for taken in range(len(first) + 1):
        pipe, other = make(), make()
        assert await take(pipe, taken) == first[:taken]
        other.load_state_dict(json.loads(json.dumps(pipe.state_dict())))
        assert await drain(other) == first[taken:]
        assert await drain(other) == first


@pytest.mark.parametrize("kind", [Counted, AsyncCounted])
@pytest.mark.parametrize("buffer", [1, 4, 100])
async def test_no_more_are_read_and_the_source_is_closed_at_once(
    s: asc.Scheduler, kind: type[Counted], buffer: int
) -> None:
    source = kind(1000)
    async with s.pipeline(source, buffer=buffer).map(same, buffer=5).take(4).open() as items:
        assert await anext(items) == 0
        await until(lambda: source.closed == 1)  # while the consumer is at the first
        assert source.asked == 4
        assert [item async for item in items] == [1, 2, 3]


async def test_by_index_no_other_is_asked_for(s: asc.Scheduler) -> None:
    source = Mapped(10)
    assert await drain(s.pipeline(source).take(3)) == source.asked == [0, 1, 2]
    source.asked.clear()
    assert await drain(s.pipeline(source, order=range(9, -1, -1)).shard(1, 2).take(3)) == source.asked == [8, 6, 4]


async def test_what_has_no_end_has_one(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline(lambda epoch: itertools.count()).batch(2, collate=tuple).take(2)) == [(0, 1), (2, 3)]


async def test_batches_are_counted_behind_batches_and_items_before(s: asc.Scheduler) -> None:
    source = Sized(10)
    pipe = s.pipeline(source).batch(3, collate=tuple).take(2)
    assert await drain(pipe) == [(0, 1, 2), (3, 4, 5)]
    assert (len(pipe), source.asked) == (2, 6)
    pipe = s.pipeline(source).take(7).batch(3, collate=tuple).take(5)
    assert await drain(pipe) == [(0, 1, 2), (3, 4, 5), (6,)]
    assert len(pipe) == 3
    assert repr(pipe) == "Pipeline(Sized, take 7, batch 3, take 5)"


async def test_each_epoch_of_a_repeat_has_as_many(s: asc.Scheduler) -> None:
    for source in (range(5), Counted(5), AsyncCounted(5)):

        def make(source: Any = source) -> Any:
            return s.pipeline(source).map(same).take(3).repeat(3).batch(2, collate=tuple)

        whole = [(0, 1), (2, 0), (1, 2), (0, 1), (2,)]
        for taken in range(6):
            pipe, other = make(), make()
            assert await take(pipe, taken) == whole[:taken]
            other.load_state_dict(pipe.state_dict())
            assert await drain(other) == whole[taken:]
    assert len(s.pipeline(range(5)).take(3).repeat(3).batch(2)) == 5
    with pytest.raises(ValueError, match="the source has no items"):
        await drain(s.pipeline(range(5)).take(0).repeat())


async def test_what_is_left_is_known(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(100)).take(5)
    assert len(pipe) == 5
    async with pipe.open() as items:
        await anext(items)
        assert len(items) == 4
    pipe.load_state_dict(pipe.state_dict())
    assert len(pipe.open()) == 4


async def test_filters_and_shuffles_come_behind(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline(range(100)).take(6).filter(lambda i: i % 2)) == [1, 3, 5]
    assert sorted(await drain(s.pipeline(range(100)).take(6).shuffle(4, seed=0))) == list(range(6))


async def test_its_statistics_are_those_of_the_source(s: asc.Scheduler) -> None:
    pipe = s.pipeline(Counted(100)).take(4).map(same)
    await drain(pipe)
    assert [(stage.name, stage.items) for stage in pipe.statistics().stages] == [("0 (source)", 4), ("1 (map same)", 4)]


async def test_what_is_refused(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(9))
    with pytest.raises(ValueError, match="n must be at least 0, not -1"):
        pipe.take(-1)
    with pytest.raises(TypeError, match="n must be an int, not float"):
        pipe.take(2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`.shard` comes first"):
        pipe.take(3).shard(0, 2)


def odd(i: int) -> bool:
    return bool(i % 2)


BEHIND: dict[str, Any] = {
    "filter": lambda pipe: pipe.filter(odd),
    "shuffle": lambda pipe: pipe.shuffle(4, seed=0),
    "unbatch": lambda pipe: pipe.flat_map(lambda i: [i] * (i % 3)),
    "skip": lambda pipe: pipe.map(lambda i: 6 // (i % 4), skip=ZeroDivisionError),
    "repeat": lambda pipe: pipe.repeat(),
}


@pytest.mark.parametrize("before", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("kind", [Counted, AsyncCounted, Mapped])
async def test_behind_stages_whose_length_is_not_known(s: asc.Scheduler, before: Any, kind: Any) -> None:
    """It gives as many, the source is closed, and a resumed epoch gives the rest."""
    source = kind(23)
    whole = (
        await drain(before(s.pipeline(source)).take(30)) if before is not BEHIND["repeat"] else [*range(23), *range(7)]
    )
    for n in (0, 1, 7, 30):
        for taken in range(min(n, len(whole)) + 1):
            pipe, other = (before(s.pipeline(source, buffer=2)).take(n) for _ in range(2))
            assert await take(pipe, taken) == whole[:taken]
            other.load_state_dict(json.loads(json.dumps(pipe.state_dict())))
            assert await drain(other) == whole[taken:n]
            assert await drain(other) == await drain(pipe)
    if kind is Counted:
        opened = source.closed
        async with before(s.pipeline(source)).take(3).open() as items:
            assert [item async for item in items] == whole[:3]
        assert source.closed > opened
    with pytest.raises(TypeError, match="length of this pipeline is not known"):
        len(before(s.pipeline(source)).take(3))


async def test_what_has_no_end_is_read_no_further_than_ahead(s: asc.Scheduler) -> None:
    source = Counted(10**9)
    assert await drain(s.pipeline(source, buffer=2).filter(odd, buffer=0).take(3)) == [1, 3, 5]
    assert source.asked < 100
    assert source.closed == 1


async def test_an_error_behind_the_last_is_of_an_item_that_nobody_asked_for(s: asc.Scheduler) -> None:
    def fails(i: int) -> int:
        if i == 7:
            raise LookupError("it")
        return i

    pipe = s.pipeline(range(20)).map(fails).filter(odd)
    assert await drain(pipe.take(3)) == [1, 3, 5]
    with pytest.raises(LookupError, match="it"):
        await drain(pipe.take(4))


async def test_each_epoch_of_a_repeat_is_counted_anew_or_all_together(s: asc.Scheduler) -> None:
    odds = s.pipeline(range(6)).filter(odd)
    assert await drain(odds.take(2).repeat(2)) == [1, 3, 1, 3]
    assert await drain(odds.repeat(2).take(4)) == [1, 3, 5, 1]
    assert await drain(odds.take(2).repeat().take(5)) == [1, 3, 1, 3, 1]
    assert repr(odds.take(2).repeat().take(5)) == "Pipeline(range, filter odd, take 2, repeat, take 5)"
