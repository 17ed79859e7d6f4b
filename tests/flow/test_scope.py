"""Scopes: waited for, reported on, cancelled together; and what they reserve."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import engine_of, used
from tests.waiting import cancelled, fail, held, outlasts_cancellations, settled, turns, until

BLOCK = np.ones((200, 200))
NB = BLOCK.nbytes


async def test_leaving_waits_for_its_tasks_and_no_others() -> None:
    outside, ran = threading.Event(), []
    async with asc.Scheduler("cpu", streams=4) as s:
        other = s.submit_nowait(held, outside)
        async with s.scope(name="mine") as scope:
            scope.submit_nowait(ran.append, 1)
            s.submit_nowait(ran.append, 2)  # the ambient scope is this one
            x = await scope.put(BLOCK)
            assert repr(scope).startswith("Scope('mine', ")
        assert sorted(ran) == [1, 2]
        assert not other.done()
        assert x.done()
        assert repr(scope) == "Scope('mine', closed)"
        outside.set()


async def test_an_exception_cancels_what_is_unfinished_and_leaves_bare() -> None:
    gate, ran = threading.Event(), []
    async with asc.Scheduler("cpu", max_ops=1) as s:
        with pytest.raises(KeyError) as caught:
            async with s.scope(name="bad") as scope:
                running = await s.submit(held, gate)
                pending = scope.submit_nowait(ran.append, 1)
                asyncio.get_running_loop().call_soon(gate.set)
                raise KeyError("mine")
        assert not hasattr(caught.value, "__notes__")
        for handle in (running, pending):
            with pytest.raises(asc.TaskCancelled, match="scope 'bad', which was left by KeyError"):
                await handle
        assert ran == []
        assert await s.call(int) == 0


async def test_failures_are_raised_once_at_the_innermost_scope(s: asc.Scheduler) -> None:
    async with s.scope():
        with pytest.raises(ExceptionGroup, match="scope 'inner': 1 task failed") as caught:
            async with s.scope(name="inner"):
                t = s.submit_nowait(fail)
                s.submit_nowait(int, t)
        assert [type(error) for error in caught.value.exceptions] == [LookupError]
        await s.barrier()


async def test_the_bodys_exception_has_a_note_of_failures(s: asc.Scheduler) -> None:
    with pytest.raises(KeyError) as caught:
        async with s.scope(name="inner"):
            t = s.submit_nowait(fail)
            await settled(t)
            raise KeyError
    assert caught.value.__notes__ == ["scope 'inner': besides, 1 task failed unseen (LookupError)"]


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


async def test_an_exception_that_refuses_notes_leaves_as_it_is_with_one(s: asc.Scheduler) -> None:
    with pytest.raises(Frozen) as caught:
        async with s.scope(name="inner"):
            await settled(s.submit_nowait(fail))
            raise Frozen(7)
    assert caught.value.__notes__ == ["scope 'inner': besides, 1 task failed unseen (LookupError)"]


async def test_a_cancelled_scope_waits_for_what_runs(s: asc.Scheduler) -> None:
    gate, entered, ended = threading.Event(), threading.Event(), []

    def body() -> None:
        entered.set()
        held(gate)
        ended.append(1)

    async def work() -> None:
        async with s.scope():
            s.submit_nowait(body)

    task = asyncio.create_task(work())
    assert await asyncio.to_thread(entered.wait, 60)
    await outlasts_cancellations(task, gate, 3)
    assert ended == [1]


@pytest.mark.parametrize("later", range(4))
@pytest.mark.parametrize("place", ["itself", "a scope in it", "a window in it"])
async def test_left_by_an_exception_it_closes_when_nothing_is_unfinished(
    s: asc.Scheduler, gate: threading.Event, place: str, later: int
) -> None:
    """Others may submit between the end of its last task and its own, some turns of the loop later."""
    first = threading.Event()

    async def submits() -> None:
        around = {"itself": nullcontext, "a scope in it": s.scope, "a window in it": partial(s.window, 1)}[place]
        async with around():
            await until(lambda: "0 unfinished" in repr(scope))
            await turns(later)
            with suppress(asc.SchedulerClosed):  # too late
                s.submit_nowait(held, gate)

    with pytest.raises(KeyError):
        async with s.scope(reserve=NB) as scope:
            await s.submit(held, first)
            other = asyncio.create_task(submits())
            await turns()
            asyncio.get_running_loop().call_later(0.01, first.set)
            asyncio.get_running_loop().call_later(0.05, gate.set)
            raise KeyError
    assert repr(scope) == "Scope('unnamed', closed)"
    assert s.statistics().bytes_reserved == 0
    await other
    await s.barrier()
    assert used(s) == 0


async def test_barrier_in_a_scope_covers_that_scope(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        outer = s.submit_nowait(held, gate)
        async with s.scope() as scope:
            inner = s.submit_nowait(int)
            await scope.barrier()
            assert inner.done()
            assert not outer.done()
            gate.set()


async def test_a_scope_is_entered_once_and_not_used_before_or_after(s: asc.Scheduler) -> None:
    scope = s.scope(name="one")
    assert repr(scope) == "Scope('one', not entered)"
    with pytest.raises(RuntimeError, match="not entered"):
        scope.submit_nowait(int)
    async with scope:
        with pytest.raises(RuntimeError, match="entered once"):
            await scope.__aenter__()
    with pytest.raises(asc.SchedulerClosed, match="scope 'one' is closed"):
        scope.submit_nowait(int)


@pytest.mark.parametrize("options", [{}, {"reserve": 10**6}, {"deadline": 3600}], ids=["plain", "reserve", "deadline"])
async def test_entered_by_two_at_once_the_second_is_refused_and_nothing_is_left(options: dict[str, Any]) -> None:
    async with asc.Scheduler("cpu", max_bytes=10**6) as s:
        root, scope, left = engine_of(s).root, s.scope(**options), asyncio.Event()
        full = await s.put(np.ones(10))  # so the one with a reserve waits for room

        async def enter() -> int:
            async with scope:
                await left.wait()
                return await s.call(int)

        first, second = asyncio.create_task(enter()), asyncio.create_task(enter())
        with pytest.raises(RuntimeError, match="entered once"):
            await second
        assert len(root.children) == 1
        await turns()
        assert not first.done()
        del full
        left.set()
        assert await first == 0
        assert not root.children
        assert s.statistics().bytes_reserved == 0


async def test_a_closed_scope_that_was_inherited_refuses(s: asc.Scheduler) -> None:
    x, left = await s.put(BLOCK), asyncio.Event()

    async def straggler() -> None:
        await left.wait()
        for late in (lambda: x + 1, lambda: s.submit_nowait(int)):
            with pytest.raises(asc.SchedulerClosed, match="'request' is closed, and this coroutine inherited it"):
                late()
        assert (await x)[0, 0] == 1
        async with outer:
            assert (await (x + 1))[0, 0] == 2

    outer = s.scope()
    async with s.scope(name="request"):
        task = asyncio.create_task(straggler())
    left.set()
    with pytest.raises(asc.SchedulerClosed, match="inherited"):
        await task


# -- reserves -------------------------------------------------------------------------------------------------------


async def test_a_reserve_counts_as_tracked_and_is_the_limit_inside() -> None:
    async with asc.Scheduler("cpu", max_bytes=10 * NB) as s:
        async with s.scope(reserve=3 * NB):
            assert s.statistics().bytes_reserved == used(s) == 3 * NB
            with pytest.raises(asc.TaskTooLarge) as caught:
                await s.put(np.ones((800, 200)))
            assert (caught.value.needed, caught.value.limit) == (4 * NB, 3 * NB)
            held_here = [await s.put(BLOCK) for _ in range(3)]
            assert used(s) == 3 * NB
            waiting = asyncio.create_task(s.put(BLOCK))
            await turns(10)
            assert not waiting.done()
            held_here.pop()
            held_here.append(await asyncio.wait_for(waiting, 60))
            del waiting
            with pytest.raises(asc.QueueFull):
                s.put_nowait(BLOCK)
            held_here.clear()
        await turns(1)  # from Python 3.12 on asyncio keeps a finished task until the turn it woke is over
        assert used(s) == s.statistics().bytes_reserved == 0


async def test_a_reserve_larger_than_the_limit() -> None:
    async with asc.Scheduler("cpu", max_bytes=NB) as s:
        with pytest.raises(asc.TaskTooLarge):
            async with s.scope(reserve=NB + 1):
                pytest.fail("entered")
        for wrong in (0, -1, "many"):
            with pytest.raises(ValueError, match="reserve"):
                s.scope(reserve=wrong)
        async with s.scope(reserve=NB):
            await s.put(BLOCK)
        assert used(s) == 0


async def test_what_is_still_held_is_charged_to_the_parent() -> None:
    async with asc.Scheduler("cpu", max_bytes=8 * NB) as s:
        async with s.scope(reserve=6 * NB):
            async with s.scope(reserve=3 * NB):
                assert s.statistics().bytes_reserved == 9 * NB  # nested: carved from the outer one
                assert used(s) == 6 * NB
                kept = await s.put(BLOCK)
                array = await (await s.put(BLOCK))
            s.statistics()
            (core,) = asc.observe.Probe(s).root.children
            assert (core.reserve, core.account.used) == (6 * NB, 2 * NB)
        assert used(s) == 2 * NB
        del kept
        assert used(s) == NB
        del array
        assert used(s) == 0


async def test_a_nested_reserve_comes_from_its_parents() -> None:
    async with asc.Scheduler("cpu", max_bytes=8 * NB) as s, s.scope(reserve=3 * NB):
        with pytest.raises(asc.TaskTooLarge):
            await s.scope(reserve=4 * NB).__aenter__()
        kept = [await s.put(BLOCK)]
        entering = asyncio.create_task(s.scope(reserve=3 * NB).__aenter__())
        await turns(10)
        assert not entering.done()
        kept.clear()
        inner = await asyncio.wait_for(entering, 60)
        await inner.__aexit__(None, None, None)


async def test_cancelled_while_it_waits_for_its_reserve() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB) as s:
        kept = await s.put(BLOCK)

        async def work() -> None:
            async with s.scope(reserve=2 * NB):
                pytest.fail("entered")

        for _ in range(20):
            task = asyncio.create_task(work())
            await turns()
            assert engine_of(s).ledger.pending == 1
            assert s.statistics().tasks_pending == 0  # a claim is no task
            await cancelled(task)
        assert used(s) == NB
        assert not engine_of(s).root.children
        del kept
        async with s.scope(reserve=2 * NB):
            assert used(s) == 2 * NB


async def test_cancelled_in_the_turn_that_grants_its_reserve() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB) as s:
        kept = await s.put(BLOCK)
        entering = asyncio.create_task(s.scope(reserve=2 * NB).__aenter__())
        await turns()
        del kept
        engine_of(s).dispatch()
        assert used(s) == 2 * NB
        await cancelled(entering)
        assert used(s) == s.statistics().bytes_reserved == 0
        assert not engine_of(s).root.children


async def test_scopes_that_wait_for_their_reserves_all_get_them() -> None:
    inside = most = 0
    async with asc.Scheduler("cpu", max_bytes=10 * NB) as s:

        async def request(i: int) -> float:
            nonlocal inside, most
            async with s.scope(reserve=3 * NB + 8):
                inside += 1
                most = max(most, inside)
                x = await s.put(BLOCK)
                total = float(await (x * 0 + i).sum().item())
                inside -= 1
                return total

        assert await asyncio.gather(*[request(i) for i in range(40)]) == [i * BLOCK.sum() for i in range(40)]
        assert most == 3
        assert used(s) == s.statistics().bytes_reserved == 0
