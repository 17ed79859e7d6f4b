"""Arrays that are written to while they wait in a pipeline: no wrong item in silence."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline.pipeline import Pipeline
from tests.waiting import until

from .rig import STAGES, drain, same, same_in_thread, stages_of

COUNT = 12


class Filled:
    """Gives its one buffer each time, filled anew: whole, as a view, as one that is read-only, or in a dict."""

    def __init__(self, size: int, form: str) -> None:
        self._buffer = np.zeros(size)
        self._form = form

    def __call__(self, number: int) -> Any:
        self._buffer[:] = number
        if self._form == "whole":
            return self._buffer
        if self._form == "read-only":
            return np.broadcast_to(self._buffer, (2, *self._buffer.shape))
        return self._buffer[:] if self._form == "view" else {"x": (self._buffer[1:]), "number": number}


def number_of(item: Any) -> float:
    return float(np.ravel(item["x"] if isinstance(item, dict) else item)[0])


MAKERS: dict[str, Callable[[asc.Scheduler, Filled], Pipeline[Any]]] = {}


def maker(make: Callable[[asc.Scheduler, Filled], Pipeline[Any]]) -> None:
    MAKERS[make.__name__] = make


@maker
def a_thread(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    return s.pipeline(range(COUNT)).map(filled)


@maker
def unordered(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    return s.pipeline(range(COUNT)).map(filled, ordered=False)


@maker
def a_coroutine(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    async def fill(number: int) -> Any:
        return filled(number)

    return s.pipeline(range(COUNT)).map(fill)


@maker
def a_source(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    return s.pipeline(lambda epoch: map(filled, range(COUNT)))


@maker
def an_async_source(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    async def read() -> AsyncIterator[Any]:
        for number in range(COUNT):
            yield filled(number)

    return s.pipeline(lambda epoch: read())


@maker
def a_dataset(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    class Data:
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return filled(index)

    return s.pipeline(Data())


@maker
def a_list(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    return s.pipeline([0]).flat_map(lambda item: map(filled, range(COUNT)))


@maker
def an_async_list(s: asc.Scheduler, filled: Filled) -> Pipeline[Any]:
    async def fill(item: int) -> AsyncIterator[Any]:
        for number in range(COUNT):
            yield filled(number)

    return s.pipeline([0]).flat_map(fill)


BEHIND: dict[str, Callable[[Pipeline[Any]], Pipeline[Any]]] = {
    "nothing": lambda pipe: pipe,
    "a thread": lambda pipe: pipe.map(same_in_thread),
    "a coroutine": lambda pipe: pipe.map(same, workers=2),
    "batches": lambda pipe: pipe.batch(4),
    "collated": lambda pipe: pipe.batch(4, collate=lambda items: items[0]),
    "shuffled": lambda pipe: pipe.shuffle(3, seed=0),
    "a device": lambda pipe: pipe.to_device(depth=2),
    **{f"a stage, {name}": lambda pipe, make=make: make(pipe, 2) for name, make in STAGES.items()},
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("size", [5, 100_000])
@pytest.mark.parametrize("form", ["whole", "view", "read-only", "part"])
@pytest.mark.one_loop
async def test_one_buffer_for_all_items_is_refused(
    s: asc.Scheduler, make: Any, behind: Any, size: int, form: str
) -> None:
    pipe = behind(make(s, Filled(size, form)))
    with pytest.raises(RuntimeError, match=r"an array that stage .* gave, for item .*, was written to while it waited"):
        async with pipe.open() as items:
            out = stages_of(items)[-1].out
            await until(lambda: out.ended or len(out.items) == min(COUNT, out.capacity))
            async for _ in items:
                pass


async def test_a_new_array_each_time_passes(s: asc.Scheduler) -> None:
    filled = Filled(5, "whole")
    pipe = s.pipeline(range(COUNT)).map(lambda number: filled(number).copy())
    assert [number_of(item) for item in await drain(pipe)] == [*range(COUNT)]


@pytest.fixture
def mapped(tmp_path: Path) -> Any:
    """A file as an array."""
    np.save(tmp_path / "it.npy", np.arange(40.0))
    return np.load(tmp_path / "it.npy", mmap_mode="r+")


@pytest.mark.parametrize("behind", ["nothing", "batches", "a device"])
async def test_what_comes_again_with_the_same_content_passes(s: asc.Scheduler, behind: str, mapped: Any) -> None:
    array = np.ones(4)
    whole = np.arange(40.0)

    def equal(number: int) -> Any:
        array[:] = 1
        return array

    def again(epoch: int) -> Iterator[Any]:
        return itertools.repeat(array, COUNT)

    for pipe in (
        s.pipeline(again),
        s.pipeline(range(COUNT)).map(equal),
        s.pipeline(range(10)).map(lambda number: whole[4 * number : 4 * number + 4]),
        s.pipeline(range(10)).map(lambda number: mapped[4 * number : 4 * number + 4]),
        s.pipeline([array] * COUNT),
    ):
        assert len(await drain(BEHIND[behind](pipe))) >= 3


async def test_a_function_may_change_its_item_and_a_consumer_what_it_received(s: asc.Scheduler) -> None:
    def double(item: np.ndarray) -> np.ndarray:
        item *= 2
        return item

    pipe = s.pipeline(range(COUNT)).map(lambda number: np.full(5, float(number))).map(double).map(same).map(double)
    async with pipe.open() as items:
        found = []
        async for item in items:
            found.append(item[0])
            item[:] = -1
    assert found == [4.0 * number for number in range(COUNT)]


async def test_a_collate_function_may_change_its_items(s: asc.Scheduler) -> None:
    def collate(items: list[np.ndarray]) -> np.ndarray:
        for item in items:
            item += 1
        return np.stack(items)

    pipe = s.pipeline(range(4)).map(lambda number: np.full(2, number)).batch(2, collate=collate)
    assert [batch.tolist() for batch in await drain(pipe)] == [[[1, 1], [2, 2]], [[3, 3], [4, 4]]]
