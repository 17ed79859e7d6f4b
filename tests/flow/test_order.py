"""Sources read by index, in an order of their own each epoch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

from .rig import AsyncCounted, Counted, Mapped, drain, same


def permutation(epoch: int) -> Any:
    return np.random.default_rng((0, epoch)).permutation(20)


class Sampler:
    """Iterates over indices and knows how many, as PyTorch's samplers."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter((2, 0, 2))


SOURCES: dict[str, Any] = {"list": list(range(20)), "array": np.arange(20), "by index": Mapped(20)}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_each_epoch_has_its_order_and_goes_on_in_it(s: asc.Scheduler, source: Any) -> None:
    pipe = s.pipeline(source, order=permutation).map(same, workers=2)
    assert len(pipe) == 20
    for epoch in range(3):
        assert await drain(pipe) == permutation(epoch).tolist()
    for taken in (0, 7, 19, 20):
        async with pipe.open() as items:
            assert len(items) == 20
            for _ in range(taken):
                await anext(items)
        state = pipe.state_dict()
        other = s.pipeline(source, order=permutation).batch(3, collate=list)
        other.load_state_dict(state)
        assert len(other.open()) == -(-(20 - taken) // 3)
        assert [item for batch in await drain(other) for item in batch] == permutation(state["epoch"]).tolist()[taken:]


@pytest.mark.parametrize(
    "order",
    [
        [2, 0, 2],
        (2, 0, 2),
        np.array([2, 0, 2], np.uint8),
        Sampler(),
        lambda epoch: Sampler(),
        lambda epoch: iter((2, 0, 2)),
    ],
    ids=["list", "tuple", "array", "sampler", "function of a sampler", "function of an iterator"],
)
async def test_an_order_may_leave_out_and_repeat(s: asc.Scheduler, order: Any) -> None:
    pipe = s.pipeline(source := Mapped(3), order=order)
    for _ in range(2):
        assert len(pipe) == 3
        assert await drain(pipe) == source.asked == [2, 0, 2]
        assert {type(index) for index in source.asked} == {int}
        source.asked.clear()
    assert await drain(s.pipeline(range(5), order=[])) == []
    assert await drain(s.pipeline(lambda epoch: [10 * epoch, 1], order=lambda epoch: [epoch])) == [0]


async def test_functions_of_the_epoch_run_in_a_thread(s: asc.Scheduler) -> None:
    threads = []

    def order(epoch: int) -> list[int]:
        threads.append(threading.current_thread())
        return [0]

    assert await drain(s.pipeline([5], order=order)) == [5]
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("source", [[1, 2], Mapped(2)], ids=["list", "by index"])
async def test_an_index_that_is_not_there_is_named(s: asc.Scheduler, source: Any) -> None:
    class Strict(Mapped):
        def __getitem__(self, index: int) -> int:
            return [5, 6][index]

    source = Strict(2) if isinstance(source, Mapped) else source
    received = []
    with pytest.raises(IndexError) as caught:
        async with s.pipeline(source, order=[1, 0, 7, 1]).open() as items:
            async for item in items:
                received.append(item)
    assert len(received) == 2
    assert caught.value.__notes__[0].endswith("stage 0 (source), at item 2 of the source: index 7")
    for order, kind in (([0.5], "float"), ([[0, 1]], "list"), ([True, False], "bool")):
        with pytest.raises(TypeError, match=rf"holds indices of items, not {kind}: batches are made by `.batch"):
            await drain(s.pipeline(source, order=order))


async def test_what_is_refused(s: asc.Scheduler) -> None:
    for source in (Counted(3), AsyncCounted(3), iter([1]), {1, 2}):
        with pytest.raises(TypeError, match=r"needs `__getitem__` and `__len__`.*a `.shuffle\(buffer_size, seed=0\)`"):
            s.pipeline(source, order=[0])
    with pytest.raises(TypeError, match="needs `__getitem__`"):
        await drain(s.pipeline(lambda epoch: iter([1]), order=[0]))
    for order, text in (
        (3, "not int"),
        (iter([0]), "can be iterated over again"),
        (lambda: [0], r"the order of a pipeline is called with the epoch's number.*pass `lambda epoch: <lambda>\(\)`"),
        (np.array([True, False]), "one axis of integers, not 1 of bool: see `np.flatnonzero`"),
        (np.zeros((2, 2), int), "one axis of integers, not 2"),
    ):
        with pytest.raises(TypeError, match=text):
            s.pipeline([1, 2], order=order)
    with pytest.raises(TypeError, match="one axis of integers"):
        await drain(s.pipeline([1, 2], order=lambda epoch: np.ones(2)))
