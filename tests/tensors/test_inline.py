"""Quick rows run on the loop's thread where that takes nothing from anybody, and as tasks elsewhere."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops import TABLE, plan
from asyncsched.runtime.runtime import INLINE_BUDGET
from tests.waiting import held

LINE = np.arange(2048, dtype=np.float32)  # 8 KiB


async def test_a_callable_elsewhere_does_not_stop_it(s, gate):
    x = await s.put(LINE)
    busy = await s.submit(held, gate)
    y = x + 1
    assert y.done()
    assert not busy.done()
    assert np.array_equal(await y, LINE + 1)
    assert s.statistics().peak_tasks_in_flight == 2
    gate.set()
    await busy


async def test_what_fails_beside_a_callable_fails_at_its_await(s, gate):
    busy = await s.submit(held, gate)
    x = await s.put(np.zeros((2, 2)))
    y = asc.take(x, await s.put(np.array([5])), axis=0)
    assert y.done()
    with pytest.raises(IndexError, match="5 is out of bounds"):
        await y
    z = y + 1
    assert z.done()
    with pytest.raises(IndexError):
        await z
    gate.set()
    await busy


async def test_it_overtakes_nobody_who_waits(gate):
    async with asc.Scheduler("cpu", max_ops=2) as s:
        x = await s.put(LINE)
        busy = [await s.submit(held, gate) for _ in range(2)]
        waits = s.submit_nowait(held, gate)
        assert s.statistics().tasks_pending == 1
        y = x + 1
        assert not y.done()
        assert s.statistics().tasks_pending == 2
        gate.set()
        assert np.array_equal(await y, LINE + 1)
        await asc.gather(waits, *busy)


async def test_an_operand_that_is_not_there_makes_it_a_task(s, gate):
    x = await s.put(LINE)
    slow = await s.submit(lambda a: held(gate, a + 1), x, shape=(2048,), dtype="f4")
    y = slow + 1
    assert not y.done()
    gate.set()
    assert np.array_equal(await y, LINE + 2)


async def test_without_a_slot_it_waits_for_one(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = await s.put(LINE)
        busy = await s.submit(held, gate)
        y = x + 1
        assert not y.done()
        assert s.statistics().tasks_pending == 1
        gate.set()
        assert np.array_equal(await y, LINE + 1)
        await busy
        assert s.statistics().peak_tasks_in_flight == 1


async def test_without_room_it_waits_for_some():
    async with asc.Scheduler("cpu", max_bytes=3 * LINE.nbytes) as s:
        x = await s.put(LINE)
        y, z = x + 1, x + 2
        assert y.done()
        assert z.done()
        more = x + 3
        assert not more.done()
        del y
        assert np.array_equal(await more, LINE + 3)
        assert s.statistics().peak_bytes == 3 * LINE.nbytes


async def test_it_holds_the_loop_for_no_longer_than_its_budget_between_two_turns(gate):
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(np.ones(4096, np.float32))
        busy = await s.submit(held, gate)
        each, at_once = plan(TABLE["exp"], (x._value.meta,), {}).seconds, 0
        while (y := asc.exp(x)).done():
            at_once += 1
        assert INLINE_BUDGET - each < at_once * each < INLINE_BUDGET + 2 * each
        assert not (x + 1).done()  # a quick one neither, behind it
        gate.set()
        await asc.gather(y, busy)
        await s.barrier()
        assert (x + 1).done()
        assert asc.exp(x).done()


async def test_after_its_budget_the_loop_turns_once(gate):
    """Also where nothing is pending."""
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(LINE)
        busy = await s.submit(held, gate)
        s._runtime.spend(2 * INLINE_BUDGET)
        y = x + 1
        assert not y.done()
        await asyncio.sleep(0)
        assert not y.done()
        gate.set()
        await asc.gather(y, busy)
        assert (x + 1).done()


async def test_a_view_of_something_large_is_there_at_once(s, gate):
    busy = await s.submit(held, gate)
    x = await s.put(np.ones((1000, 1000)))
    row = x[3]
    assert row.done()
    assert x.mT.done()
    used = s.statistics().bytes_retained
    del x
    assert s.statistics().bytes_retained == used  # the view holds it all
    gate.set()
    await busy


async def test_large_operands_leave_the_loop_to_others(gate):
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(np.ones((300, 300)))
        busy = await s.submit(held, gate)
        y = x @ x
        assert not y.done()
        gate.set()
        await asc.gather(y, busy)


async def test_a_closed_scheduler_is_not_opened_by_a_turn_of_the_loop():
    async with asc.Scheduler("cpu") as s:
        x = await s.put(LINE)
        s._runtime.spend(INLINE_BUDGET / 2)
    await asyncio.sleep(0)
    with pytest.raises(asc.SchedulerClosed):
        x + 1


async def test_in_another_thread_it_is_refused(s):
    x = await s.put(LINE)
    told: list[str] = []

    def use() -> None:
        try:
            x + 1
        except RuntimeError as error:
            told.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert "event loop's thread alone" in told[0]
