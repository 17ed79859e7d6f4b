"""Small operations that wait in the backlog have no task until somebody asks something of them; nobody can tell."""

from __future__ import annotations

import asyncio
import random
import threading

import numpy as np
import pytest

import asyncsched as asc
from asyncsched._core.model import Bare
from tests.waiting import held

ARRAY = np.arange(6.0).reshape(2, 3)


@pytest.fixture
async def s():
    async with asc.Scheduler("cpu", max_ops=1) as s:
        yield s


@pytest.fixture
async def x(s):
    return await s.put(ARRAY)


@pytest.fixture
async def busy(s, gate, x):
    """The only slot is taken until the gate opens."""
    return s.submit_nowait(held, gate)


def bare(t: asc.Tensor) -> bool:
    return type(t._value.task) is Bare


async def test_all_that_waits_is_made_in_turn(s, x, gate, busy):
    y = x
    for i in range(200):
        y = (y + i) * 0.5
    z = asc.sqrt(abs(y - x)) / 3 + (2 - y)
    assert bare(y)
    assert bare(z)
    assert repr(z).endswith("pending: add)")
    assert not z.done()
    gate.set()
    expected = ARRAY
    for i in range(200):
        expected = (expected + i) * 0.5
    assert np.array_equal(await z, np.sqrt(abs(expected - ARRAY)) / 3 + (2 - expected))
    await s.barrier()
    assert s.statistics().tasks_pending == 0


async def test_one_in_the_middle_is_awaited_and_read_by_others(s, x, gate, busy):
    a = x + 1
    b = a * 2
    c = b - 3
    waiter = asyncio.ensure_future(b)
    product = s.submit_nowait(np.matmul, b, c.T)
    await asyncio.sleep(0)
    assert bare(a)
    assert not bare(b)
    gate.set()
    assert np.array_equal(await waiter, (ARRAY + 1) * 2)
    assert np.array_equal(await product, ((ARRAY + 1) * 2) @ ((ARRAY + 1) * 2 - 3).T)
    assert await asc.gather(a, c) is not None


async def test_cancelled_with_what_depends_on_it(s, x, gate, busy):
    a = x + 1
    b = a * 2
    other = x * 3
    assert a.cancel()
    assert b.done()
    assert not other.done()
    with pytest.raises(asc.TaskCancelled, match="add was cancelled"):
        await b
    gate.set()
    assert np.array_equal(await other, ARRAY * 3)


async def test_a_scope_that_is_left_by_an_exception_cancels_its_own(s, x, gate, busy):
    with pytest.raises(ZeroDivisionError):
        async with s.scope():
            inside = x + 1
            more = inside * 2
            assert bare(more)
            asyncio.get_running_loop().call_soon(gate.set)
            raise ZeroDivisionError
    assert inside.done()
    with pytest.raises(asc.TaskCancelled):
        await more
    assert np.array_equal(await (x - 1), ARRAY - 1)


async def test_a_scope_waits_for_its_own(s, x, gate, busy):
    async with s.scope() as scope:
        inside = [x + i for i in range(5)]
        assert "5 unfinished" in repr(scope)
        asyncio.get_running_loop().call_soon(gate.set)
    assert all(t.done() for t in inside)


async def test_one_that_fails_tells_its_line(s, gate):
    x = await s.put(np.array([1, 2]))
    index = await s.put(np.array([7]))
    s.submit_nowait(held, gate)
    found = asc.sqrt(x) + x
    wrong = asc.take(x, index) + 1
    gate.set()
    assert (await found).shape == (2,)
    with pytest.raises(IndexError, match="out of bounds"):
        await wrong


async def test_a_full_backlog_refuses_one(gate):
    async with asc.Scheduler("cpu", max_ops=1, max_pending=3) as s:
        x = await s.put(ARRAY)
        s.submit_nowait(held, gate)
        kept = [x + i for i in range(3)]
        with pytest.raises(asc.QueueFull, match="the backlog holds 3 tasks"):
            x + 3
        gate.set()
        assert len(await asc.gather(*kept)) == 3


async def test_under_a_limit_of_bytes(gate):
    async with asc.Scheduler("cpu", max_ops=1, max_bytes=3 * ARRAY.nbytes) as s:
        x = await s.put(ARRAY)
        s.submit_nowait(held, gate)
        y = x
        for _ in range(100):
            y = y + 1
        gate.set()
        assert np.array_equal(await y, ARRAY + 100)
        assert s.statistics().peak_bytes <= 3 * ARRAY.nbytes


async def test_what_they_read_is_free_once_they_are_made(s, gate):
    x = await s.put(ARRAY)
    s.submit_nowait(held, gate)
    z = (x + 1) * 2 - 3
    del x
    gate.set()
    await s.barrier()
    assert s.statistics().bytes_retained == ARRAY.nbytes
    del z
    assert s.statistics().bytes_retained == 0


async def test_statistics_and_pictures_count_them(s, x, gate, busy):
    t = [x + i for i in range(4)]
    assert s.statistics().tasks_pending == 4
    assert bare(t[0])
    assert len(s.graph().nodes) >= 5
    assert "add" in s.explain(t[3])
    gate.set()
    await asc.gather(*t)


async def test_read_from_another_thread(s, x, gate, busy):
    t = x + 1

    def read() -> tuple[bool, str]:
        return t.done(), repr(t)

    done, text = await asyncio.to_thread(read)
    assert not done
    assert "pending: add" in text
    assert bare(t)
    waiting = asyncio.ensure_future(asyncio.to_thread(np.asarray, t))
    gate.set()
    assert np.array_equal(await waiting, ARRAY + 1)


async def test_awaited_on_another_loop_it_says_so(s, x, gate, busy):
    t = x + 1

    async def wait() -> None:
        await t

    with pytest.raises(RuntimeError, match="thread"):
        await asyncio.to_thread(lambda: asyncio.run(wait()))
    assert bare(t)
    gate.set()
    await t


async def test_they_are_made_on_the_loops_thread_while_the_scheduler_closes(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = await s.put(ARRAY)
        s.submit_nowait(held, gate)
        launched: list[object] = []
        for lane in s._runtime.lanes[s._runtime.devices[0]].compute:
            launch = lane.stream.launch
            lane.stream.launch = lambda task, points, launch=launch: launched.append(task) or launch(task, points)
        t = [x + i for i in range(300)]
        asyncio.get_running_loop().call_soon(gate.set)
    assert all(y.done() for y in t)
    assert np.array_equal(await t[-1], ARRAY + 299)
    assert not launched
    with pytest.raises(asc.SchedulerClosed):
        x + 1


FUNCTIONS = (
    lambda xp, a, b: a + 2,
    lambda xp, a, b: 0.5 - a,
    lambda xp, a, b: a * -3,
    lambda xp, a, b: a + b,
    lambda xp, a, b: a - b,
    lambda xp, a, b: a / b,
    lambda xp, a, b: xp.exp(-abs(a)),
    lambda xp, a, b: a @ a.T @ a,
    lambda xp, a, b: a.sum(axis=1, keepdims=True),
)


@pytest.mark.parametrize("seed", range(30))
async def test_random_programs_give_numpys_bits(seed):
    dice, gate, waited = random.Random(seed), threading.Event(), 0
    async with asc.Scheduler("cpu", max_ops=dice.choice([1, 2]), max_pending=None, streams=dice.choice([1, 2])) as s:
        arrays = [np.random.default_rng(seed + i).standard_normal((3, dice.choice([1, 4]))) for i in range(4)]
        tensors = [await s.put(array) for array in arrays]
        for _ in range(3):
            s.submit_nowait(held, gate)
        for _ in range(150):
            i, j = dice.randrange(len(arrays)), dice.randrange(len(arrays))
            function = dice.choice(FUNCTIONS)
            with np.errstate(all="ignore"):
                arrays.append(function(np, arrays[i], arrays[j]))
            tensors.append(function(asc, tensors[i], tensors[j]))
            waited += bare(tensors[-1])
            if dice.random() < 0.02:
                gate.set()
                await tensors[j]
                gate.clear()
                s.submit_nowait(held, gate)
        gate.set()
        for array, t in zip(arrays, tensors, strict=True):
            assert (await t).tobytes() == array.tobytes()
    assert waited
