"""`t.item()` is awaited. Where it is taken for the number, the error says so, and nothing else is told."""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

MISTAKES: tuple[Callable[[Any], Any], ...] = (
    lambda n: 0.0 + n,
    lambda n: n + 1,
    lambda n: n / 2,
    lambda n: 2**n,
    lambda n: divmod(n, 2),
    lambda n: -n,
    lambda n: abs(n),
    lambda n: n < 1,
    lambda n: n <= 1,
    lambda n: n == 1.5,
    lambda n: n != np.float32(1),
    lambda n: not n,
    float,
    int,
    complex,
    round,
    math.floor,
    "{:.3f}".format,
    "{}".format,
    np.float32,
    lambda n: [10, 20][n],
    lambda n: np.float64(1) + n,
    lambda n: np.mean([n]),
    lambda n: statistics.fmean([n]),
    lambda n: sum([n]),
    lambda n: max(0, n),
)


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_taken_for_the_number_it_names_the_cure(s, mistake):
    x = await s.put(np.array([1.5]))
    with pytest.raises(asc.ImplicitBarrierError, match="use `await t.item"):
        mistake(x.item())
    gc.collect()  # a warning of a coroutine that was never awaited would fail this test


async def test_it_is_a_coroutine_otherwise(s):
    x = await s.put(np.array([1.5]))
    number = x.item()
    assert asyncio.iscoroutine(number)
    assert repr(number) == "<t.item(), a number to come: use `await t.item()`>"
    assert number != "a"
    assert {number: 1}[number] == 1
    assert await number == 1.5
    assert await asyncio.create_task(x.item()) == 1.5
    assert await asyncio.gather(x.item(), x.item()) == [1.5, 1.5]
    assert await asyncio.wait_for(x.item(), 10) == 1.5
    async with asyncio.TaskGroup() as group:
        task = group.create_task(x.item())
    assert task.result() == 1.5


async def test_one_that_is_never_awaited_is_told_of(s):
    x = await s.put(np.array([1.5]))
    numbers = [x.item()]
    with pytest.warns(RuntimeWarning, match="never awaited"):
        numbers.clear()


async def test_several_elements_are_refused_at_the_line(s):
    x = await s.put(np.ones(3))
    with pytest.raises(ValueError, match="exactly one element"):
        x.item()


async def test_cancelled_while_it_waits(s, gate):
    x = s.submit_nowait(gate.wait, shape=(), dtype=bool)
    task = asyncio.create_task(x.item())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert await x.item() is True
