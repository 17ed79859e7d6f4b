"""Every way to close a scheduler, and what may be done while and after it closes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice
from tests.waiting import cancelled, fail, held, turns, until

BLOCK = np.ones((200, 200))


async def test_leaving_waits_for_tasks_whose_handles_were_dropped() -> None:
    ended = []
    async with asc.Scheduler("cpu", max_ops=1) as s:
        for i in range(20):
            s.submit_nowait(ended.append, i)
    assert ended == list(range(20))


async def test_leaving_raises_unseen_failures_as_one_group() -> None:
    with pytest.raises(ExceptionGroup, match="2 tasks failed") as caught:
        async with asc.Scheduler("cpu") as s:
            for text in ("first", "second"):
                t = s.submit_nowait(fail, text)
                s.submit_nowait(int, t)
    assert [str(error) for error in caught.value.exceptions] == ["first", "second"]


async def _barrier(s: asc.Scheduler, submit: Callable[[], None]) -> None:
    submit()
    await s.barrier()


async def _scope(s: asc.Scheduler, submit: Callable[[], None]) -> None:
    async with s.scope():
        submit()


async def _window(s: asc.Scheduler, submit: Callable[[], None]) -> None:
    window = s.window(1)
    async with window:
        submit()
    async with window:
        pass


async def _scheduler(s: asc.Scheduler, submit: Callable[[], None]) -> None:
    submit()
    await s.aclose()


@pytest.mark.parametrize("reports", [_barrier, _scope, _window, _scheduler])
async def test_a_failure_that_somebody_awaits_is_not_reported_besides(reports: Callable[..., Any]) -> None:
    """Though what reports failures began to wait before, and so is woken first."""
    gate, tasks = threading.Event(), list[asc.Task[None]]()

    def body() -> None:
        held(gate)
        fail()

    async with asc.Scheduler("cpu") as s:
        waits = asyncio.create_task(reports(s, lambda: tasks.append(s.submit_nowait(body))))
        await until(lambda: tasks)
        await turns()
        asyncio.get_running_loop().call_soon(gate.set)
        with pytest.raises(LookupError):
            await tasks[0]
        await waits


async def test_a_hundred_failures_are_kept_and_the_others_counted() -> None:
    with pytest.raises(ExceptionGroup, match="and 20 more") as caught:
        async with asc.Scheduler("cpu") as s:
            for i in range(120):
                s.submit_nowait(fail, str(i))
    assert len(caught.value.exceptions) == 100


async def test_leaving_by_an_exception_drops_pending_tasks_and_waits_for_running_ones() -> None:
    gate, entered, ran = threading.Event(), threading.Event(), []

    def body() -> None:
        entered.set()
        held(gate)
        ran.append("running")

    with pytest.raises(KeyError) as caught:
        async with asc.Scheduler("cpu", max_ops=1) as s:
            running = await s.submit(body)
            pending = s.submit_nowait(ran.append, "pending")
            assert await asyncio.to_thread(entered.wait, 60)
            asyncio.get_running_loop().call_soon(gate.set)  # once the block is left
            raise KeyError("mine")
    assert ran == ["running"]
    assert not hasattr(caught.value, "__notes__")
    for handle in (running, pending):
        with pytest.raises(asc.TaskCancelled, match="left by KeyError"):
            await handle
    assert s.statistics().tasks_in_flight == s.statistics().bytes_in_flight == 0


async def test_the_bodys_exception_leaves_bare_with_a_note_of_failures() -> None:
    with pytest.raises(KeyError) as caught:
        async with asc.Scheduler("cpu") as s:
            s.submit_nowait(fail)
            await s.submit(int)
            await asyncio.to_thread(int)
            await until(lambda: s.statistics().tasks_failed > 0)
            raise KeyError("mine")
    assert "1 task failed unseen (LookupError)" in caught.value.__notes__[0]


async def test_cancelling_a_scheduler_that_waits_to_close() -> None:
    gate, ran, begun = threading.Event(), [], threading.Event()

    def body() -> None:
        begun.set()
        held(gate)

    async def work() -> None:
        async with asc.Scheduler("cpu", max_ops=1) as s:
            s.submit_nowait(body)
            s.submit_nowait(ran.append, "pending")

    task = asyncio.create_task(work())
    await until(begun.is_set)  # cancelled before, it would not run at all
    await turns()
    task.cancel()
    await turns()
    assert not task.done()  # a body runs
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []


async def test_aclose_with_a_timeout_names_the_bodies_that_run(gate: threading.Event) -> None:
    s = asc.Scheduler("cpu", max_ops=1)
    async with s:
        running = s.submit_nowait(held, gate, name="slow body")
        pending = s.submit_nowait(int)
        with pytest.raises(TimeoutError, match=r"after 0.02 s these tasks still run: slow body "):
            await s.aclose(0.02)
        for handle in (running, pending):
            with pytest.raises(asc.TaskCancelled, match="out of time"):
                await handle
        gate.set()
        with pytest.raises(asc.SchedulerClosed, match="closed"):
            s.submit_nowait(int)
    await s.aclose(0.02)


async def test_aclose_that_runs_out_of_time_raises_unseen_failures(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu") as s:
        s.submit_nowait(fail)
        await until(lambda: s.statistics().tasks_failed)
        s.submit_nowait(held, gate)
        with pytest.raises(TimeoutError) as caught:
            await s.aclose(0.02)
        gate.set()
    assert "1 task failed unseen (LookupError)" in caught.value.__notes__[0]


async def test_aclose_in_time(s: asc.Scheduler) -> None:
    t = s.submit_nowait(int)
    await s.aclose(10)
    assert t.result() == 0
    await s.aclose()


async def test_while_it_closes_it_takes_nothing_new(gate: threading.Event) -> None:
    """It would wait for that, too, and for what that submits, for ever."""
    s = asc.Scheduler("cpu")
    async with s:
        x = await s.put([1.0])
        running = s.submit_nowait(held, gate)
        closing = asyncio.create_task(s.aclose())
        await turns()
        assert not closing.done()
        await _refuses_everything(s, x)
        assert s.statistics().tasks_submitted == 2
        gate.set()
        await closing
        assert running.done()


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.put(BLOCK),
        lambda s: s.submit(int),
        lambda s: s.scope(reserve=1).__aenter__(),
    ],
    ids=["put", "submit", "reserve"],
)
async def test_a_submission_that_pauses_is_refused_if_the_scheduler_closes_meanwhile(
    step: Callable[[asc.Scheduler], Any],
) -> None:
    """A stream would never run it: whoever waited for it would do so for ever."""
    async with asc.Scheduler("cpu") as s:
        late = asyncio.create_task(step(s))
        await asyncio.sleep(0)  # it has found the scheduler open
    with pytest.raises(asc.SchedulerClosed, match="closed"):
        await late
    assert s.statistics().tasks_pending == s.statistics().tasks_in_flight == 0


async def test_whoever_closes_while_another_does_waits_with_it(gate: threading.Event) -> None:
    """One of them, whichever is first, is told of the failure."""
    told: list[BaseException | None] = []
    try:
        async with asc.Scheduler("cpu") as s:
            running = s.submit_nowait(held, gate)
            s.submit_nowait(fail)
            closing = [asyncio.create_task(s.aclose()) for _ in range(2)]
            await turns()
            asyncio.get_running_loop().call_soon(gate.set)
    except ExceptionGroup as error:
        told.append(error)
    assert running.done()
    told += await asyncio.gather(*closing, return_exceptions=True)
    assert [type(one) for one in told if one is not None] == [ExceptionGroup]


async def test_use_before_opening_and_opening_twice() -> None:
    s = asc.Scheduler("cpu")
    assert repr(s) == "Scheduler(cpu; not open)"
    with pytest.raises(asc.SchedulerClosed, match="async with"):
        s.submit_nowait(int)
    async with s:
        with pytest.raises(asc.SchedulerClosed, match="make another"):
            await s.__aenter__()
        assert await s.call(int) == 0
    with pytest.raises(asc.SchedulerClosed, match="make another"):
        await s.__aenter__()


async def test_use_after_close() -> None:
    async with asc.Scheduler("cpu") as s:
        x = await s.put([1.0])
    await _refuses_everything(s, x)


async def _refuses_everything(s: asc.Scheduler, x: asc.Tensor) -> None:
    scope, window = s.scope(), s.window(1)
    steps: list[Callable[[], Any]] = [
        lambda: s.put(1), lambda: s.submit(int), lambda: s.call(int), s.barrier, scope.__aenter__, window.__aenter__,
    ]  # fmt: skip
    for step in steps:
        with pytest.raises(asc.SchedulerClosed, match="closed"):
            await step()
    for now in (lambda: x + 1, lambda: s.put_nowait(1), lambda: s.submit_nowait(int), lambda: x[0], lambda: asc.exp(x)):
        with pytest.raises(asc.SchedulerClosed, match="closed"):
            now()


@pytest.mark.parametrize("device", ["cpu", "sim"])
async def test_finished_tensors_stay_readable_after_close(device: str) -> None:
    async with asc.Scheduler(SimDevice(3) if device == "sim" else device) as s:
        small, large = await s.put([1.0, 2.0]), await s.put(BLOCK)
        late = large.sum()
        t = await s.submit(int)
    assert (await small).tolist() == [1, 2]
    assert await late.item() == BLOCK.sum()
    for handle in (large, large):
        assert (await handle).tobytes() == BLOCK.tobytes()
        assert (await asyncio.wait_for(handle.numpy(), 60)).tobytes() == BLOCK.tobytes()
    assert np.asarray(await asc.gather(large)).sum() == BLOCK.sum()
    assert await t == 0
    assert t.cancel() is large.cancel() is False
    assert await asyncio.to_thread(float, late) == BLOCK.sum()


async def test_a_task_that_is_cancelled_while_the_scheduler_closes(s: asc.Scheduler, gate: threading.Event) -> None:
    async def caller(s: asc.Scheduler) -> None:
        await s.call(held, gate)

    calling = asyncio.create_task(caller(s))
    task = s.submit_nowait(held, gate)
    closing = asyncio.create_task(s.aclose())
    await turns()
    assert task.cancel()
    await cancelled(calling)
    gate.set()
    await closing
