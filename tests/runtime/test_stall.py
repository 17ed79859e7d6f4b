"""Never stuck, never falsely accused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime import deadlock, holders
from tests.waiting import until

BLOCK = np.ones((100, 100))  # 80,000 bytes


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is stuck is looked at soon."""
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 0.03)


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


async def test_a_producer_behind_a_slow_consumer_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: asyncio.Queue[asc.Tensor] = asyncio.Queue()
    looks: list[Any] = []

    def look(*args: Any) -> Any:
        findings = deadlock.investigate(*args)
        looks.extend(findings.values())
        return findings

    monkeypatch.setattr("asyncsched.runtime.stall.investigate", look)

    async def producer(s: asc.Scheduler) -> None:
        for _ in range(8):
            await queue.put(await s.put(BLOCK))

    async def consumer() -> float:
        total = 0.0
        for i in range(8):
            if i < 2:  # outside the scheduler, for longer than until somebody looks
                seen = len(looks)
                await until(lambda: len(looks) > seen)  # noqa: B023 (it ends here)
            item = await queue.get()
            total += await item.sum().item()
            del item
        return total

    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes + 1000) as s:
        _, total = await asyncio.gather(producer(s), consumer())
    assert total == 8 * BLOCK.sum()


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


async def test_stall_timeout_names_the_holder_outside() -> None:
    async with asc.Scheduler("cpu", max_bytes=BLOCK.nbytes, stall_timeout=0.4) as s:
        box = [await s.put(BLOCK)]
        globals()["_held_outside"] = box
        with pytest.raises(asc.SchedulerStalled, match=r"stall_timeout=0\.4"):
            await s.put(BLOCK)
        globals().pop("_held_outside")
        box.clear()
        await s.put(BLOCK)


async def test_a_stall_that_lasts_is_logged_with_its_holders(caplog: pytest.LogCaptureFixture) -> None:
    async with asc.Scheduler("cpu", max_bytes=BLOCK.nbytes) as s:
        kept = [await s.put(BLOCK)]
        globals()["_held_outside"] = kept
        with caplog.at_level(logging.WARNING, "asyncsched"):
            waiting = asyncio.create_task(s.put(BLOCK))
            await until(lambda: caplog.records)
        globals().pop("_held_outside")
        kept.clear()
        await waiting
    assert "held outside" in caplog.text


async def test_a_failing_log_keeps_no_waiter_from_its_error(failing_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOG", 0.03)
    async with asc.Scheduler("cpu", max_bytes=BLOCK.nbytes, stall_timeout=0.3) as s:  # which is after the first log
        globals()["_held_outside"] = [await s.put(BLOCK)]
        with pytest.raises(asc.SchedulerStalled, match="stall_timeout=0.3"):
            await s.put(BLOCK)
        globals().pop("_held_outside")
    assert "held outside" in failing_log.texts[0]


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


async def test_the_walk_up_from_the_tape_skips_objects_that_the_whole_heap_shares(monkeypatch) -> None:
    """A leaf has no parents, in the same empty tuple as everything else that has none of something."""
    monkeypatch.setattr(holders, "MOST_OBJECTS", 1_000)
    async with asc.Scheduler("cpu", max_bytes=2 * BLOCK.nbytes - 1, stall_timeout=1) as s:
        held = await s.put(BLOCK)
        held.requires_grad = True
        with pytest.raises(asc.MemoryDeadlockError, match="variable 'held'"):
            await s.put(BLOCK)
        del held
        await s.put(BLOCK)
