"""A pipeline's read-ahead that is bounded in bytes."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from .rig import drain, same, same_in_thread, take


class Arrays:
    """A function of a stage that makes an array of so many bytes, and an iterable of such arrays. It counts those that
    are still there."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.made = self.alive = self.most = 0

    def __call__(self, item: object) -> Any:
        array = np.zeros(self.sizes[min(self.made, len(self.sizes) - 1)], np.uint8)
        self.made += 1
        self.alive += array.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(array, self._gone, array.nbytes)
        return {"x": (array, "a text")}

    def _gone(self, nbytes: int) -> None:
        self.alive -= nbytes

    def __iter__(self) -> Any:
        return map(self, range(60))


async def same_as_one(item: object) -> int:
    return 1


@pytest.mark.drops_at_once
@pytest.mark.parametrize("where", ["thread", "loop", "source", "async source"])
@pytest.mark.parametrize("ordered", [True, False])
async def test_no_more_is_ahead_than_fits(s: asc.Scheduler, where: str, ordered: bool) -> None:
    arrays = Arrays(10_000)

    async def on_loop(item: int) -> Any:
        await asyncio.sleep(0)
        return arrays(item)

    async def read() -> Any:
        for item in range(60):
            yield arrays(item)

    if where == "source":
        pipe = s.pipeline(lambda epoch: arrays, buffer="50 kB")
    elif where == "async source":
        pipe = s.pipeline(lambda epoch: read(), buffer="50 kB")
    else:
        fn: Any = arrays if where == "thread" else on_loop
        pipe = s.pipeline(range(60)).map(fn, workers=8, ordered=ordered, buffer="50 kB")
    async with pipe.open() as items:
        for _ in range(10):
            await anext(items)
        await until(lambda: arrays.most >= 40_000)
        async for item in items:
            await turns()
            del item
    assert arrays.made == 60
    assert arrays.most <= 60_000  # with the consumer's own, less what an item is besides its array


async def test_the_first_goes_alone_and_small_ones_all_at_once(s: asc.Scheduler) -> None:
    together = threading.Barrier(8)

    def fn(item: int) -> int:
        if item:
            together.wait(60)
        return item

    assert await drain(s.pipeline(range(17)).map(fn, workers=8, buffer="1 MiB")) == list(range(17))


async def test_what_waits_for_a_stage_counts_in_its_room(s: asc.Scheduler) -> None:
    arrays, gate = Arrays(10_000), threading.Event()

    def small(item: Any) -> int:
        if arrays.made > 2:
            assert gate.wait(60)
        return 1

    pipe = s.pipeline(lambda epoch: arrays, buffer=1).map(small, workers=8, buffer="40 kB")
    async with pipe.open() as items:
        assert await anext(items) == 1
        await until(lambda: arrays.made >= 5)
        await turns()
        gate.set()
        assert [item async for item in items] == [1] * 59
    assert arrays.most <= 60_000  # 40,000, one that is read ahead, and one on its way between the two


@pytest.mark.parametrize("fn", [same, same_in_thread])
async def test_a_batch_does_not_wait_for_more_than_there_is_room_for(s: asc.Scheduler, fn: Any) -> None:
    arrays = Arrays(10, 10, 10, 10_000)
    pipe = s.pipeline(lambda epoch: arrays, buffer="25 kB").map(fn, workers=4, buffer="25 kB").batch(16, collate=len)
    assert await drain(pipe) == [16, 16, 16, 12]
    assert [stage.capacity for stage in pipe.statistics().stages[:2]] == [2, 2]


@pytest.mark.parametrize("fn", [lambda item: 1, same_as_one], ids=["thread", "loop"])
async def test_nor_if_the_room_shrinks_while_it_waits(s: asc.Scheduler, fn: Any) -> None:
    arrays = Arrays(*[10] * 7, 10_000)
    pipe = s.pipeline(lambda epoch: arrays, buffer=1).map(fn, workers=4, buffer="25 kB").batch(16, collate=len)
    assert await drain(pipe) == [16, 16, 16, 12]


async def is_short(text: str) -> bool:
    return len(text) < 1000


@pytest.mark.parametrize("fn", [lambda text: len(text) < 1000, is_short], ids=["thread", "loop"])
async def test_nor_if_the_item_for_which_the_room_shrinks_is_left_out(s: asc.Scheduler, fn: Any) -> None:
    async def read() -> Any:
        yield "short"
        await until(lambda: any(stage.items for stage in pipe.statistics().stages[1:]))
        await turns()  # the batch waits for more
        yield "long" * 1000
        yield "short"

    pipe = s.pipeline(read()).filter(fn, buffer="2 kB").batch(16)
    assert await drain(pipe) == [["short", "short"]]


@pytest.mark.drops_at_once
async def test_one_that_is_larger_than_all_room_goes_alone(s: asc.Scheduler) -> None:
    arrays = Arrays(10_000)
    pipe = s.pipeline(range(60)).map(arrays, workers=4, buffer="1 kB")
    async with pipe.open() as items:
        async for item in items:
            await turns()
            del item
    assert arrays.most <= 20_000


async def test_a_filter_that_keeps_nothing_goes_on(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(100), buffer="1 kB").filter(lambda item: item == 99, workers=4, buffer="1 kB").repeat(2)
    assert await drain(pipe) == [99, 99]


async def test_it_goes_on_where_it_was_left(s: asc.Scheduler) -> None:
    def pipeline() -> Any:
        return s.pipeline(range(40), buffer="100 B").shuffle(8, seed=0).map(same, workers=4, buffer="100 B")

    whole, left = await drain(pipeline()), pipeline()
    assert await take(left, 13) == whole[:13]
    resumed = pipeline()
    resumed.load_state_dict(left.state_dict())
    assert await drain(resumed) == whole[13:]


@pytest.mark.parametrize(
    ("buffer", "error", "text"),
    [
        ("0 B", ValueError, "buffer must be positive"),
        ("many", ValueError, "buffer='many' is no size: .*256 MiB"),
        (1.5, TypeError, "buffer must be an int"),
    ],
)
async def test_misuse(s: asc.Scheduler, buffer: Any, error: type[Exception], text: str) -> None:
    for misuse in (
        lambda: s.pipeline([], buffer=buffer),
        lambda: s.pipeline([]).map(same, buffer=buffer),
        lambda: s.pipeline([]).filter(same, buffer=buffer),
    ):
        with pytest.raises(error, match=text):
            misuse()
