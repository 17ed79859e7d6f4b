"""Items that a batcher need not compute: cancelled, or past their deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from tests.waiting import cancelled, turns, until

from .asking import Model, ask, past_its_deadline


async def test_cancelled_items_leave_the_queue_and_are_never_computed(model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_queue=3)
    asked = ask(batcher, 0)
    await until(lambda: bool(model.batches))
    asked += ask(batcher, 1, 2, 3)
    await until(lambda: batcher.statistics().waiting == 3)
    asked[1].cancel()
    asked[3].cancel()
    await until(lambda: batcher.statistics().waiting == 1)
    assert batcher.statistics().waiting_cost == 1
    asked += ask(batcher, 4, 5)  # there is room again
    model.gate.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [item for item in found if not isinstance(item, BaseException)] == [0, 20, 40, 50]
    assert model.batches == [[0], [2, 4, 5]]
    assert batcher.statistics().dropped == 2


async def test_cancelled_in_the_turn_it_came_or_before_its_first_step(model: Model) -> None:
    batcher = Batcher(model)
    for count in range(4):
        (task,) = ask(batcher, count)
        await turns(count)
        await cancelled(task)
    assert await batcher(9) == 90
    found = batcher.statistics()
    assert found.items == found.answered + found.dropped
    assert found.waiting == found.computing == 0


async def test_past_its_deadline_an_item_is_dropped_before_the_loop_could_tell_its_caller(
    s: asc.Scheduler, model: Model
) -> None:
    batcher = Batcher(model)

    async def late() -> None:
        async with s.scope(deadline=0.5), s.scope(deadline=3600):
            end = time.monotonic() + 0.51
            while time.monotonic() < end:
                pass  # the loop cannot tell the time meanwhile
            await batcher(1)

    task = asyncio.create_task(late())
    with pytest.raises(asc.DeadlineExceeded):
        await task
    assert model.batches == []
    assert batcher.statistics().dropped == 1
    async with s.scope(deadline=3600):
        assert await batcher(2) == 20


async def test_started_in_a_scope_whose_deadline_has_passed_a_caller_is_told(s: asc.Scheduler, later: Any) -> None:
    batcher = Batcher(Model())
    task = await past_its_deadline(s, later, lambda: batcher(1))
    with pytest.raises(asc.DeadlineExceeded, match="start longer work outside"):
        await task
    assert batcher.statistics().dropped == 1


@pytest.fixture
async def one_stream() -> AsyncIterator[asc.Scheduler]:
    async with asc.Scheduler("cpu", streams=1) as s:
        yield s


async def test_a_deadline_that_passes_before_the_stream_is_free_is_told(one_stream: asc.Scheduler, later: Any) -> None:
    gate = threading.Event()
    batcher: Batcher[int, int] = Batcher(list)
    busy = await one_stream.submit(gate.wait, 60)
    async with one_stream.scope(deadline=1800):
        (task,) = ask(batcher, 1)
        await until(lambda: batcher.statistics().computing == 1)
    later()
    gate.set()
    assert await busy
    with pytest.raises(asc.DeadlineExceeded, match="start longer work outside"):
        await task
    assert batcher.statistics().dropped == 1


async def test_dropped_before_launch_when_the_stream_was_busy(one_stream: asc.Scheduler) -> None:
    gate, seen = threading.Event(), []

    def model(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    busy = await one_stream.submit(gate.wait, 60)
    batcher: Batcher[int, int] = Batcher(model)
    asked = ask(batcher, 1, 2, 3)
    await until(lambda: batcher.statistics().computing == 3)
    await cancelled(asked[1])
    gate.set()
    assert await busy
    assert [await asked[0], await asked[2]] == [1, 3]
    assert seen == [[1, 3]]
    assert batcher.statistics().dropped == 1


async def test_a_caller_that_leaves_a_running_batch_is_not_waited_for(model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model)
    asked = ask(batcher, 1, 2)
    await until(lambda: bool(model.batches))
    await cancelled(asked[0])
    model.gate.set()
    assert await asked[1] == 20
