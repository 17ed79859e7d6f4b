"""Deadlines of scopes: what they cancel, what leaving raises, and other cancellations at the same time.

Deadlines here are either so near that waiting for them is the test, wherever they pass; or so far that they never do,
unless the test says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import engine_of, used
from tests.waiting import deadline_of, held, passes, settled

BLOCK = np.ones((200, 200))
NB = BLOCK.nbytes
SOON, NEVER = 0.01, 1000.0


async def test_a_deadline_of_few_bits_is_as_exact_as_another() -> None:
    """The sum of the loop's time and a float16 has eleven bits."""
    async with asc.Scheduler("cpu") as s, s.scope(deadline=np.float16(NEVER)) as scope:  # type: ignore[arg-type]
        timer = deadline_of(scope).timer
        assert timer.when() == pytest.approx(asyncio.get_running_loop().time() + NEVER, abs=0.2)


async def test_what_is_unfinished_is_cancelled_and_leaving_raises() -> None:
    gate, ran = threading.Event(), []
    async with asc.Scheduler("cpu", max_ops=1) as s:
        with pytest.raises(asc.DeadlineExceeded, match="scope 'slow' passed its deadline of 1000 s") as caught:
            async with s.scope(name="slow", deadline=NEVER) as scope:
                running = await s.submit(held, gate)
                pending = scope.submit_nowait(ran.append, 1)
                asyncio.get_running_loop().call_soon(passes, scope)
                try:
                    await pending
                finally:
                    gate.set()
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        for handle in (running, pending):
            with pytest.raises(asc.TaskCancelled, match=r"by the deadline of scope 'slow' \(1000 s\)"):
                await handle
        assert ran == []
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        assert await s.call(int) == 0


async def test_work_done_in_time_is_left_alone(s: asc.Scheduler) -> None:
    async with s.scope(deadline=NEVER) as scope:
        x = await s.put(BLOCK)
        assert repr(scope) == "Scope('unnamed', deadline=1000 s, 0 unfinished)"
        timeout = deadline_of(scope)
    assert (await x).sum() == BLOCK.sum()
    assert not timeout.passed
    assert timeout.timer.cancelled()


async def test_it_passes_while_leaving_waits(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:
        with pytest.raises(asc.DeadlineExceeded):
            async with s.scope(), s.scope(deadline=NEVER) as scope:
                running = scope.submit_nowait(held, gate)
                telling = asyncio.ensure_future(asc.gather(running))
                telling.add_done_callback(lambda _: gate.set())  # it is cancelled: the body may end
                asyncio.get_running_loop().call_soon(passes, scope)
        with pytest.raises(asc.TaskCancelled):
            await telling
        assert running.done()
        assert s.statistics().tasks_in_flight == 0


async def test_it_passes_while_entering_waits_for_the_reserve() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB) as s:
        kept = await s.put(BLOCK)
        with pytest.raises(asc.DeadlineExceeded, match="scope 'late'"):
            async with s.scope(name="late", reserve=2 * NB, deadline=SOON):
                pytest.fail("entered")
        assert used(s) == NB
        assert engine_of(s).ledger.pending == 0
        assert not engine_of(s).root.children
        del kept


async def test_an_inner_deadline_does_not_extend_the_outer(s: asc.Scheduler) -> None:
    with pytest.raises(asc.DeadlineExceeded, match="scope 'outer'"):
        async with s.scope(name="outer", deadline=SOON), s.scope(name="inner", deadline=NEVER):
            await asyncio.Event().wait()


async def test_an_inner_deadline_ends_the_inner_scope_alone(s: asc.Scheduler) -> None:
    async with s.scope(name="outer", deadline=NEVER) as outer:
        with pytest.raises(asc.DeadlineExceeded, match="scope 'inner'"):
            async with s.scope(name="inner", deadline=SOON):
                await asyncio.Event().wait()
        assert await outer.call(int) == 0


async def test_two_deadlines_at_once_are_the_outers(s: asc.Scheduler) -> None:
    with pytest.raises(asc.DeadlineExceeded, match="scope 'outer'"):
        async with s.scope(name="outer", deadline=NEVER) as outer, s.scope(deadline=NEVER) as inner:
            asyncio.get_running_loop().call_soon(passes, inner)
            asyncio.get_running_loop().call_soon(passes, outer)
            await asyncio.Event().wait()
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_cancellation_from_outside_at_the_same_time_is_passed_on(s: asc.Scheduler) -> None:
    async def work() -> None:
        async with s.scope(deadline=NEVER) as scope:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(passes, scope)
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def test_a_timeout_of_asyncios_around_it_and_within_it(s: asc.Scheduler) -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(SOON), s.scope(deadline=NEVER):
            await asyncio.Event().wait()
    assert not isinstance(caught.value, asc.DeadlineExceeded)
    with pytest.raises(asc.DeadlineExceeded):
        async with s.scope(deadline=SOON), asyncio.timeout(NEVER):
            await asyncio.Event().wait()


async def test_a_cancel_scope_of_anyio_around_it_ends_what_both_cancel(s: asc.Scheduler) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with anyio.CancelScope() as around:
        async with s.scope(deadline=NEVER) as scope:
            for call in (lambda: loop.call_soon(around.cancel), lambda: passes(scope)):  # so they cancel in one turn
                loop.call_soon(call)
            while True:  # no future is waited for, whose cancellation would be anyio's: the later one tells its message
                await asyncio.sleep(0)
    assert around.cancelled_caught
    assert task.cancelling() == 0


async def test_a_body_that_ignores_its_cancellation_still_raises(s: asc.Scheduler) -> None:
    with pytest.raises(asc.DeadlineExceeded):
        async with s.scope(deadline=NEVER) as scope:
            asyncio.get_running_loop().call_soon(passes, scope)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                late = scope.submit_nowait(int)
    assert late.done()


async def test_a_task_group_in_it_is_cancelled_with_it(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:
        running = await s.submit(held, gate)
        with pytest.raises(asc.DeadlineExceeded):
            async with s.scope(deadline=NEVER) as scope:

                async def member(handle: Any) -> None:
                    await handle

                async with asyncio.TaskGroup() as group:
                    group.create_task(member(scope.submit_nowait(int)))
                    asyncio.get_running_loop().call_later(SOON, passes, scope)
        gate.set()
        await running


async def test_an_exception_of_the_bodys_is_not_replaced(s: asc.Scheduler) -> None:
    with pytest.raises(KeyError):
        async with s.scope(deadline=NEVER) as scope:
            asyncio.get_running_loop().call_soon(passes, scope)
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError
    with pytest.raises(KeyError):
        async with s.scope(deadline=NEVER):
            raise KeyError
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("body", ["waits", "ends", "reads its task"])
async def test_a_body_at_a_yield_is_cancelled_when_it_goes_on_and_its_consumer_never(
    gate: threading.Event, body: str
) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:

        async def generator(deadline: float | None) -> AsyncGenerator[asc.Scope, None]:
            async with s.scope(name="late", deadline=deadline) as scope:
                first = scope.submit_nowait(held, gate)
                yield scope
                if body == "waits":
                    await asyncio.Event().wait()
                elif body == "reads its task":
                    await first

        items, beside = generator(NEVER), generator(None)
        scope, other = await anext(items), await anext(beside)
        theirs, late = other.submit_nowait(int), scope.submit_nowait(int)
        passes(scope)
        for _ in range(3):
            await asyncio.sleep(0)  # where the loop turns, the task waits for nothing
        with pytest.raises(asc.TaskCancelled, match=r"by the deadline of scope 'late' \(1000 s\)"):
            await late
        gate.set()
        assert await theirs == 0 == await other.call(int)
        with pytest.raises(asc.DeadlineExceeded, match="scope 'late' passed its deadline"):
            await anext(items)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        await beside.aclose()
        assert await s.call(int) == 0


async def test_failures_nobody_saw_are_noted(s: asc.Scheduler) -> None:
    with pytest.raises(asc.DeadlineExceeded) as caught:
        async with s.scope(name="bad", deadline=NEVER) as scope:
            failing = scope.submit_nowait(int, "no number")
            await settled(failing)
            asyncio.get_running_loop().call_soon(passes, scope)
            await asyncio.Event().wait()
    assert caught.value.__notes__[1:] == ["scope 'bad': besides, 1 task failed unseen (ValueError)"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"deadline": 0}, ValueError),
        ({"deadline": float("nan")}, ValueError),
        ({"deadline": float("inf")}, ValueError),
        ({"deadline": "1 s"}, TypeError),
        ({"weight": 0}, ValueError),
        ({"weight": True}, TypeError),
        ({"priority": 0.5}, TypeError),
        ({"tenant": []}, TypeError),
    ],
)
async def test_arguments_out_of_range(s: asc.Scheduler, wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong)) if "tenant" not in wrong else "unhashable"):
        s.scope(**wrong)
