"""The array of a result that nobody needs any more serves the next of its form: but never one that somebody sees."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import until

from .conftest import Card

pytestmark = pytest.mark.one_loop
SHAPE = (64, 64)
SIZE = 64 * 64 * 4


@pytest.fixture
async def s(card: Card) -> Any:
    async with asc.Scheduler("cuda", streams=1, max_bytes=64 * SIZE) as s:
        yield s


def pool_of(s: asc.Scheduler) -> Any:
    return s.devices[0].memory.pool  # type: ignore[attr-defined]


async def fill(x: asc.Tensor, count: int = 20) -> None:
    """Make and drop results, each in memory of its own."""
    await asc.gather(*[asc.exp(x * 0 + i) for i in range(count)])
    gc.collect()


async def test_results_take_turns_in_the_arrays_of_those_before(s: asc.Scheduler, card: Card) -> None:
    x = await s.put(np.ones(SHAPE, np.float32))
    for _ in range(20):
        held = [x + i for i in range(8)]
        await s.barrier()
        arrays = {id(tensor._value.array) for tensor in held}
        del held
        await s.barrier()
    again = [x + i for i in range(8)]
    await s.barrier()
    assert card.fake is not None or {id(tensor._value.array) for tensor in again} == arrays


async def test_what_somebody_sees_keeps_its_memory(s: asc.Scheduler, card: Card) -> None:
    x = await s.put(np.ones(SHAPE, np.float32))
    await fill(x)
    awaited = await (x + 1 + 1)  # the second writes over the first, whose value is gone
    view = (x + 4)[1:3]
    function: Any = await s.submit(lambda array: [array], x + 6)
    await function
    await fill(x)
    assert (await s.call(lambda a, b: (a[0].max() + b.min()).item(), function, view)) == 7 + 5
    assert await asyncio.to_thread(lambda: (int(awaited.min()), int(awaited.max()))) == (3, 3)
    card.forgive()  # the look at an array on a thread without a stream


async def test_cancelled_ones_are_not_taken_before_they_have_ended(s: asc.Scheduler, card: Card) -> None:
    x = await s.put(np.ones(SHAPE, np.float32))
    await fill(x)
    with card.held(s):
        tensors = [x + i for i in range(10)]
        assert all(tensor.cancel() for tensor in tensors[::2])
        kept = tensors[1::2]
        del tensors
    for i, tensor in enumerate(kept):
        assert (await tensor.numpy()).max() == 2 + 2 * i
    await s.barrier()
    assert s.statistics().bytes_retained == SIZE * 6


async def test_memory_of_one_form_serves_others_at_the_limit(s: asc.Scheduler) -> None:
    x = await s.put(np.ones(SHAPE, np.float32))
    for side in (64, 32, 128, 96):
        row = await s.put(np.ones(side * side, np.float32))
        made = [row + i for i in range(64 * 64 * 48 // side**2)]
        await s.barrier()
        assert [(await tensor.numpy()).max() for tensor in made] == [1 + i for i in range(len(made))]
        del made, row
    assert pool_of(s).reserved() <= pool_of(s)._most
    assert (await x.numpy()).max() == 1


async def test_nothing_is_kept_after_the_close(card: Card) -> None:
    async with asc.Scheduler("cuda", streams=1) as s:
        x = await s.put(np.ones(SHAPE, np.float32))
        await fill(x)
        late, pool = x + 1, pool_of(s)
    del late, x
    await until(lambda: not pool.reserved())
