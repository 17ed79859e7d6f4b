"""Bytes: who is charged for what, until when, and what is recycled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

import asyncsched as asc
from asyncsched._core import refcounts
from tests.ledger import used
from tests.waiting import fail, held, no_collector, settled, turns, until

BLOCK = np.ones((200, 200))  # 320,000 bytes: from the pool
NB = BLOCK.nbytes


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def at(t: asc.Tensor) -> int:
    """Where a finished tensor's elements are, without letting the array out."""
    return address(t._value.array)


# -- escaped arrays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 40_000])
@pytest.mark.parametrize("how", ["await", "gather", "result", "argument", "thread", "dlpack"])
async def test_an_escaped_array_is_intact_and_charged_until_it_and_its_views_die(
    s: asc.Scheduler, how: str, size: int
) -> None:
    x = await s.put(np.arange(float(size))) + 1
    kept: list[Any] = []
    if how == "await":
        kept.append(await x)
    elif how == "gather":
        kept += await asc.gather(x)
    elif how == "result":
        await x
        kept.append(x.result())
    elif how == "argument":
        await s.call(kept.append, x)
    elif how == "thread":
        await settled(x)
        kept.append(await asyncio.to_thread(x._read, "", ""))
    else:
        await settled(x)
        kept.append(await asyncio.to_thread(np.from_dlpack, x))
    expected = np.arange(float(size)) + 1
    del x
    await s.barrier()
    assert used(s) == expected.nbytes
    view = kept[0][3:5][::-1]
    again = memoryview(kept[0])
    kept.clear()
    await s.barrier()
    assert used(s) == expected.nbytes
    for _ in range(5):  # whoever takes the memory by mistake writes over it
        await (await s.put(np.zeros(size)) + 7)
    assert view.tolist() == [5, 4]
    assert np.asarray(again).tobytes() == expected.tobytes()
    again.release()
    del again
    assert used(s) == expected.nbytes
    del view
    await s.barrier()
    assert used(s) == 0
    assert not s.devices[0].memory.escapes


async def test_a_view_that_escapes_keeps_its_whole_base_charged(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    row = await x[0]
    del x
    assert used(s) == NB
    await (await s.put(BLOCK * 5) + 1)
    assert row.sum() == 200
    del row
    assert used(s) == 0


async def test_results_of_callables_are_charged_by_what_they_hold(s: asc.Scheduler) -> None:
    mine = BLOCK.copy()
    x = await s.put(BLOCK)
    cases: list[tuple[Callable[[Any], Any], int]] = [
        (lambda a: a, 0),
        (lambda a: a[::2].T, 0),
        (lambda a: [a, a[0], {"k": (a,)}], 0),
        (lambda a: a + 1, NB),
        (lambda a: (a + 1)[0], NB),  # its owner's bytes
        (lambda a: (mine, mine[0]), NB),
        (lambda a: 5, 0),
        (lambda a: None, 0),
        (lambda a: "text", 0),
    ]
    for body, more in cases:
        task = await s.submit(body, x)
        result = await task
        assert used(s) == NB + more
        if result is not None and body is cases[0][0]:
            assert np.shares_memory(result, await x)
        del task
        await s.barrier()
        del result
        await s.barrier()
        if more and body is cases[5][0]:  # an array that lives on elsewhere stays charged: nobody can tell
            assert used(s) == 2 * NB
            mine = BLOCK.copy()
        assert used(s) == NB
    del x
    await s.barrier()
    assert used(s) == 0


async def test_an_array_that_a_callable_returned_stays_its_owners(s: asc.Scheduler) -> None:
    mine, also = np.zeros(6), np.zeros(6)
    task = await s.submit(lambda: mine)
    declared = await s.submit(lambda: also, shape=(6,), dtype=float)
    given: list[Any] = []
    for handle in (task, declared):
        await s.call(given.append, handle)
    assert await task is mine
    seen = await declared
    for array in (*given, seen):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    mine[0] = also[0] = 7
    assert [array[0] for array in (*given, seen)] == [7, 7, 7]


@pytest.mark.parametrize("large", [True, False])
async def test_an_awaited_array_is_found_as_a_holder_also_when_a_task_was_given_it_since(large: bool) -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB if large else 160) as s:
        block = BLOCK if large else np.ones(10)
        x = await s.put(block)
        array = await x
        assert await s.call(np.sum, x, nbytes=0) == block.sum()
        del x
        other = await s.put(block)
        held_by = "in an awaited array, created at .*: held by coroutine .*'array'"
        with pytest.raises(asc.MemoryDeadlockError, match=held_by):
            await s.put(block)
        del other, array


@pytest.mark.parametrize("size", [6, 40_000])
async def test_what_a_holder_does_to_an_array_changes_no_other_and_not_the_tensor(s: asc.Scheduler, size: int) -> None:
    x = await s.put(np.arange(float(size))) + 1
    first, second = await x, x.result()
    kept: list[Any] = []
    await s.call(kept.append, x)
    for array in (first, *kept):
        array.flags.writeable = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5: it is still possible
            array.shape = (2, size // 2)
    assert not (await x).flags.writeable
    assert not second.flags.writeable
    assert first.flags.writeable
    assert kept[0].flags.writeable
    assert x.shape == second.shape == (await x).shape == (await (x + 1)).shape == (size,)


async def test_a_result_that_is_the_input_keeps_it_alone(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    task = await s.submit(lambda a: a[5], x)
    row = await task
    del x, task
    assert used(s) == NB
    assert row.sum() == 200
    del row
    assert used(s) == 0


async def test_a_declared_cost_without_an_array_is_charged_until_the_handle_drops(s: asc.Scheduler) -> None:
    task = await s.submit(object, nbytes=12_345)
    await task
    assert used(s) == 12_345
    del task
    assert used(s) == 0


async def test_workspace_is_given_back_at_the_end_and_the_rest_stays_with_the_handle(
    s: asc.Scheduler, gate: threading.Event
) -> None:
    x = await s.put(BLOCK)
    cases: list[tuple[Any, dict[str, Any], int, int]] = [  # what it returns; options; charged while it runs, and after
        (object(), {"nbytes": 1000, "workspace": 900}, 1000, 100),
        (object(), {"nbytes": "1 KiB", "workspace": "1 KiB"}, 1024, 0),
        (object(), {"workspace": 900}, NB + 900, 0),
        (BLOCK.copy(), {"nbytes": 2 * NB, "workspace": 10}, 2 * NB, NB),
        (BLOCK.copy(), {"workspace": 10, "shape": BLOCK.shape, "dtype": float}, NB + 10, NB),
        (BLOCK.copy(), {"workspace": 10, "nbytes": 99, "shape": BLOCK.shape, "dtype": float}, NB + 10, NB),
        (3.5, {"nbytes": 1000}, 1000, 0),
        (np.float32(3.5), {"nbytes": 1000}, 1000, 0),
        ("text", {"nbytes": 1000}, 1000, 0),
        (None, {"nbytes": 1000}, 1000, 0),
        ([3.5], {"nbytes": 1000}, 1000, 1000),
    ]
    for i in range(len(cases)):
        result, options, running, after = cases[i]
        cases[i] = (None, {}, 0, 0)
        gate.clear()
        task = s.submit_nowait(lambda a, made=result: held(gate, made), x, **options)
        assert used(s) == NB + running
        gate.set()
        await settled(task)
        assert used(s) == NB + after, options
        del task, result
        await s.barrier()
        assert used(s) == NB
    with pytest.raises(ValueError, match="workspace='2 KiB' is more than nbytes=1000"):
        s.submit_nowait(int, nbytes=1000, workspace="2 KiB")
    with pytest.raises(ValueError, match="workspace must be positive"):
        s.submit_nowait(int, workspace=-1)


async def test_results_that_nobody_estimated_stop_admission_above_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with asc.Scheduler("cpu", max_ops=2, max_bytes=2 * NB + 10) as s:
        tasks = [s.submit_nowait(BLOCK.copy) for _ in range(8)]
        await until(lambda: used(s) > 2 * NB and not s.statistics().tasks_in_flight)
        await turns()
        assert used(s) <= 4 * NB  # two were in flight when the third passed the limit
        assert s.statistics().tasks_pending >= 4
        told = [record.getMessage() for record in caplog.records if "was charged" in record.getMessage()]
        (text,) = told
        assert f"ndarray.copy, submitted at {__file__}:" in text
        assert (
            f"was charged 0 bytes and made {NB:,}: {3 * NB:,} bytes are tracked, and the limit is {2 * NB + 10:,}"
            in text
        )
        await s.submit_nowait(int, nbytes=0)  # somebody said that it costs nothing
        while tasks:
            assert (await tasks.pop(0)).nbytes == NB
        assert s.statistics().peak_bytes <= 4 * NB
        assert len([record for record in caplog.records if "was charged" in record.getMessage()]) == 1


@pytest.mark.parametrize("estimate", [0, 1, NB // 2, NB, 10 * NB])
async def test_wrong_estimates_are_corrected(s: asc.Scheduler, estimate: int) -> None:
    task = await s.submit(BLOCK.copy, nbytes=estimate)
    await task
    assert used(s) == NB
    del task
    await s.barrier()
    assert used(s) == 0
    assert s.statistics().peak_bytes == max(NB, estimate)


# -- failing and dropping -------------------------------------------------------------------------------------------


async def test_a_failing_task_gives_its_bytes_back() -> None:
    def fail(a: Any) -> None:
        raise LookupError

    async with asc.Scheduler("cpu", max_bytes=3 * NB) as s:
        for _ in range(10):
            x = await s.put(BLOCK)
            task = await s.submit(fail, x)
            y = await s.submit(fail, x, shape=(200, 200), dtype=float) + 1
            for handle in (task, y):
                with pytest.raises(LookupError):
                    await handle
            del x, task, y, handle
            await s.barrier()
            assert used(s) == 0


@pytest.mark.parametrize("arrays", [False, True], ids=["handles", "arrays"])
async def test_what_is_dropped_in_any_thread_wakes_who_waits_for_its_bytes(arrays: bool) -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB) as s:
        box: list[Any] = [await s.put(BLOCK), await s.put(BLOCK)]
        if arrays:
            box = [await box.pop(), await box.pop()]
        waiting = asyncio.create_task(s.put(BLOCK))
        await turns()
        assert not waiting.done()
        await asyncio.to_thread(box.pop)
        await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("apply", [asc.exp, asc.mean, asc.nn.functional.softmax])
async def test_a_tiny_row_runs_at_once_only_within_the_limit(apply: Any, missing: int) -> None:
    small = np.ones(8, np.float32)
    async with asc.Scheduler("cpu") as free:
        before = apply(await free.put(small))
        needed = free.statistics().peak_bytes
        assert before.done()
    async with asc.Scheduler("cpu", max_bytes=needed + 64 - missing) as s:
        x, other = await s.put(small), await s.put(np.ones(64, np.uint8))
        y = apply(x)
        assert y.done() == (not missing)
        assert s.statistics().tasks_pending == missing
        del other
        assert (await y).tobytes() == (await before).tobytes()
        assert s.statistics().peak_bytes <= needed + 64 - missing


async def test_the_limit_holds_at_the_peak() -> None:
    limit = 5 * NB
    async with asc.Scheduler("cpu", max_bytes=limit, streams=2) as s:

        async def work(i: int) -> float:
            async with s.scope(reserve=2 * NB + 8):
                x = await s.put(BLOCK)
                y = x * i
                del x
                return float(await y.sum().item())

        for _ in range(3):
            totals = await asyncio.gather(*[work(i) for i in range(20)])
            assert totals == [i * BLOCK.sum() for i in range(20)]
        assert NB < s.statistics().peak_bytes <= limit
        assert used(s) == 0


# -- recycling ------------------------------------------------------------------------------------------------------


async def test_buffers_are_recycled(s: asc.Scheduler) -> None:
    places = set()
    for i in range(10):
        x = await settled(await s.put(BLOCK * i))
        places.add(at(x))
        del x
    assert len(places) == 1


@pytest.mark.parametrize("holder", ["nobody", "handle", "view", "array", "task", "body"])
async def test_in_place_only_when_nobody_else_holds_it(holder: str) -> None:
    gate, kept = threading.Event(), []
    async with asc.Scheduler("cpu", streams=2 if holder == "task" else 1) as s:
        x = await settled(await s.put(BLOCK))
        before = at(x)
        if holder == "handle":
            kept.append(x)
        elif holder == "view":
            kept.append(x[0])
            await settled(kept[0])
        elif holder == "array":
            kept.append(await x)
        elif holder == "task":
            kept.append(s.submit_nowait(lambda a: held(gate, a[0, 0]), x))
        elif holder == "body":
            await s.call(lambda a: kept.append(a), x)
        gate_in_front = threading.Event()
        s.submit_nowait(held, gate_in_front)
        if holder == "task":
            s.submit_nowait(int)  # behind the task, so that what comes next is behind the gate
        y = x + 1
        del x
        gate_in_front.set()
        await settled(y)
        assert (at(y) == before) == (holder == "nobody")
        gate.set()
        assert (await y)[0, 0] == 2
        if holder != "nobody":
            first = kept[0] if isinstance(kept[0], np.ndarray) else np.asarray(await kept[0])
            assert first.ravel()[0] == 1


@pytest.mark.parametrize("when", ["before it counts", "after it counted"])
async def test_an_array_given_away_while_a_stream_looks_for_a_buffer_is_left_alone(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, gate: threading.Event, when: str
) -> None:
    x = await settled(await s.put(BLOCK))
    before, box, kept = at(x), [x], []

    def give_away() -> None:  # as the loop's thread does: it awaits, and drops its handle
        if box:
            kept.append(box[0].result())
            box.clear()

    def switching(holder: Any, index: int) -> int:
        if when == "before it counts":
            give_away()
        found = refcounts.references(holder, index)
        give_away()
        return found

    monkeypatch.setattr("asyncsched.devices.execution.references", switching)
    s.submit_nowait(held, gate)
    y = x + 1
    del x
    gate.set()
    await settled(y)
    assert not box
    assert at(y) != before
    assert (await y)[0, 0] == 2
    assert kept[0][0, 0] == 1


async def test_assignment_to_a_part_in_place_when_nobody_else_holds_it(s: asc.Scheduler) -> None:
    x = await settled(await s.put(BLOCK))
    before = at(x)
    x[0] = 5
    await settled(x)
    assert at(x) == before
    part = x[1]
    x[1] = 6
    await settled(x)
    assert at(x) != before
    assert (await part).tolist() == [1.0] * 200
    assert (await x)[:3, 0].tolist() == [5, 6, 1]


async def test_where_counts_cannot_be_trusted_nothing_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Python whose counts of references are not understood everything counts as held by somebody."""
    monkeypatch.setattr(refcounts, "_asking", -(1 << 30))
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await settled(await s.put(BLOCK))
        before, gate = at(x), threading.Event()
        s.submit_nowait(held, gate)
        y = x + 1
        del x
        gate.set()
        await settled(y)
        assert at(y) != before
        array = await (await s.put(np.arange(3.0)))  # small enough to be looked at when its handle goes
        assert used(s) == NB + array.nbytes
        (escape,) = s.devices[0].memory.escapes.values()
        assert escape.visible() is not None
        del array, y
        assert used(s) == 0


# -- nothing grows --------------------------------------------------------------------------------------------------


async def iteration(s: asc.Scheduler, i: int) -> None:
    async with s.scope(reserve=8 * NB if i % 2 else None):
        x = await s.put(BLOCK)
        y = (x @ x + i).sum(axis=0)
        z = x[1:] * 2
        assert (await y)[0] == 200 * (200 + i)
        assert await s.call(np.shape, z) == (199, 200)
        x[0] = 3
        await x.numpy()
        await asc.gather(x, z)


def resident() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.timeout(120)  # nine thousand turns of loop and threads, each of which may wait for a busy machine
async def test_a_thousand_iterations_leave_nothing() -> None:
    async with asc.Scheduler("cpu", max_bytes="16 MiB") as s:
        for i in range(100):
            await iteration(s, i)
        with_pool = await asyncio.to_thread(resident)
        for i in range(1000):
            await iteration(s, i)
        assert await asyncio.to_thread(resident) - with_pool < 12 * 2**20
        assert used(s) == 0
        assert not s._runtime.parked
        assert not s._runtime.engine.root.children
        now = s.statistics()
        assert now.bytes_retained == now.bytes_reserved == now.bytes_in_flight == 0
        assert not s.devices[0].memory.escapes


async def test_no_reference_cycles(s: asc.Scheduler) -> None:
    window = s.window(2)
    with no_collector():
        for i in range(5):
            await iteration(s, i)
        gc.collect()
        for i in range(50):
            async with window:
                await iteration(s, i)
            t = s.submit_nowait(int)
            t.cancel()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await s.put(BLOCK)
            await s.barrier()
        del t
        await s.barrier()
        assert used(s) == 0
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [g for g in gc.garbage if type(g).__module__.startswith("asyncsched")]
        assert not ours, {type(g).__qualname__ for g in ours}


async def test_a_failure_raised_often_does_not_grow(s: asc.Scheduler) -> None:
    def depth(error: BaseException) -> int:
        count, trace = 0, error.__traceback__
        while trace is not None:
            count, trace = count + 1, trace.tb_next
        return count

    task = s.submit_nowait(fail)
    y = s.submit_nowait(int, task)
    seen = set()
    for handle in (task, y) * 20:
        try:
            await handle
        except LookupError as error:
            seen.add((handle is y, len(error.__notes__), depth(error)))
    assert len(seen) == 2
    assert {count for _, count, _ in seen} == {1, 2}


async def test_a_failed_body_pins_nothing(s: asc.Scheduler) -> None:
    def fail(a: Any) -> None:
        mine = a * 2
        raise LookupError(mine.shape)

    x = await s.put(BLOCK)
    task = s.submit_nowait(fail, x)
    del x
    await settled(task)
    assert used(s) == 0
    with pytest.raises(LookupError):
        await task


def broken(*_: Any) -> Any:
    raise LookupError("broken on purpose")


async def _too_much(s: asc.Scheduler) -> None:
    await s.put(np.ones(NB))


FAILING: dict[str, Callable[[asc.Scheduler, asc.Tensor], Any]] = {
    "put": lambda s, x: _too_much(s),
    "reserve": lambda s, x: s.scope(reserve=8 * NB).__aenter__(),
    "submit": lambda s, x: _result(s.submit(broken, x)),
    "call": lambda s, x: s.call(broken, x),
    "numpy": lambda s, x: s.submit_nowait(broken, x, shape=(), dtype=float).numpy(),
    "item": lambda s, x: s.submit_nowait(broken, x, shape=(), dtype=float).item(),
    "gather": lambda s, x: _result(_gathered(s, x)),
    "barrier": lambda s, x: (s.submit_nowait(broken, x), s.barrier())[1],
}


async def _result(handle: Any) -> None:
    await (await handle)


async def _gathered(s: asc.Scheduler, x: asc.Tensor) -> Any:
    return asc.gather(x, s.submit_nowait(broken, x), x + 1)


@pytest.mark.parametrize("what", FAILING)
async def test_what_failed_and_was_told_holds_nothing(what: str) -> None:
    """An exception holds the frames it passed, and their tensors: these are free without the collector."""

    async def attempt() -> None:
        large = x + 1
        await large.sum().item()
        await FAILING[what](s, x)

    async with asc.Scheduler("cpu", max_bytes=12 * NB) as s:
        x = await s.put(BLOCK)
        other = [await s.put(BLOCK) for _ in range(4)]  # held by this coroutine, which waits: a deadlock
        before = used(s)
        with no_collector():
            with contextlib.suppress(asc.AsyncSchedError, LookupError, ExceptionGroup):
                await attempt()
                pytest.fail(f"{what} did not fail")
            await s.barrier()
            # Not quite at once: the thread that ran it tells of the end first, and lets go of the task second.
            await until(lambda: used(s) == before)
        del other
