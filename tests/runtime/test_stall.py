"""Never stuck, never falsely accused."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextvars import Context
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import runtime_of
from tests.waiting import cancelled, held, outside, turns, until

BLOCK = np.ones((100, 100))  # 80,000 bytes


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is stuck is looked at soon."""
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 0.03)
    monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 0.05)


async def test_two_coroutines_that_hold_and_want_more_fail() -> None:
    errors = []

    async def greedy(s: asc.Scheduler) -> None:
        held = []
        try:
            while True:
                held.append(await s.put(BLOCK))
        except asc.MemoryDeadlockError as error:
            errors.append(str(error))

    async with asc.Scheduler("cpu", max_bytes=5 * BLOCK.nbytes) as s:
        await asyncio.gather(greedy(s), greedy(s))
    first = errors[0]
    assert "greedy" in first
    assert "'held'" in first
    assert "test_stall.py" in first
    assert f"{BLOCK.nbytes:,} bytes created at" in first
    assert f"raise the limit to {7 * BLOCK.nbytes:,} bytes" in first  # each wants one more


async def test_main_that_holds_and_gathers_greedy_children_is_part_of_the_deadlock() -> None:
    async def greedy(s: asc.Scheduler, x: asc.Tensor) -> None:
        held = [x]
        while True:
            held.append(x + len(held))
            await held[-1]

    async with asc.Scheduler("cpu", max_bytes=4 * BLOCK.nbytes) as s:
        x = await s.put(BLOCK)
        tasks = [asyncio.create_task(greedy(s, x)) for _ in range(2)]
        try:
            await asyncio.gather(*tasks)
        except asc.MemoryDeadlockError as error:
            text = str(error)
            assert (error.needed, error.limit) == (6 * BLOCK.nbytes, 4 * BLOCK.nbytes)
            assert error.suggested_limit == 8 * BLOCK.nbytes
        for task in tasks:  # gather leaves the other one running
            task.cancel()
        tasks.clear()
    assert "greedy" in text


async def test_a_task_group_of_greedy_children() -> None:
    async def greedy(s: asc.Scheduler) -> None:
        held = []
        while True:
            held.append(await s.put(BLOCK))

    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes) as s:
        kept = await s.put(BLOCK)
        told = False
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(greedy(s))
                group.create_task(greedy(s))
        except* asc.MemoryDeadlockError:
            told = True
        assert told
        assert (await kept).sum() == BLOCK.sum()
        assert await (await s.put(BLOCK)).sum().item() == BLOCK.sum()  # the scheduler goes on


async def test_pending_tasks_that_hold_everything_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 3600.0)  # so not by the look for holders
    async with asc.Scheduler("cpu", max_bytes=4 * BLOCK.nbytes, max_ops=1) as s:
        a, b, c = await s.put(BLOCK), await s.put(BLOCK), await s.put(BLOCK)
        wide = [asc.concat([a, b]), asc.concat([b, c])]
        del a, b, c
        with pytest.raises(asc.MemoryDeadlockError, match="pending tasks hold all of it"):
            await wide[0]
        assert (await wide[1]).shape == (200, 100)


@pytest.mark.parametrize("scopes", [1, 2])
async def test_a_loader_and_a_trainer_share_the_limit(scopes: int) -> None:
    """The loader's head must not bar the trainer, whose work frees its bytes."""
    queue: asyncio.Queue[asc.Tensor | None] = asyncio.Queue()

    async def load(s: asc.Scheduler | asc.Scope) -> None:
        for _ in range(20):
            queue.put_nowait(await s.put(BLOCK))
        queue.put_nowait(None)

    async def train(s: asc.Scheduler | asc.Scope) -> float:
        total = 0.0
        while (x := await queue.get()) is not None:
            y = x.sum()
            del x
            total += await y.item()
        return total

    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes + 1000) as s:
        if scopes == 1:
            _, total = await asyncio.gather(load(s), train(s))
        else:

            async def in_scope(work) -> object:  # type: ignore[no-untyped-def]
                async with s.scope() as scope:
                    return await work(scope)

            _, total = await asyncio.gather(in_scope(load), in_scope(train))
    assert total == 20 * BLOCK.size


async def test_a_tensor_shared_by_two_scopes_at_one_slot() -> None:
    async with asc.Scheduler("cpu", max_ops=1, streams=1) as s:
        x = await s.put(BLOCK)

        async def work(name: str) -> float:
            async with s.scope(name=name):
                y = x
                for _ in range(50):
                    y = y + x
                return float(await y.sum().item())

        results = await asyncio.gather(work("a"), work("b"))
    assert results == [51 * BLOCK.sum()] * 2


async def test_a_large_head_beside_a_stream_of_small_ones_is_admitted() -> None:
    small = np.ones(5_000)
    done = asyncio.Event()

    async with asc.Scheduler("cpu", max_bytes=20 * small.nbytes, max_ops=16) as s:

        async def drip() -> int:
            count = 0
            async with s.scope(name="small"):
                tensors = [await s.put(small) for _ in range(8)]
                while not done.is_set():
                    tensors = [t + 1 for t in tensors]
                    await tensors[0]
                    count += 1
            return count

        async def large() -> None:
            async with s.scope(name="large"):
                x = await s.put(np.ones(5_000 * 8))
                await x.sum().item()
            done.set()

        count, _ = await asyncio.gather(drip(), large())
    assert count < 10_000


async def test_stall_timeout_names_the_module_that_holds() -> None:
    async with asc.Scheduler("cpu", max_bytes=BLOCK.nbytes, stall_timeout=0.4) as s:
        box = [await s.put(BLOCK)]
        globals()["_held_outside"] = box
        task = asyncio.create_task(ticks())
        with pytest.raises(asc.SchedulerStalled, match=r"stall_timeout=0\.4") as told:
            await s.put(BLOCK)
        assert "module tests.runtime.test_stall (variable '_held_outside')" in str(told.value)
        await cancelled(task)
        globals().pop("_held_outside")
        box.clear()
        await s.put(BLOCK)


async def test_a_stall_that_lasts_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOG", 0.03)
    async with asc.Scheduler("cpu", max_bytes=2 * BLOCK.nbytes) as s:
        with caplog.at_level(logging.WARNING, "asyncsched"):
            async with s.scope(name="request", reserve=BLOCK.nbytes):
                task = asyncio.get_running_loop().create_task(reserves(s), context=Context())
                await until(lambda: caplog.records)
                await turns(1000)
        (told,) = [record.getMessage() for record in caplog.records]  # the next is due after half a minute
        await task
    assert re.fullmatch(
        r"for \S+ s scope 'another' \(submitted at \S+test_stall.py:\d+ in reserves\) needs 160,000 bytes, and 80,000"
        r" of the 160,000 allowed are held; nothing in flight will free any \(80,000 bytes reserved by scope"
        r" 'request'\); but callbacks of the event loop are due. `s.explain\(\)` searches for who holds them",
        told,
    )


async def reserves(s: asc.Scheduler) -> None:
    async with s.scope(name="another", reserve=2 * BLOCK.nbytes):
        pass


async def test_a_failing_log_keeps_no_waiter_from_its_error(failing_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOG", 0.03)
    async with asc.Scheduler("cpu", max_bytes=BLOCK.nbytes, stall_timeout=0.3) as s:  # which is after the first log
        globals()["_held_outside"] = [await s.put(BLOCK)]
        task = asyncio.create_task(ticks())
        with pytest.raises(asc.SchedulerStalled, match="stall_timeout=0.3"):
            await s.put(BLOCK)
        await cancelled(task)
        globals().pop("_held_outside")
    assert "80,000 bytes in results" in failing_log.texts[0]


async def ticks() -> None:
    while True:
        await asyncio.sleep(0.01)


async def test_an_awaited_array_kept_by_the_waiter_counts() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * BLOCK.nbytes) as s:
        arrays = []
        for _ in range(2):
            x = await s.put(BLOCK)
            arrays.append(await x)
            del x
        with pytest.raises(asc.MemoryDeadlockError, match="arrays"):
            await s.put(BLOCK)
        del arrays[:]
        await s.put(BLOCK)


async def test_a_task_that_reads_a_tensor_and_its_view_is_seen_to_hold_both() -> None:
    n = 100 * 100 * 8
    async with asc.Scheduler("cpu", max_bytes=4 * n - 1) as s:
        x = await s.put(np.ones((100, 100)))
        held = await s.put(np.ones((100, 100)))
        y = x @ x.mT
        del x
        with pytest.raises(asc.MemoryDeadlockError, match="variable 'held'"):
            await y
        del held, y


async def test_a_reclaimer_whose_bytes_others_take_leaves_nobody_in_silence() -> None:
    """What comes back goes to an equal claim in the same dispatch, and the stall looks the same as before."""
    size = BLOCK.nbytes
    async with asc.Scheduler("cpu", max_bytes=4 * size) as s:
        ahead = [await s.put(BLOCK) for _ in range(4)]

        def reclaim() -> bool:
            return len(ahead) > 1 and ahead.pop() is not None

        runtime_of(s).reclaimers.add(reclaim)

        async def other() -> None:
            async with s.scope(reserve=size):
                await asyncio.wait([wants])

        wants = asyncio.create_task(s.put(np.ones((300, 100))))
        found = await asyncio.gather(wants, *[other() for _ in range(3)], return_exceptions=True)
        ahead.clear()
    assert asc.MemoryDeadlockError in map(type, found)


async def test_who_waited_when_a_deadlock_was_told_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that fails lets go of a block, and the next lacks more. A second time, `PROBABLE` seconds never pass."""
    monkeypatch.setattr("asyncsched.runtime.stall.AGAIN", 0.05)
    told = []

    async def wants(s: asc.Scheduler) -> None:
        kept = await s.put(BLOCK)
        await until(lambda: s.statistics().bytes_retained == 4 * BLOCK.nbytes or told)
        try:
            await s.put(np.ones((300, 100)))
        except asc.MemoryDeadlockError as error:
            monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 3600.0)
            told.append(str(error))
        del kept

    async with asc.Scheduler("cpu", max_bytes=4 * BLOCK.nbytes) as s:
        ticking = asyncio.create_task(ticks())
        await asyncio.gather(*[wants(s) for _ in range(4)])
        await cancelled(ticking)
    assert len(told) == 3


async def test_who_came_after_a_deadlock_was_told_has_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.runtime.stall.AGAIN", 0.05)

    async def wants_again(s: asc.Scheduler) -> None:
        kept = [await s.put(BLOCK), await s.put(BLOCK)]
        await until(lambda: s.statistics().bytes_retained == 4 * BLOCK.nbytes)
        with pytest.raises(asc.MemoryDeadlockError):
            await s.put(BLOCK)
        monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 3600.0)
        kept.pop()
        with pytest.raises(asc.SchedulerStalled):
            await s.put(np.ones((200, 100)))

    async def gets_one_more(s: asc.Scheduler) -> None:
        kept = [await s.put(BLOCK), await s.put(BLOCK)]
        await until(lambda: s.statistics().tasks_pending == 1)
        kept.append(await s.put(BLOCK))
        await asyncio.Event().wait()

    async with asc.Scheduler("cpu", max_bytes=4 * BLOCK.nbytes, stall_timeout=1.0) as s:
        ticking, other = asyncio.create_task(ticks()), asyncio.create_task(gets_one_more(s))
        await wants_again(s)
        await cancelled(other)
        await cancelled(ticking)


async def test_each_account_has_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """While tasks of another account come and go, `stall_timeout` counts on."""
    monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 3600.0)
    async with asc.Scheduler("cpu", max_bytes=8 * BLOCK.nbytes, stall_timeout=0.3) as s:

        async def busy() -> None:
            async with s.scope(reserve=2 * BLOCK.nbytes) as scope:
                while True:
                    tensors = [await scope.put(BLOCK) for _ in range(2)]
                    asyncio.get_running_loop().call_later(0.02, tensors.clear)
                    await scope.put(BLOCK)

        other = asyncio.create_task(busy())
        async with s.scope(reserve=2 * BLOCK.nbytes) as scope:
            kept = [await scope.put(BLOCK) for _ in range(2)]
            with pytest.raises(asc.SchedulerStalled):
                await scope.put(BLOCK)
            kept.clear()
        await cancelled(other)


async def test_a_look_comes_between_an_end_that_was_taken_in_and_what_follows_from_it(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    """By then another account has nothing in flight, of which the watch is not told yet."""
    monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 100)
    for share in ("IN_VAIN", "RARE"):
        monkeypatch.setattr(f"asyncsched.runtime.stall.{share}", 1e-9)  # so nothing is tried twice
    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes) as s:
        watch: Any = runtime_of(s).stall_watch.__self__

        async def fills(scope: asc.Scheduler | asc.Scope) -> None:
            _held = await scope.put(BLOCK)
            await scope.put(BLOCK)

        async with s.scope(reserve=BLOCK.nbytes) as scope:
            inside = asyncio.create_task(fills(scope))
            await until(lambda: watch._may_try)
            with outside():
                running = await s.submit(held, gate, BLOCK, shape=BLOCK.shape, dtype=BLOCK.dtype)
                around = asyncio.create_task(fills(s), context=Context())
            await until(lambda: s.statistics().tasks_pending == 2)
            gate.set()
            while s.statistics().tasks_in_flight:
                pass
            watch._later.cancel()
            watch._look()
            await running
            await cancelled(inside)
            around.cancel()  # if there is no room for it by now
            await asyncio.wait([around])
