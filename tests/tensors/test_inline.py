"""Quick rows run on the loop's thread where that takes nothing from anybody, and as tasks elsewhere."""

from __future__ import annotations

import asyncio
import operator
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops import TABLE, plan
from asyncsched.ops.meta import meta
from asyncsched.ops.op import Numbers
from asyncsched.runtime.runtime import INLINE_BUDGET
from tests.ledger import engine_of, runtime_of
from tests.waiting import held

pytestmark = pytest.mark.one_loop

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


async def test_a_failure_beside_a_callable_is_raised_at_its_await(s, gate):
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


NUMBERS = (1, 3, -2, 0, 300, 2.5, 0.1, -0.0, 0.0, 1e300, -1e300, float("inf"), float("nan"), 2**70, 10**400)
SIGNS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.lt, operator.eq)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("as_task", [False, True])
async def test_a_number_gives_the_bits_that_it_gives_numpy(s, gate, dtype, as_task):
    """Each number twice, since the second time it is known; and zeros of both signs one after the other."""
    array = np.array([[0, 1, 5]]).astype(dtype)
    x = await s.put(array)
    if as_task:
        x = await s.submit(x_when_open, gate, x, shape=array.shape, dtype=array.dtype)
        gate.set()
    for sign in SIGNS:
        for number in NUMBERS * 2:
            try:
                with np.errstate(all="ignore"):
                    expected = sign(array, number)
            except (OverflowError, TypeError) as error:
                with pytest.raises(type(error)):
                    await sign(x, number)
                continue
            found = await sign(x, number)
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes(), (sign, number)


async def test_a_task_that_is_found_done_is_forgotten(s, gate):
    """So that what comes next does not ask it again."""
    seen = weakref.WeakSet[Any]()

    class Sees(asc.observe.Instrument):
        def task_submitted(self, task):
            seen.add(task)

    s.add_instrument(Sees())
    gate.set()
    x, y = [await s.submit(x_when_open, gate, LINE, shape=LINE.shape, dtype=LINE.dtype) for _ in range(2)]
    await s.barrier()
    assert [task.name for task in seen] == ["x_when_open"] * 2
    for _ in range(2):  # the second time its plan is known
        z = x + y
    assert not seen
    assert np.array_equal(await z, LINE + LINE)


async def test_why_either_operand_failed_is_why_the_result_did(s, gate):
    gate.set()
    good = await s.put(LINE)
    bad = await s.submit(x_when_open, gate, None, shape=LINE.shape, dtype=LINE.dtype)
    with pytest.raises(AttributeError):
        await bad
    for make in (lambda: bad + good, lambda: good + bad, lambda: bad + 1, lambda: bad + bad, lambda: -bad):
        result = make()
        assert result.done()
        with pytest.raises(AttributeError):
            await result


def x_when_open(gate, x):
    held(gate)
    return x.copy()


def test_numbers_are_kept_as_long_as_they_are_few():
    numbers = Numbers(np.dtype("f4"))
    kept = [numbers[float(i)] for i in range(1, 100)]
    assert len(numbers) == 64
    assert kept[0] is numbers[1.0]
    assert kept[0].dtype == "f4"
    assert not kept[0].flags.writeable
    assert kept[-1] == 99.0
    assert type(kept[-1]) is float


async def test_bytes_dropped_between_two_of_them_are_free_at_once(s):
    x = await s.put(LINE)
    used = engine_of(s).ledger.account.used
    y = x + 1
    assert engine_of(s).ledger.account.used == used + LINE.nbytes
    del y
    assert not engine_of(s).completions.items
    assert engine_of(s).ledger.account.used == used
    assert s.statistics().bytes_retained == used


async def test_a_drop_on_another_thread_reaches_the_loop(s):
    x = await s.put(LINE)
    kept = [x + 1]
    await asyncio.to_thread(kept.clear)
    assert len(engine_of(s).completions.items) == 1
    assert s.statistics().bytes_retained == LINE.nbytes


async def test_a_drop_while_a_task_waits_for_room_reaches_the_loop(gate):
    async with asc.Scheduler("cpu", max_bytes=4 * LINE.nbytes) as s:
        x = await s.put(LINE)
        y, z = x + 1, x + 2
        waits = s.submit_nowait(np.copy, x, nbytes=2 * LINE.nbytes)
        assert not waits.done()
        del y
        assert len(engine_of(s).completions.items) == 1
        assert np.array_equal(await waits, LINE)
        assert np.array_equal(await z, LINE + 2)


async def test_an_instrument_sees_drops_of_values_older_than_itself(s):
    class Listens(asc.observe.Instrument):
        freed = 0

        def bytes_released(self, account, nbytes, seq):
            self.freed += nbytes

    x = await s.put(LINE)
    y = x + 1
    found = Listens()
    s.add_instrument(found)
    del y
    s.statistics()
    assert found.freed == LINE.nbytes


async def test_it_overtakes_no_waiting_task(gate):
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
        each, at_once = plan(TABLE["exp"], (meta((4096,), np.dtype(np.float32)),), {}).seconds, 0
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
        runtime_of(s).spend(2 * INLINE_BUDGET)
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
    op = x[3]
    assert op.done()
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
        x = await s.put(np.ones(4096, np.float32))
        asc.exp(x)  # from now on the time that this thread is held is counted, until the loop turns
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
    assert "event loop may use it" in told[0]


# -- pending -----------------------------------------------------------------------------------------------------------


def launches(s):
    """How many tasks were given to streams."""
    return sum(stream.launched for device in s.devices for stream in device.streams)


async def test_a_pending_task_runs_on_the_loops_thread(gate):
    async with asc.Scheduler("cpu", max_ops=2) as s:
        x = await s.put(LINE)
        busy = [await s.submit(held, gate) for _ in range(2)]
        begun = launches(s)
        y = x
        for _ in range(1_000):
            y = y + 1
        view = y[10:20]
        assert s.statistics().tasks_pending == 1_001
        gate.set()
        assert np.array_equal(await view, LINE[10:20] + 1_000)
        await asc.gather(*busy)
        assert launches(s) == begun
        assert s.statistics().peak_tasks_in_flight == 2


async def test_training_a_small_network_takes_no_hop(s):
    """Its steps are commits, whose tasks are pending until the gradients are there."""
    rng = np.random.default_rng(0)
    model = asc.nn.Sequential(asc.nn.Linear(32, 64), asc.nn.LayerNorm(64), asc.nn.ReLU(), asc.nn.Linear(64, 4))
    optimizer = asc.optim.Adam(model.parameters(), lr=0.01)
    x, target = await s.put(rng.standard_normal((8, 32), np.float32)), await s.put(np.arange(8) % 4)
    await s.barrier()  # the first weights are drawn on streams
    begun, losses = launches(s), []
    for _ in range(20):
        loss = asc.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(await loss.item())
        await asyncio.sleep(0)  # its time on the loop's thread is limited between two turns
    assert losses[-1] < 0.5 * losses[0]
    assert launches(s) == begun


async def test_cpython_shares_the_names_of_what_each_operation_asks(s):
    """With more than 30 in a `__dict__` it does not, and each call of a method takes longer."""
    assert len(vars(runtime_of(s))) <= 30


async def test_the_loop_turns_while_many_that_were_pending_run(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = await s.put(np.ones(2))
        busy = await s.submit(held, gate)
        many = [x + 1 for _ in range(1_000)]
        gate.set()
        await busy
        seen = set()
        while not many[-1].done():
            seen.add(s.statistics().tasks_pending)
            await asyncio.sleep(0)
        assert len(seen) >= 3


async def test_it_waits_for_tasks_submitted_before_it(gate):
    class Order(asc.observe.Instrument):
        def __init__(self):
            self.told = []

        def task_launched(self, task):
            self.told.append(("launched", task.name, task.lane.stream.name))

        def body_ended(self, task, began, ended):
            if task.lane.stream.name == "event loop":
                assert threading.current_thread() is threading.main_thread()
                self.told.append(("ran", task.name))

        def task_ended(self, task):
            self.told.append(("ended", task.name))

    order = Order()
    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        x, large = await s.put(LINE), await s.put(np.ones((300, 300)))
        busy = await s.submit(held, gate)
        s.add_instrument(order)
        first, second, third = large @ large, x + 1, x - 1
        gate.set()
        await asc.gather(first, second, third, busy)
    assert [one for one in order.told if "held" not in one] == [
        ("launched", "matmul", "cpu stream 0"),
        ("ended", "matmul"),
        ("launched", "add", "event loop"),
        ("ran", "add"),
        ("ended", "add"),
        ("launched", "subtract", "event loop"),
        ("ran", "subtract"),
        ("ended", "subtract"),
    ]


@pytest.mark.parametrize("watched", [False, True])
async def test_a_pending_task_that_fails_there_raises_at_its_await(gate, watched):
    async with asc.Scheduler("cpu", max_ops=1, instruments=[asc.observe.Instrument()] * watched) as s:
        x, place = await s.put(np.zeros((2, 2))), await s.put(np.array([5]))
        busy = await s.submit(held, gate)
        y = asc.take(x, place, axis=0)
        z, cancelled, fine = y + 1, x + 3, x + 2
        cancelled.cancel()
        gate.set()
        assert np.array_equal(await fine, np.full((2, 2), 2.0))
        for failed in y, z:
            with pytest.raises(IndexError, match="5 is out of bounds"):
                await failed
        with pytest.raises(asc.TaskCancelled):
            await cancelled
        await busy
        found = s.statistics()
    assert (found.tasks_failed, found.tasks_cancelled, found.tasks_pending, found.tasks_in_flight) == (2, 1, 0, 0)
