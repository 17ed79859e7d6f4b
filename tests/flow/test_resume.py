"""Resuming a pipeline in the middle of an epoch."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from math import inf
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from .rig import AsyncCounted, Counted, Mapped, MappedSequence, drain, same, same_in_thread, stages_of, take


def flat(batches: list[Any]) -> list[int]:
    return [int(number) for batch in batches for number in np.ravel(batch)]


@pytest.mark.parametrize("source", [range(20), Counted(20), AsyncCounted(20)], ids=["range", "iterable", "async"])
@pytest.mark.parametrize("taken", [0, 1, 13, 19, 20])
async def test_what_was_received_is_left_out_and_what_was_read_ahead_is_not(
    s: asc.Scheduler, source: Any, taken: int
) -> None:

    def make() -> Any:
        return s.pipeline(source).map(same, workers=2).map(same_in_thread, workers=2)

    pipe = make()
    assert await take(pipe, taken) == list(range(taken))
    state = json.loads(json.dumps(pipe.state_dict()))
    assert state == {"epoch": 0, "taken": taken, "ahead": []}
    other = make()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert await drain(other) == list(range(taken, 20))
    assert other.state_dict() == {"epoch": 1, "taken": 0, "ahead": []}
    assert await drain(other) == list(range(20))


@pytest.mark.parametrize("kind", [Mapped, MappedSequence])
async def test_what_is_read_by_index_is_resumed_by_index(s: asc.Scheduler, kind: type[Mapped]) -> None:
    source = kind(10)
    pipe = s.pipeline(source).map(same)
    assert await drain(pipe) == source.asked == list(range(10))  # and nothing behind the end
    source.asked.clear()
    pipe.load_state_dict({"epoch": 1, "taken": 6, "ahead": [7]})
    assert await drain(pipe) == source.asked == [6, 8, 9]


async def test_batches_resume_at_their_borders(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(50)).map(same_in_thread, workers=3).batch(2).batch(3)
    whole = await drain(pipe)
    first = await take(pipe, 4)
    state = pipe.state_dict()
    assert state == {"epoch": 1, "taken": 24, "ahead": []}
    pipe.load_state_dict(state)
    rest = await drain(pipe)
    assert str(first + rest) == str(whole)


@pytest.mark.parametrize("drop_last", [True, False])
async def test_a_batch_that_an_error_cut_short_is_still_to_come(s: asc.Scheduler, drop_last: bool) -> None:
    """Also where the batch in front of it is made when the error has come."""
    opened = threading.Event()

    def collate(items: list[int]) -> list[int]:
        assert opened.wait(60)
        return items

    def read(i: int) -> int:
        if i == 5 and not opened.is_set():
            raise LookupError
        return i

    pipe = s.pipeline(range(6)).map(read).batch(3, collate=collate, drop_last=drop_last)
    with pytest.raises(LookupError):
        async with pipe.open() as items:
            await until(lambda: stages_of(items)[1].ended < inf)
            await turns()
            opened.set()
            assert await anext(items) == [0, 1, 2]
            await anext(items)
    pipe.load_state_dict(pipe.state_dict())
    assert await drain(pipe) == [[3, 4, 5]]


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("seed", range(5))
async def test_out_of_order_each_item_comes_once(s: asc.Scheduler, batch: int | None, seed: int) -> None:
    rng = random.Random(seed)

    async def shuffled(i: int) -> int:
        await turns(rng.randrange(10))
        return i

    pipe = s.pipeline(Counted(100)).map(shuffled, workers=5, ordered=False)
    pipe = pipe.batch(batch) if batch else pipe
    received: list[Any] = []
    for _ in range(3):
        received += await take(pipe, 5)
        state = pipe.state_dict()
        assert state["taken"] + len(state["ahead"]) == len(flat(received))
        assert state["epoch"] == 0
        pipe.load_state_dict(state)
    received += await drain(pipe)
    assert Counter(flat(received)) == Counter(range(100))


async def test_an_epoch_left_early_is_over_unless_its_state_is_loaded(s: asc.Scheduler) -> None:
    pipe = s.pipeline(lambda epoch: [10 * epoch + i for i in range(4)])
    assert await take(pipe, 2) == [0, 1]
    assert await drain(pipe) == [10, 11, 12, 13]
    assert await take(pipe, 2) == [20, 21]
    pipe.load_state_dict(pipe.state_dict())
    assert await drain(pipe) == [22, 23]
    assert await drain(pipe) == [30, 31, 32, 33]


async def test_the_position_is_of_what_was_received_while_it_runs(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(100)).map(same)
    async with pipe.open() as items:
        for expected in range(1, 50):
            await anext(items)
            assert pipe.state_dict()["taken"] == expected


async def test_resuming_far_into_what_lies_in_memory_takes_no_time(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(10**12))
    pipe.load_state_dict({"epoch": 0, "taken": 10**11, "ahead": [10**11 + 1]})
    assert await take(pipe, 2) == [10**11, 10**11 + 2]


async def test_an_epoch_that_could_not_begin_is_still_to_come(s: asc.Scheduler) -> None:
    fail = True

    def source(epoch: int) -> list[int]:
        if fail:
            raise OSError("not now")
        return [10 * epoch + i for i in range(4)]

    pipe = s.pipeline(source)
    pipe.load_state_dict({"epoch": 2, "taken": 1, "ahead": []})
    for _ in range(2):
        with pytest.raises(OSError, match="not now"):
            await drain(pipe)
    fail = False
    assert await drain(pipe) == [21, 22, 23]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0, "taken": 3},
        {"epoch": 0, "taken": -1, "ahead": []},
        {"epoch": "0", "taken": 1, "ahead": []},
        {"epoch": 0, "taken": 1, "ahead": 3},
        [1, 2],
    ],
)
async def test_another_state_is_refused(s: asc.Scheduler, state: Any) -> None:
    with pytest.raises(ValueError, match=r"load what `state_dict\(\)` gave"):
        s.pipeline(range(3)).load_state_dict(state)


@pytest.mark.parametrize("state", [{"taken": 7, "ahead": []}, {"taken": 0, "ahead": [6]}])
async def test_a_position_behind_the_end_of_the_source_is_that_of_another_pipeline(
    s: asc.Scheduler, state: Any
) -> None:
    pipe = s.pipeline(list(range(12))).shard(0, 2).map(same_in_thread)
    pipe.load_state_dict({"epoch": 3, **state})
    with pytest.raises(ValueError, match="is behind 7 items, and the source has 6: load the `state_dict"):
        await drain(pipe)
    pipe.load_state_dict({"epoch": 3, "taken": 6, "ahead": []})
    assert not await drain(pipe)
    assert await drain(pipe) == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("how", ["an exception", "a cancellation", "break"])
@pytest.mark.parametrize("inside", [False, True])
async def test_an_item_in_hand_counts_unless_the_loop_is_cut_short(s: asc.Scheduler, how: str, inside: bool) -> None:
    pipe, states = s.pipeline(range(9)).map(same), []

    async def consume() -> None:
        try:
            async with pipe.open() as items:
                try:
                    async for item in items:
                        assert pipe.state_dict()["taken"] == item + 1
                        if item == 4 and how == "an exception":
                            raise LookupError
                        if item == 4 and how == "break":
                            break
                        if item == 4:
                            task.cancel()
                        await turns(1)
                finally:
                    states.append(pipe.state_dict())
        finally:
            states.append(pipe.state_dict())

    task = asyncio.ensure_future(consume())
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), LookupError) or how == "break"
    state = states[0 if inside else 1]
    assert state["taken"] == (5 if how == "break" else 4)
    pipe.load_state_dict(state)
    assert await drain(pipe) == list(range(state["taken"], 9))


async def test_what_another_task_trains_on_counts_when_it_is_received(s: asc.Scheduler) -> None:
    model = asc.nn.Linear(2, 1, rng=0)
    optimizer = asc.optim.SGD(model.parameters(), lr=0.1)
    pipe, queue = s.pipeline(np.ones((6, 2), "f4")).batch(1).to_device(), asyncio.Queue[Any](2)

    async def train() -> None:
        for _ in range(3):
            model(await queue.get()).sum().backward()
            optimizer.step()

    training = asyncio.ensure_future(train())
    async with pipe.open() as batches:
        for _ in range(3):
            await queue.put(await anext(batches))
        await training
        assert pipe.state_dict()["taken"] == 3


async def test_a_step_by_hand_needs_no_optimiser_to_count(s: asc.Scheduler) -> None:
    weight = await s.put(np.ones(2))
    weight.requires_grad = True
    pipe = s.pipeline(np.ones((6, 2))).batch(1).to_device()
    async with pipe.open() as batches:
        async for batch in batches:
            (batch * weight).sum().backward()
    assert pipe.state_dict() == {"epoch": 1, "taken": 0, "ahead": []}
    async with pipe.open() as batches:
        for _ in range(2):
            (await anext(batches) * weight).sum().backward()
        assert pipe.state_dict() == {"epoch": 1, "taken": 2, "ahead": []}
