"""Opening, submitting, waiting, and every way to close."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.contract import Job
from asyncsched.devices.cpu import CPUDevice
from asyncsched.devices.sim import SimDevice
from asyncsched.flow.pipeline import Pipeline  # imported here, since that blocks
from tests.conftest import LOOPS
from tests.waiting import cancelled, fail, held, settled, turns, until

BLOCK = np.ones((200, 200))


async def test_it_cannot_be_pickled_or_copied_nor_what_belongs_to_it(s: asc.Scheduler) -> None:
    """A copy that went would stop the threads of the one that is open."""
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        for owned in (s, s.scope()):
            with pytest.raises(TypeError, match="lives on its event loop"):
                duplicate(owned)
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="lives on its event loop"):
            duplicate(s.window(2))
    assert await s.call(divmod, 7, 2) == (3, 1)


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["streams", "max_ops", "max_pending"])
def test_counts_out_of_range(name: str) -> None:
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("2", TypeError)):
        with pytest.raises(error, match=name):
            asc.Scheduler("cpu", **{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["tpu", "cpu:x", "", []])
def test_unknown_devices(wrong: Any) -> None:
    with pytest.raises(ValueError, match="device"):
        asc.Scheduler(wrong)


def test_other_bad_arguments() -> None:
    with pytest.raises(TypeError, match="device"):
        asc.Scheduler(3)  # type: ignore[arg-type]
    for wrong in (0, -1.0):
        with pytest.raises(ValueError, match="stall_timeout"):
            asc.Scheduler("cpu", stall_timeout=wrong)
    for bytes_ in (0, -5, "none", "3 parsecs"):
        with pytest.raises(ValueError, match="max_bytes"):
            asc.Scheduler("cpu", max_bytes=bytes_)
    with pytest.raises(TypeError, match="max_bytes"):
        asc.Scheduler("cpu", max_bytes=1.5)  # type: ignore[arg-type]


# -- submitting -----------------------------------------------------------------------------------------------------


async def test_put_copies(s: asc.Scheduler) -> None:
    source = np.arange(20_000.0)
    for array in (source, source[::2], source.reshape(100, 200).T, source[:3], source[0], [1, 2], 3.5):
        t = await s.put(array)
        expected = np.array(array)
        if isinstance(array, np.ndarray):
            array += 1
        assert (await t).tobytes() == expected.tobytes()
        assert t.shape == expected.shape


async def test_an_array_that_is_given_another_shape_while_it_waits_is_put_as_it_was(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:
        await s.submit(held, gate)
        source = np.arange(6.0)
        waiting = asyncio.create_task(s.put(source))
        await until(lambda: s.statistics().tasks_pending)
        source.shape = (2, 3)
        gate.set()
        x = await waiting
        assert (await x).shape == (await (x + 1)).shape == x.shape == (6,)


async def test_put_refuses_other_dtypes(s: asc.Scheduler) -> None:
    for wrong in (np.array(["a"]), np.array([object()]), np.array(["2020-01-01"], "M8[D]")):
        with pytest.raises(TypeError, match="not supported"):
            await s.put(wrong)


@pytest.mark.parametrize("dtype", ["i4", "f8", "c16"])
@pytest.mark.parametrize("side", [2, 200])
async def test_put_of_the_other_order_of_bytes_gives_this_machines(s: asc.Scheduler, dtype: str, side: int) -> None:
    array = np.arange(side**2).reshape(side, side).astype(dtype)
    for source in (array, array.T, array[::-1, ::2], array[0, :1]):
        swapped = source.astype(source.dtype.newbyteorder())
        assert not swapped.dtype.isnative
        x = await s.put(swapped)
        assert x.dtype == dtype
        assert (await x).dtype.isnative
        assert (await x).tobytes() == source.tobytes()
        assert (await (x + 1)).tobytes() == (source + 1).tobytes()
        assert s.statistics().bytes_retained == source.nbytes
        del x
        await s.barrier()


async def test_bytes_are_swapped_on_the_copy_stream(s: asc.Scheduler, gate: threading.Event) -> None:
    source = np.zeros((200, 200), np.dtype("f8").newbyteorder())
    s.devices[0].offload(Job(lambda: held(gate)))
    x = s.put_nowait(source)
    source[:] = 7  # what nobody but a test does: the copy has not begun
    gate.set()
    assert (await x).min() == 7


async def test_put_nowait() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * BLOCK.nbytes) as s:
        t = s.put_nowait(BLOCK)
        assert (await t).sum() == BLOCK.sum()
        u = s.put_nowait(BLOCK)
        with pytest.raises(asc.QueueFull, match=r"await s\.put\(array\)"):
            s.put_nowait(BLOCK)
        await u
        assert s.statistics().tasks_pending == 0
        with pytest.raises(asc.TaskTooLarge, match="split"):
            s.put_nowait(np.ones((200, 601)))
    assert s.statistics().tasks_cancelled == 1


async def test_submit_runs_a_callable_in_the_submitters_context(s: asc.Scheduler) -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    t = await s.submit(lambda: (variable.get(), threading.current_thread().name))
    assert await t == ("set", "asyncsched cpu stream 0")
    assert t.done()
    assert t.result() == await t
    assert repr(t).startswith("Task(")


async def test_tensors_are_found_in_lists_tuples_and_dicts(s: asc.Scheduler) -> None:
    x = await s.put([1.0, 2.0])
    task = await s.submit(lambda: 5)
    found = await s.call(lambda a, b: (a, b), [x, (x + 1, task)], {"key": x * 2})
    assert found[0][0].tolist() == [1, 2]
    assert found[0][1][0].tolist() == [2, 3]
    assert found[0][1][1] == 5
    assert found[1]["key"].tolist() == [2, 4]
    assert not found[0][0].flags.writeable


async def test_submit_refuses_what_is_no_plain_callable(s: asc.Scheduler) -> None:
    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="coroutine function"):
        await s.submit(coroutine)
    with pytest.raises(TypeError, match="callable"):
        s.submit_nowait(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="go together"):
        await s.submit(int, shape=())
    with pytest.raises(ValueError, match="shape"):
        await s.submit(int, shape=(-1,), dtype=float)
    assert s.statistics().tasks_submitted == 0


async def test_a_declared_shape_is_held_to(s: asc.Scheduler) -> None:
    t = await s.submit(np.ones, 3, shape=4, dtype=float)
    with pytest.raises(ValueError, match="declare what the function returns"):
        await t


async def test_submit_waits_for_admission_and_not_for_the_end() -> None:
    gates = [threading.Event(), threading.Event()]
    async with asc.Scheduler("cpu", max_ops=1) as s:
        first = await s.submit(held, gates[0], 1)
        assert not first.done()
        second = asyncio.create_task(s.submit(held, gates[1], 2))
        await turns()
        assert not second.done()
        gates[0].set()
        task = await second
        assert not task.done()
        gates[1].set()
        assert await asc.gather(first, task) == [1, 2]
        assert s.statistics().admission_wait_seconds > 0


async def test_a_backlog_at_its_limit_names_the_cures(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_pending=2) as s:
        x = await s.put(BLOCK)
        s.submit_nowait(held, gate)
        last = [s.submit_nowait(int), x + 1]
        for more in (lambda: x + 1, lambda: s.submit_nowait(int), lambda: s.put_nowait(BLOCK)):
            with pytest.raises(asc.QueueFull, match=r"s\.barrier\(\).*s\.window\(2\)"):
                more()
        waiting = [asyncio.create_task(s.put(BLOCK)), asyncio.create_task(s.submit(int))]  # those wait instead
        await asyncio.sleep(0)
        gate.set()
        for task in waiting:
            await (await task)
        assert (await last[1])[0, 0] == 2
        assert s.statistics().tasks_submitted == 6


@pytest.mark.parametrize("inline", [True, False])
async def test_a_hundred_thousand_tasks_without_an_await(inline: bool) -> None:
    async with asc.Scheduler("cpu", max_pending=None) as s:
        gate = threading.Event()
        x = await s.put([0.0, 1.0])
        first = None if inline else s.submit_nowait(held, gate)
        for _ in range(100_000):
            x = x + 1
        gate.set()
        assert (await x).tolist() == [100_000, 100_001]
        await first if first is not None else None
        del x
        assert s.statistics().bytes_retained == 0


async def test_tasks_nobody_awaits_run_at_one_slot() -> None:
    loop = asyncio.get_running_loop()
    async with asc.Scheduler("cpu", max_ops=1) as s:
        for _ in range(300):
            ended = loop.create_future()
            s.submit_nowait(int)
            s.submit_nowait(loop.call_soon_threadsafe, ended.set_result, None)
            await asyncio.wait_for(ended, 60)


# -- waiting --------------------------------------------------------------------------------------------------------


async def test_gather_keeps_the_order_and_raises_the_first_failure_at_once(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put([1])
        assert await asc.gather() == []
        assert [int(a[0]) for a in await asc.gather(x + 2, x, x + 1, x)] == [3, 1, 2, 1]
        slow, broken = s.submit_nowait(held, gate, 7), s.submit_nowait(fail)
        with pytest.raises(LookupError):
            await asc.gather(slow, broken)
        assert not slow.done()
        gate.set()
        assert await slow == 7
        with pytest.raises(TypeError, match=r"asyncio\.gather"):
            asc.gather(asyncio.sleep)  # type: ignore[arg-type]


async def test_gather_passes_through_the_loop_also_with_a_failure(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        slow, broken = s.submit_nowait(held, gate), await settled(s.submit_nowait(fail))
        others: list[int] = []
        asyncio.get_running_loop().call_soon(others.append, 1)
        with pytest.raises(LookupError):
            await asc.gather(slow, broken)
        assert others == [1]
        gate.set()


async def test_gather_of_two_schedulers_tells_of_the_first_failure_of_either(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu") as s, asc.Scheduler("cpu", streams=2) as other:
        begin = threading.Event()
        slow, quick = s.submit_nowait(held, gate, 1), other.submit_nowait(held, gate, 2)
        broken = other.submit_nowait(lambda: begin.wait(60) and fail())
        results = asyncio.ensure_future(asc.gather(slow, quick))
        failing = asyncio.ensure_future(asc.gather(slow, broken))
        await turns()
        assert len(s._runtime.parked) == len(other._runtime.parked) == 2
        begin.set()
        with pytest.raises(LookupError):
            await failing
        assert not slow.done()
        gate.set()
        assert await results == [1, 2]
        assert not s._runtime.parked
        assert not other._runtime.parked


async def test_await_always_lets_others_run(s: asc.Scheduler) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    x = await s.put([1])
    await x
    counting = asyncio.create_task(count())
    for step in (lambda: x, lambda: asc.gather(x), s.barrier, lambda: s.put([1]), x.item, x.numpy):
        before = turns
        await step()
        assert turns > before, step
    counting.cancel()


async def test_barrier_covers_what_was_submitted_before_it() -> None:
    early, late = threading.Event(), threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        first = s.submit_nowait(held, early)
        waiting = asyncio.create_task(s.barrier())
        await asyncio.sleep(0)
        second = s.submit_nowait(held, late)
        await turns()
        assert not waiting.done()
        early.set()
        await waiting
        assert first.done()
        assert not second.done()
        late.set()


async def test_barrier_raises_unseen_failures_once(s: asc.Scheduler) -> None:
    seen, unseen = s.submit_nowait(fail, "seen"), s.submit_nowait(fail, "unseen")
    dependents = [s.submit_nowait(int, unseen) for _ in range(3)]
    with pytest.raises(LookupError, match="seen"):
        await seen
    with pytest.raises(ExceptionGroup) as caught:
        await s.barrier()
    assert [str(error) for error in caught.value.exceptions] == ["unseen"]
    await s.barrier()
    del caught
    with pytest.raises(LookupError):
        await dependents[0]


async def test_statistics_count_everything(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=2, max_bytes="1 MiB") as s:
        x = await s.put(BLOCK)
        s.submit_nowait(held, gate, nbytes=1000)
        tasks = [s.submit_nowait(fail), s.submit_nowait(int)]
        tasks[1].cancel()
        y = x + 1
        now = s.statistics()
        assert (now.tasks_pending, now.tasks_in_flight, now.max_ops, now.max_bytes) == (1, 2, 2, 2**20)
        assert (now.bytes_retained, now.bytes_in_flight) == (BLOCK.nbytes, 1000)
        gate.set()
        await y
        with pytest.raises(LookupError):
            await tasks[0]
        await s.barrier()
        now = s.statistics()
        assert now.tasks_submitted == 5
        assert (now.tasks_completed, now.tasks_failed, now.tasks_cancelled) == (3, 1, 1)
        assert (now.tasks_pending, now.tasks_in_flight, now.bytes_in_flight) == (0, 0, 0)
        assert (now.bytes_retained, now.peak_tasks_in_flight) == (2 * BLOCK.nbytes, 2)
        assert now.peak_bytes == 2 * BLOCK.nbytes
        assert repr(s) == f"Scheduler(cpu; 0 pending, 0 in flight, {2 * BLOCK.nbytes:,} bytes)"
    assert repr(s) == "Scheduler(cpu; closed)"
    assert s.statistics().tasks_submitted == 5


# -- closing --------------------------------------------------------------------------------------------------------


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


async def test_a_hundred_failures_are_kept_and_the_others_counted() -> None:
    with pytest.raises(ExceptionGroup, match="and 20 more") as caught:
        async with asc.Scheduler("cpu") as s:
            for i in range(120):
                s.submit_nowait(fail, str(i))
    assert len(caught.value.exceptions) == 100


async def test_leaving_by_an_exception_drops_what_is_pending_and_waits_for_what_runs() -> None:
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


async def test_aclose_that_runs_out_of_time_tells_of_failures_that_nobody_has_seen(gate: threading.Event) -> None:
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


def test_a_closed_loop(gate: threading.Event) -> None:
    async def leave_open() -> tuple[asc.Scheduler, asc.Tensor]:
        s = asc.Scheduler("cpu")
        await s.__aenter__()
        return s, s.submit_nowait(held, gate, shape=(), dtype=float)

    s, pending = asyncio.run(leave_open())
    with pytest.raises(asc.SchedulerClosed, match="not running"):
        float(pending)
    with pytest.raises(asc.SchedulerClosed, match="loop is closed"):
        pending + 1
    s._runtime.close()


async def _entered(scope: Any) -> None:
    async with scope:
        pass


async def _drained(pipe: Pipeline[Any]) -> None:
    async with pipe.open() as items:
        async for _ in items:
            pass


# Every way into a scheduler, with a small tensor, a large one, and a task that has not ended.
ENTRIES: dict[str, Callable[[asc.Scheduler, asc.Tensor, asc.Tensor, Any], Any]] = {
    "put": lambda s, x, large, task: s.put([1.0]),
    "put, large": lambda s, x, large, task: s.put(BLOCK),
    "put_nowait": lambda s, x, large, task: s.put_nowait([1.0]),
    "submit": lambda s, x, large, task: s.submit(int),
    "submit_nowait": lambda s, x, large, task: s.submit_nowait(int),
    "call": lambda s, x, large, task: s.call(int),
    "operator": lambda s, x, large, task: x + 1,
    "operator, large": lambda s, x, large, task: large + 1,
    "function": lambda s, x, large, task: asc.exp(x),
    "function, no operand": lambda s, x, large, task: asc.zeros(3, scheduler=s),
    "index": lambda s, x, large, task: x[0],
    "assignment": lambda s, x, large, task: large.__setitem__(0, 1.0),
    "to": lambda s, x, large, task: x.to("cpu"),
    "backward": lambda s, x, large, task: x.backward(),
    "await": lambda s, x, large, task: task,
    "gather": lambda s, x, large, task: asc.gather(x, task),
    "cancel": lambda s, x, large, task: task.cancel(),
    "barrier": lambda s, x, large, task: s.barrier(),
    "scope": lambda s, x, large, task: _entered(s.scope()),
    "window": lambda s, x, large, task: _entered(s.window(1)),
    "capture": lambda s, x, large, task: s.capture(lambda x: x + 1, x),
    "pipeline": lambda s, x, large, task: _drained(s.pipeline([[1.0]]).to_device()),
    "batcher": lambda s, x, large, task: asc.Batcher(lambda x: x + 1, scheduler=s)(np.ones(3)),
    "statistics": lambda s, x, large, task: s.statistics(),
    "load": lambda s, x, large, task: s.load(),
    "aclose": lambda s, x, large, task: s.aclose(),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "another loop"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside another scheduler", "alone"])
def test_a_scheduler_refuses_another_loop_and_says_so(
    gate: threading.Event, entry: str, loop: str, closed: bool, beside: bool
) -> None:
    async def leave_open() -> tuple[asc.Scheduler, asc.Tensor, asc.Tensor, Any]:
        s = asc.Scheduler("cpu")
        await s.__aenter__()
        x = await s.put(np.ones(3))
        x.requires_grad = True
        return s, x, await s.put(BLOCK), s.submit_nowait(held, gate)

    async def enter() -> None:
        error, text = (
            (asc.SchedulerClosed, "event loop is closed") if closed else (RuntimeError, "another one runs now")
        )
        async with asc.Scheduler("cpu") if beside else contextlib.nullcontext():
            with pytest.raises(error, match=text):
                found = ENTRIES[entry](*left)
                if hasattr(found, "__await__"):
                    await found
        assert (await left[1]).tolist() == [1, 1, 1]  # what is there is readable
        assert (await left[2].numpy()).tobytes() == BLOCK.tobytes()

    with contextlib.closing(LOOPS[loop]()) as its, contextlib.closing(LOOPS[loop]()) as other:
        left = its.run_until_complete(leave_open())
        if closed:
            its.close()
        try:
            other.run_until_complete(enter())
        finally:
            gate.set()
            if closed:
                left[0]._runtime.close()
            else:
                its.run_until_complete(left[0].aclose())


async def test_between_two_runs_of_its_loop_a_scheduler_takes_work() -> None:
    """As at an interactive prompt, which runs the loop for some of its lines alone."""
    loop = asyncio.new_event_loop()

    def prompt() -> None:
        s = asc.Scheduler("cpu")
        loop.run_until_complete(s.__aenter__())
        x = loop.run_until_complete(s.put(np.ones(3)))
        y = x + 1
        task = s.submit_nowait(int)
        assert s.statistics().tasks_submitted == 3
        assert loop.run_until_complete(_result(y)).tolist() == [2, 2, 2]
        assert loop.run_until_complete(_result(task)) == 0
        loop.run_until_complete(s.aclose())
        loop.close()

    await asyncio.to_thread(prompt)


async def _result(handle: Any) -> Any:
    return await handle


def test_an_unclosed_scheduler_warns_and_ends_its_threads() -> None:
    async def leave_open() -> None:
        s = asc.Scheduler("cpu", streams=2)
        await s.__aenter__()
        await (await s.put(BLOCK) + 1)

    gc.collect()
    before = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(leave_open())
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "never closed" in str(caught[0].message)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


FORK = """
import asyncio, os, signal, sys, threading
import numpy as np
import asyncsched as asc

async def main(how):
    gate = threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        x, task = await s.put(np.ones((300, 300))), s.submit_nowait(gate.wait, 60)
        await x
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            if how == "operator": x + 1
            if how == "await": await task
            if how == "numpy": await x.numpy()
            if how == "statistics": s.statistics()
            if how == "close": await s.aclose()
            if how == "raise": raise KeyError
        else:
            gate.set()
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            await task
            assert (await (x + 1))[0, 0] == 2

async def told(how):
    parent = os.getpid()
    try:
        await main(how)
    except BaseException as error:
        if os.getpid() == parent:
            raise
        # Not through the loop's own end, which in a child closes what the parent still uses.
        os._exit(44 if isinstance(error, KeyError) else 42 if "fork" in str(error) else 43)

asyncio.run(told(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("how", ["operator", "await", "numpy", "statistics", "close", "raise", "leave"])
def test_a_fork_is_told_and_does_not_hang(how: str) -> None:
    code = 44 if how == "raise" else 42
    done = subprocess.run([sys.executable, "-c", FORK, how], capture_output=True, text=True, timeout=15, check=False)
    assert (done.stdout, done.returncode) == (f"{code}\n", 0), done.stderr


async def test_opening_that_is_cancelled_ends_before_it_is_undone() -> None:
    entered, gate, steps = threading.Event(), threading.Event(), []

    class Slow(CPUDevice):
        def prepare(self) -> None:
            entered.set()
            held(gate)
            super().prepare()
            steps.append("prepared")

        def close(self) -> None:
            steps.append("closed")
            super().close()

    opening = asyncio.create_task(asc.Scheduler(Slow(streams=2)).__aenter__())
    await until(entered.is_set)
    opening.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert steps == ["prepared", "closed"]


async def test_a_device_that_cannot_open_leaves_nothing_behind() -> None:
    class Broken(CPUDevice):
        def prepare(self) -> None:
            raise OSError("no such device")

    class Late(CPUDevice):
        def open(self, completions: Any, max_bytes: int | None) -> None:
            raise OSError("no such device")

    for broken in (Broken(), Late()):
        first = CPUDevice(streams=2)
        s = asc.Scheduler([first, broken])
        with pytest.raises(OSError, match="no such device"):
            async with s:
                pass
        assert repr(s).endswith("closed)")
        assert not first.streams  # told to end


async def test_a_device_object_serves_one_scheduler_alone() -> None:
    device = CPUDevice()
    async with asc.Scheduler(device) as s:
        memory, x = device.memory, await s.put(BLOCK)
        with pytest.raises(RuntimeError, match="'cpu' was given to a scheduler before.* make another CPUDevice"):
            await asc.Scheduler(["cpu", device]).__aenter__()
        assert device.memory is memory
        assert (await (x + 1))[0, 0] == 2
    with pytest.raises(RuntimeError, match="also when that is closed"):
        await asc.Scheduler(device).__aenter__()
    assert device.memory is memory
    twice = CPUDevice()
    with pytest.raises(RuntimeError, match="make another"):
        await asc.Scheduler([twice, twice]).__aenter__()


def test_a_device_object_has_its_own_streams() -> None:
    for devices in (CPUDevice(), SimDevice(), ["cpu", CPUDevice()]):
        with pytest.raises(ValueError, match=r"streams=4 is for devices given by name: give it to the \w+Device"):
            asc.Scheduler(devices, streams=4)


async def test_of_several_devices_the_smallest_default_limit_holds() -> None:
    class Asking(CPUDevice):
        def __init__(self, name: str, most: int | None) -> None:
            super().__init__(name)
            self.most = most

        def default_bytes(self) -> int | None:
            return self.most

    for wanted in ([3000, 1000, None, 2000], [None, 1000, 5000]):
        devices = [Asking(f"cpu:{i}", most) for i, most in enumerate(wanted)]
        async with asc.Scheduler(devices) as s:
            assert s.statistics().max_bytes == 1000
    async with asc.Scheduler([Asking("cpu:0", 1000)], max_bytes=7000) as s:
        assert s.statistics().max_bytes == 7000


@pytest.mark.parametrize("turned", [False, True])
async def test_tiny_rows_run_at_once_only_where_every_device_is_the_hosts(turned: bool) -> None:
    devices = [CPUDevice(), SimDevice(1)]
    async with asc.Scheduler(devices[::-1] if turned else devices) as s:
        y = (await s.put(np.ones(3), device="cpu")) + 1
        assert not y.done()
        assert (await y).tolist() == [2, 2, 2]
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        assert ((await s.put(np.ones(3))) + 1).done()


async def test_which_scheduler() -> None:
    with pytest.raises(asc.SchedulerClosed, match="no scheduler is open"):
        asc.zeros(3)
    async with asc.Scheduler("cpu") as s:
        assert asc.zeros(3)._value.account.runtime is s._runtime
        async with asc.Scheduler("cpu") as inner:
            assert asc.zeros(3)._value.account.runtime is inner._runtime
            assert asc.zeros(3, scheduler=s)._value.account.runtime is s._runtime
        assert asc.zeros(3)._value.account.runtime is s._runtime


def test_run_returns_what_the_coroutine_returns() -> None:
    async def main(value: int = 3) -> int:
        async with asc.Scheduler("cpu") as s:
            return int(await s.call(partial(int, value)))

    assert asc.run(main) == asc.run(main(3)) == 3


async def test_tasks_that_name_a_resource_run_one_after_the_other() -> None:
    gate, order = threading.Event(), []

    def first() -> None:
        assert gate.wait(60)
        order.append("first")

    async with asc.Scheduler("cpu", streams=2) as s:
        s.submit_nowait(first, resource="a generator")
        s.submit_nowait(lambda: order.append("second"), resource="a generator")
        await s.call(lambda: order.append("other"))  # on the other stream, where "second" would have been by now
        gate.set()
    assert order == ["other", "first", "second"]
