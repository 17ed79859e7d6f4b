"""The parts of items, one by one; a pipeline that is resumed goes on in the middle of an item."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns

from . import in_processes
from .conftest import MakeTable
from .rig import Counted, Mapped, drain, same, take


@pytest.fixture
def no_gc() -> Iterator[None]:
    """What is freed is freed without the garbage collector."""
    gc.disable()
    yield
    gc.enable()


class Pair(NamedTuple):
    x: Any
    y: Any


class Table:
    """As pandas' and polars' are told."""

    columns, shape = ("x", "y"), (3, 2)


def rows(count: int) -> Iterator[tuple[int, int]]:
    for place in range(count):
        yield count, place


async def rows_later(count: int) -> list[tuple[int, int]]:
    return [*rows(count)]


ROWS = [(3, 0), (3, 1), (3, 2), (1, 0), (2, 0), (2, 1)]


@pytest.mark.parametrize("fn", [rows, rows_later])
async def test_it_goes_on_in_the_middle_of_an_item(s: asc.Scheduler, fn: Any) -> None:
    source = Mapped(3)

    def make() -> Any:
        return s.pipeline([3, 0, 1, 2, 0]).zip(source, strict=False).map(lambda both: both[0]).flat_map(fn)

    for taken in range(7):
        pipe, other = make(), make()
        found = await take(pipe, taken)
        other.load_state_dict(json.loads(json.dumps(pipe.state_dict())))
        assert found + await drain(other) == ROWS[:4], pipe.state_dict()
        if taken == 4:
            break


async def test_parts_that_were_received_are_not_given_again_in_any_order(s: asc.Scheduler) -> None:
    def make() -> Any:
        return s.pipeline([3, 1, 2]).flat_map(rows).shuffle(4, seed=0).filter(lambda row: row != (1, 0))

    whole = await drain(make())
    assert sorted(whole) == sorted(row for row in ROWS if row != (1, 0))
    assert whole != sorted(whole)
    for taken in range(len(whole) + 1):
        pipe, other = make(), make()
        assert await take(pipe, taken) == whole[:taken]
        other.load_state_dict(json.loads(json.dumps(pipe.state_dict())))
        assert await drain(other) == whole[taken:]


async def test_what_is_read_again_is_the_item_alone(s: asc.Scheduler) -> None:
    source = Mapped(100)
    pipe = s.pipeline(source, buffer=1).flat_map(lambda i: [i] * 10, buffer=0)
    await take(pipe, 25)
    state = pipe.state_dict()
    assert state == {"epoch": 0, "taken": 2, "ahead": [], "parts": [[2, 5, []]]}
    source.asked.clear()
    pipe.load_state_dict(state)
    assert await take(pipe, 6) == [2] * 5 + [3]
    assert source.asked[:2] == [2, 3]


async def test_it_undoes_batches(s: asc.Scheduler) -> None:
    x = np.arange(12.0).reshape(6, 2)
    for items, equal in [
        ([*x], np.array_equal),
        ([(row, i) for i, row in enumerate(x)], lambda a, b: np.array_equal(a[0], b[0]) and a[1] == b[1]),
        ([Pair(row, i) for i, row in enumerate(x)], lambda a, b: type(b) is Pair and np.array_equal(a.x, b.x)),
        ([{"x": row, "name": str(row)} for row in x], lambda a, b: a["name"] == b["name"] and len(b) == 2),
    ]:
        found = await drain(s.pipeline(items).batch(4).unbatch())
        assert len(found) == 6
        assert all(map(equal, items, found)), found


async def test_rows_are_views(s: asc.Scheduler) -> None:
    block = np.ones((4, 2))
    block.flags.writeable = False
    (*found,) = await drain(s.pipeline([block]).unbatch())
    assert all(np.shares_memory(row, block) for row in found)


async def test_a_block_that_is_written_to_while_its_rows_wait_is_found(s: asc.Scheduler) -> None:
    block = np.zeros((4, 2))
    async with s.pipeline([block]).unbatch().open() as items:
        await anext(items)
        block += 1
        with pytest.raises(RuntimeError, match="was written to while it waited"):
            await anext(items)


async def test_no_part_comes_behind_one_that_fails(s: asc.Scheduler) -> None:
    class Part:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def nbytes(self) -> int:
            if self.number == 2:
                raise OSError("no size")
            return 1

    class Rows(list[Part]):
        def __getitem__(self, place: Any) -> Any:
            if place == 2:
                raise OSError("no row")
            return super().__getitem__(place)

    for kind, told in (list, "no size"), (Rows, "no row"):
        found = []
        with pytest.raises(OSError, match=told) as raised:
            async with s.pipeline([kind(map(Part, range(5)))]).unbatch().map(same, buffer="1 kB").open() as items:
                async for item in items:
                    found.append(item.number)
        assert found == [0, 1]
        assert raised.value.__notes__ == ["raised in the pipeline's stage 1 (unbatch), at item 0 of the source"]


async def test_it_keeps_no_block_when_it_is_left(s: asc.Scheduler, no_gc: None) -> None:
    async with s.pipeline([np.arange(5000)] * 2).to_device().unbatch().open() as items:
        await anext(items)
    assert s.statistics().bytes_retained == 0


async def test_it_keeps_no_block_while_it_waits_for_another(s: asc.Scheduler) -> None:
    async def blocks() -> AsyncIterator[Any]:
        yield np.arange(2)
        await asyncio.Event().wait()

    async with s.pipeline(blocks()).to_device().unbatch().open() as items:
        for _ in range(2):
            await anext(items)
        await turns(9)
        assert s.statistics().bytes_retained == 0


async def test_it_keeps_no_item_that_was_taken(s: asc.Scheduler, no_gc: None) -> None:
    pipe = s.pipeline([np.arange(4)] * 9).to_device().filter(lambda item: True).take(5)
    async with pipe.open() as items:
        for _ in range(2):
            await anext(items)
    assert s.statistics().bytes_retained == 0


async def test_an_async_generator_makes_parts(s: asc.Scheduler) -> None:
    asked = []

    async def twice(item: int) -> AsyncIterator[int]:
        asked.append(item)
        yield item
        if asked.count(item) == 1:
            raise OSError
        yield item

    assert await drain(s.pipeline([1, 2]).flat_map(twice, retry=1)) == [1, 1, 2, 2]
    assert asked == [1, 1, 2, 2]


class Twice:
    """An object whose call makes an async generator."""

    async def __call__(self, item: int) -> AsyncIterator[int]:
        yield item
        yield item


@pytest.mark.parametrize("fn", [rows, partial(rows), Twice(), partial(Twice().__call__)])
async def test_a_generator_function_is_for_flat_map_alone(s: asc.Scheduler, fn: Any) -> None:
    assert len(await drain(s.pipeline([2]).flat_map(fn))) == 2
    for options in ({}, {"processes": True}):
        with pytest.raises(TypeError, match=r"one item, and \w+ is a generator function: `\.flat_map` gives"):
            s.pipeline([2]).map(fn, **options)
    with pytest.raises(TypeError, match="gives a coroutine or a generator"):
        s.pipeline([2]).filter(fn)


async def test_an_item_without_parts_gives_nothing(s: asc.Scheduler) -> None:
    items = [(), {}, [], np.ones((0, 3)), ([], []), {"x": np.ones(0), "y": ()}]
    assert await drain(s.pipeline([*items, [1], *items, ([2], [3])]).unbatch()) == [1, (2, 3)]


async def test_it_needs_no_more_room_than_it_says(s: asc.Scheduler) -> None:
    source = Counted(10)
    async with s.pipeline(source, buffer=1).map(lambda i: [i] * 5000, buffer=0).unbatch().open() as items:
        assert await anext(items) == 0
        for stage in items.statistics().stages:
            assert stage.items <= stage.capacity + 1
        assert source.asked < 5


async def test_processes_make_parts_too(s: asc.Scheduler) -> None:
    pipe = s.pipeline([[1, 2], [3]]).flat_map(in_processes.same, processes=True)
    assert await drain(pipe) == [1, 2, 3]
    assert str(pipe) == "Pipeline(list, flat_map same, unbatch)"


async def test_what_is_refused(s: asc.Scheduler) -> None:
    with pytest.raises(ValueError, match=r"unbatched once: .* `\.flat_map\(fn\)`"):
        s.pipeline([[1]]).unbatch().batch(2).unbatch()
    for item, error, told in [
        (1, TypeError, "not int: with `.flat_map"),
        ("text", TypeError, "not str"),
        (np.ones(()), TypeError, "not ndarray"),
        (([1, 2], [1]), ValueError, r"equally many parts, not \[1, 2\]"),
    ]:
        with pytest.raises(error, match=told):
            await drain(s.pipeline([item]).unbatch())
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        await drain(s.pipeline([1]).flat_map(lambda i: i))
    with pytest.raises(TypeError, match="pass the coroutine function itself"):
        await drain(s.pipeline([1]).flat_map(lambda i: same(i)))
    with pytest.raises(TypeError, match="length of this pipeline is not known"):
        len(s.pipeline([[1]]).unbatch())


async def test_a_table_is_refused_with_the_cure(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError, match=r"Table is no batch of items, but a table: .*to_numpy\(\)"):
        await drain(s.pipeline([Table()]).unbatch())


async def test_what_a_function_makes_of_an_item_is_no_table(s: asc.Scheduler, table: MakeTable) -> None:
    made = table({"a": [1, 2], "b": [3, 4]})

    async def later(i: int) -> Any:
        return made

    for fn in (lambda i: made, later):
        with pytest.raises(TypeError, match="iterates over its columns: give its rows"):
            await drain(s.pipeline([0]).flat_map(fn))


async def test_a_column_with_labels_is_taken_apart_by_its_places(s: asc.Scheduler, pandas: Any) -> None:
    numbers, column = np.arange(3), pandas.Series([10, 20, 30], index=[2, 1, 0])
    assert await drain(s.pipeline([(numbers, column)]).unbatch()) == [(0, 10), (1, 20), (2, 30)]
