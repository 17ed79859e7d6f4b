"""Cancelling tasks in every state, and cancelling those who wait for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import engine_of, task_of
from tests.validate import validate
from tests.waiting import cancelled, fail, turns

BLOCK = np.ones((200, 200))
NB = BLOCK.nbytes


class Gate:
    """A body that says when it began, and ends when it is told to."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.entered.set()
        assert self.opened.wait(60)
        return args or None

    async def running(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 60)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def idle(s: asc.Scheduler) -> bool:
    now = s.statistics()
    validate(engine_of(s))
    return now.tasks_pending == now.tasks_in_flight == now.bytes_in_flight == now.bytes_retained == 0


async def test_pending(gate: Gate) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:
        s.submit_nowait(gate)
        ran: list[int] = []
        task = s.submit_nowait(ran.append, 1)
        assert s.statistics().tasks_pending == 1
        assert task.cancel()
        assert task.done()
        assert not task.cancel()
        assert "cancelled" in repr(task)
        with pytest.raises(asc.TaskCancelled, match=r"append was cancelled by cancel\(\)"):
            await task
        gate.opened.set()
    assert ran == []


async def test_launched_and_waiting_in_its_stream() -> None:
    gate, ran = Gate(), []
    async with asc.Scheduler("cpu", streams=1) as s:
        s.submit_nowait(gate)
        task = s.submit_nowait(ran.append, 1)
        await gate.running()
        assert s.statistics().tasks_in_flight == 2
        assert task.cancel()
        assert s.statistics().tasks_in_flight == 2  # it keeps its slot
        with pytest.raises(asc.TaskCancelled):
            await task
        gate.opened.set()
        await s.barrier()
        assert idle(s)
    assert ran == []


async def test_running(gate: Gate) -> None:
    async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        task = s.submit_nowait(lambda: gate(BLOCK.copy()), nbytes=BLOCK.nbytes)
        waiting = asyncio.ensure_future(asc.gather(task))
        await gate.running()
        assert task.cancel()
        with pytest.raises(asc.TaskCancelled):
            await waiting
        assert s.statistics().bytes_in_flight == BLOCK.nbytes  # until it physically ends
        gate.opened.set()
        await s.barrier()
        assert idle(s)
        assert s.statistics().tasks_cancelled == 1


async def test_done(s: asc.Scheduler) -> None:
    task = await s.submit(int)
    await s.barrier()
    assert not task.cancel()
    assert await task == 0
    x = await s.put(1) + 1
    assert not x.cancel()


async def test_failed(s: asc.Scheduler) -> None:
    task = s.submit_nowait(fail)
    with pytest.raises(LookupError):
        await task
    assert not task.cancel()
    assert isinstance(task.exception(), LookupError)


@pytest.mark.parametrize("max_ops", [1, 64])
async def test_dependents_are_cancelled_too(max_ops: int, gate: Gate) -> None:
    async with asc.Scheduler("cpu", max_ops=max_ops, streams=2) as s:
        x = s.submit_nowait(lambda: gate() or BLOCK, shape=BLOCK.shape, dtype=float)
        y = x + 1
        z = (y * 2).sum()
        beside = s.submit_nowait(int)
        waiting = asyncio.create_task(z.item())
        await gate.running()
        assert x.cancel()
        for handle in (x, y, z):
            with pytest.raises(asc.TaskCancelled, match="lambda.*cancel"):
                await handle
        with pytest.raises(asc.TaskCancelled):
            await waiting
        gate.opened.set()
        assert await beside == 0
        await s.barrier()  # a cancellation is no failure
        assert s.statistics().tasks_failed == 0
        del x, y, z, handle
        waiting = None
        assert idle(s)


async def test_a_later_reader_of_a_cancelled_value_is_cancelled(gate: Gate) -> None:
    async with asc.Scheduler("cpu", streams=1) as s:
        s.submit_nowait(gate)
        x = s.submit_nowait(np.ones, 3, shape=3, dtype=float)
        x.cancel()
        later = [x + 1, s.submit_nowait(int, x)]
        gate.opened.set()
        for handle in (*later, x + 2):
            with pytest.raises(asc.TaskCancelled):
                await handle


async def test_a_cancelled_await_leaves_the_task_and_its_other_waiters(s: asc.Scheduler, gate: Gate) -> None:
    task = s.submit_nowait(gate, 7)
    first, second = asyncio.ensure_future(asc.gather(task)), asyncio.ensure_future(asc.gather(task))
    await turns()
    assert asc.observe.Probe(s).waits == 2
    await cancelled(first)
    assert asc.observe.Probe(s).waits == 1
    gate.opened.set()
    assert await second == [(7,)]
    assert asc.observe.Probe(s).waits == 0


async def test_timeouts_leave_nothing_behind(gate: Gate) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = s.submit_nowait(lambda: gate() or BLOCK, shape=BLOCK.shape, dtype=float)
        pending = s.submit_nowait(int)
        waits = [lambda: x, lambda: asc.gather(x, pending), s.barrier, x.numpy, lambda: s.put(BLOCK)]
        for _ in range(20):
            for wait in waits:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await wait()
        assert not task_of(x).waiters
        assert not task_of(pending).waiters
        assert asc.observe.Probe(s).waits == 0
        assert s.statistics().tasks_pending == 1
        gate.opened.set()
        async with asyncio.timeout(60):
            assert (await x).sum() == BLOCK.sum()
            assert await pending == 0


@pytest.mark.parametrize("what", ["put", "submit", "call"])
async def test_an_unadmitted_submission_is_taken_back(what: str) -> None:
    gate, ran = Gate(), []

    async def work(s: asc.Scheduler) -> None:
        await {
            "put": lambda: s.put(BLOCK),
            "submit": lambda: s.submit(ran.append, 1),
            "call": lambda: s.call(ran.append, 1),
        }[what]()

    async with asc.Scheduler("cpu", max_ops=1) as s:
        s.submit_nowait(gate)
        for _ in range(50):
            waiting = asyncio.create_task(work(s))
            await turns()
            assert s.statistics().tasks_pending == 1
            await cancelled(waiting)
            assert s.statistics().tasks_pending == 0
        gate.opened.set()
        await s.barrier()
        assert idle(s)
        assert s.statistics().tasks_cancelled == 50
    assert ran == []


async def test_a_put_cancelled_behind_one_too_large_for_now_lets_the_next_one_in() -> None:
    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes) as s:
        kept = await s.put(np.ones((400, 200)))
        wide = asyncio.create_task(s.put(np.ones((400, 200))))
        await turns()
        small = asyncio.create_task(s.put(BLOCK))
        wide.cancel()
        assert (await (await small)).sum() == BLOCK.sum()
        with pytest.raises(asyncio.CancelledError):
            await wide
        await kept


async def test_call_cancels_its_task_in_every_state() -> None:
    gate, ran = Gate(), []
    async with asc.Scheduler("cpu", streams=1) as s:
        blocking = asyncio.create_task(s.call(gate))
        await gate.running()
        waiting = asyncio.create_task(s.call(ran.append, 1))
        await turns()
        for calling in (waiting, blocking):
            await cancelled(calling)
        gate.opened.set()
        await s.barrier()
        assert s.statistics().tasks_cancelled == 2
    assert ran == []


async def test_call_cancelled_in_the_turn_that_admits_it() -> None:
    gate, body = Gate(), Gate()
    async with asc.Scheduler("cpu", max_ops=1) as s:
        s.submit_nowait(gate)
        calling = asyncio.create_task(s.call(body))
        await turns()
        assert s.statistics().tasks_pending == 1
        engine_of(s).ledger.slots += 1
        engine_of(s).dispatch()
        assert s.statistics().tasks_in_flight == 2  # admitted, and `call` does not know yet
        await cancelled(calling)
        gate.opened.set()
        body.opened.set()
        await s.barrier()
        assert s.statistics().tasks_cancelled == 1


@pytest.mark.parametrize(("reserving", "limit"), [(1, 9 * NB), (3, 64 * NB)])  # few bytes only where all reserve them
async def test_random_cancellations_leave_a_working_scheduler(reserving: int, limit: int) -> None:
    import random

    chance = random.Random(5)

    async def work(s: asc.Scheduler, i: int) -> float:
        async with s.scope(name=str(i), reserve=4 * NB if i % reserving == 0 else None):
            x = await s.put(BLOCK)
            y = x + i
            del x
            if i % 2:
                return float(await s.call(np.sum, y))
            return float(await y.sum().item())

    async with asc.Scheduler("cpu", max_ops=3, max_bytes=limit, streams=2) as s:
        for _ in range(6):
            tasks = [asyncio.create_task(work(s, i)) for i in range(20)]
            for task in chance.sample(tasks, 12):
                await turns(chance.randrange(6))
                task.cancel()
            for i, task in enumerate(tasks):
                (found,) = await asyncio.gather(task, return_exceptions=True)
                assert isinstance(found, asyncio.CancelledError) or found == BLOCK.sum() * (1 + i)
            tasks.clear()
            del task, found
            await s.barrier()
            assert idle(s)
            assert s.statistics().bytes_reserved == 0
        assert s.statistics().peak_bytes <= limit
