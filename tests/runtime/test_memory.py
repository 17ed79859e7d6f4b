"""Bytes: who is charged for what, until when, and what is recycled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched._core.ownership import sole
from tests.ledger import address_of as at
from tests.ledger import stands_still, used
from tests.waiting import held, settled, turns, until

BLOCK = np.ones((200, 200))  # 320,000 bytes: from the pool
NB = BLOCK.nbytes


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
async def test_a_drop_in_any_thread_wakes_a_task_that_waits_for_its_bytes(arrays: bool) -> None:
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
        await until(lambda: used(s) == 0)  # without the GIL a stream's thread may be the last to let go of something


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
        stands_still(s)
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

    def switching(value: Any, entries: int) -> bool:
        if when == "before it counts":
            give_away()
        found = sole(value, entries)
        give_away()
        return found

    monkeypatch.setattr("asyncsched.devices.execution.sole", switching)
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
