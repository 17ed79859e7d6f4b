"""Windows: how far a loop may run ahead."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import engine_of
from tests.waiting import fail, held, turns, until


@pytest.mark.parametrize("depth", [1, 2, 5])
async def test_an_iteration_begins_when_the_one_depth_before_is_finished(depth: int) -> None:
    gates = [threading.Event() for _ in range(12)]
    begun: list[int] = []
    async with asc.Scheduler("cpu", streams=2) as s:
        window = s.window(depth)

        async def loop() -> None:
            for i, gate in enumerate(gates):
                async with window:
                    begun.append(i)
                    s.submit_nowait(held, gate)
                    s.submit_nowait(bool, s.submit_nowait(held, gate))

        task = asyncio.create_task(loop())
        for i, gate in enumerate(gates):
            while len(begun) < min(len(gates), i + depth) and not task.done():
                await asyncio.sleep(0)
            await turns()
            assert len(begun) == min(len(gates), i + depth)
            assert window.statistics().in_flight <= depth + 1
            gate.set()
        await task
        found = window.statistics()
        assert (found.depth, found.iterations) == (depth, len(gates))
        assert found.wait_seconds > 0


async def test_failures_raise_at_the_next_entry_and_the_loop_may_go_on(s: asc.Scheduler) -> None:
    window, failed, ran = s.window(1), [], []
    for i in range(6):
        try:
            async with window:
                ran.append(i)
                s.submit_nowait(fail, str(i)) if i in (1, 3) else s.submit_nowait(int)
        except ExceptionGroup as group:
            failed.append((i, [str(error) for error in group.exceptions]))
    assert failed == [(2, ["1"]), (4, ["3"])]
    assert ran == [0, 1, 3, 5]


async def test_failures_of_the_last_iterations_raise_where_the_scope_ends(s: asc.Scheduler) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with s.scope():
            window = s.window(2)
            for i in range(2):
                async with window:
                    s.submit_nowait(fail, str(i))
    assert sorted(str(error) for error in caught.value.exceptions) == ["0", "1"]


async def test_an_exception_in_the_block_leaves_as_it_is_and_the_iteration_goes_on(s: asc.Scheduler) -> None:
    window = s.window(1)
    with pytest.raises(KeyError, match="mine"):
        async with window:
            task = s.submit_nowait(int)
            raise KeyError("mine")
    assert await task == 0
    async with window:
        assert await s.call(int) == 0


async def test_a_window_belongs_to_one_coroutine(s: asc.Scheduler) -> None:
    window = s.window(2)

    async def enter() -> None:
        async with window:
            await s.call(int)

    await enter()
    with pytest.raises(RuntimeError, match=r"one coroutine.*s\.window\(depth\)"):
        await asyncio.create_task(enter())
    async with window:
        with pytest.raises(RuntimeError, match="one block at a time"):
            await enter()


async def test_a_window_does_not_pin_what_its_coroutine_held(s: asc.Scheduler) -> None:
    window = s.window(2)

    async def fail_inside() -> None:
        held = await s.put(np.ones(100))
        async with window:
            raise LookupError(held.shape)

    with suppress(LookupError):
        await asyncio.create_task(fail_inside())
    await asyncio.create_task(turns())  # asyncio itself forgets a task when it waits for another
    gc.collect()
    assert s.statistics().bytes_retained == 0
    with pytest.raises(RuntimeError, match="belongs to one coroutine"):
        await window.__aenter__()


async def test_cancelled_while_it_waits_a_window_loses_nothing(s: asc.Scheduler, gate: threading.Event) -> None:
    window = s.window(1)
    async with window:
        task = s.submit_nowait(held, gate)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), window:
                pytest.fail("entered")
    assert window.statistics().in_flight == 1
    gate.set()
    async with asyncio.timeout(5), window:
        assert task.done()


async def test_an_empty_iteration_and_a_long_loop(s: asc.Scheduler) -> None:
    window = s.window(2)
    for i in range(500):
        async with window:
            if i % 3:
                s.submit_nowait(int)
    assert len(engine_of(s).root.children) <= 4


class Unwalked(dict[Any, None]):
    def __iter__(self) -> NoReturn:
        pytest.fail("an iteration looks at all scopes that are open")


async def test_what_an_iteration_costs_does_not_grow_with_the_scopes_that_are_open(s: asc.Scheduler) -> None:
    root, window = engine_of(s).root, s.window(2)
    root.children = Unwalked(root.children)
    for _ in range(20):
        async with window:
            s.submit_nowait(int)
    root.children = {**root.children}
    assert len(root.children) <= 4


async def test_failures_that_were_not_kept_are_told_though_windows_were_opened_since() -> None:
    with pytest.raises(asc.AsyncSchedError, match="the scheduler: 5 tasks failed unseen whose"):
        async with asc.Scheduler("cpu", streams=1) as s:
            async with s.window(1):
                failing = [s.submit_nowait(fail) for _ in range(105)]
            await until(lambda: s.statistics().tasks_failed == 105)
            for task in failing[:100]:
                assert task.exception() is not None
            for _ in range(5):
                async with s.window(1):
                    await s.call(int)


async def test_failures_that_were_not_kept_are_noted_on_what_ends_the_scope(s: asc.Scheduler) -> None:
    with pytest.raises(LookupError, match="mine") as caught:
        async with s.scope():
            failing = [s.submit_nowait(fail) for _ in range(105)]
            await until(lambda: s.statistics().tasks_failed == 105)
            for task in failing[:104]:
                assert task.exception() is not None
            raise LookupError("mine")
    assert "besides, 1 task failed unseen" in caught.value.__notes__[0]


async def test_failures_that_were_not_kept_and_seen_all_the_same_are_not_told(s: asc.Scheduler) -> None:
    async with s.scope():
        failing = [s.submit_nowait(fail) for _ in range(105)]
        await until(lambda: s.statistics().tasks_failed == 105)
        for task in failing:
            assert task.exception() is not None


def test_bad_depths() -> None:
    s = asc.Scheduler("cpu")
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match="depth"):
            s.window(wrong)  # type: ignore[arg-type]


@pytest.mark.drops_at_once
async def test_the_window_of_a_generator_that_was_dropped_goes_on_at_once(s: asc.Scheduler) -> None:
    window, x = s.window(2), await s.put(np.ones(3))

    async def steps() -> AsyncIterator[asc.Tensor]:
        for number in range(4):
            async with window:
                yield x + number

    for _ in range(3):  # epochs that end early
        async for step in steps():
            assert await step.sum().item() == 3
            break
    await turns(5)  # the loop closes the generators
    async with window:
        x = x + 1
    assert await x.sum().item() == 6
    assert window.statistics().iterations == 4
    await s.barrier()


@pytest.mark.drops_at_once
@pytest.mark.one_loop
async def test_an_iteration_takes_the_loop_few_calls(gate: threading.Event) -> None:
    # Where the streams use the caches each call costs the loop's thread 1 to 2 us, ten times as much as alone.
    calls: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and asc.__path__[0] in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    async with asc.Scheduler("cpu", streams=2) as s:
        x, weight = await s.put(np.ones((256, 256), np.float32)), await s.put(np.ones(256, np.float32))
        window = s.window(64)
        s.submit_nowait(held, gate)
        s.submit_nowait(held, gate)  # so nothing ends meanwhile
        for _ in range(8):
            calls.clear()
            sys.setprofile(note)
            try:
                async with window:
                    asc.nn.layer_norm(x, (256,), weight, weight)
            finally:
                sys.setprofile(None)
        gate.set()
    assert 10 < len(calls) <= 41, calls
