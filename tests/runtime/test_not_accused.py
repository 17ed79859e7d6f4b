"""Who may still let go of bytes, or be woken by somebody who is not stuck, is accused of nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime import deadlock, holders, stall
from asyncsched.runtime.holders import Walk
from tests.waiting import cancelled, held, turns, until

BLOCK = np.ones((100, 100))
NB = BLOCK.nbytes
ELSEWHERE: list[Any] = []  # a module's variable


async def looked(looks: list[deadlock.Finding], times: int = 2) -> None:
    """Wait for more looks, which find no deadlock."""
    until_then = len(looks) + times
    await until(lambda: len(looks) >= until_then)
    assert not any(finding.deadlock for finding in looks), looks


async def had_by_a_thread(box: deque[Any], looks: list[deadlock.Finding], gate: threading.Event) -> None:
    """A thread has what is in the box in a variable, while it is looked who holds the bytes; then no more."""

    def hold() -> None:
        mine = box.popleft()
        held(gate)
        del mine

    thread = threading.Thread(target=hold)
    thread.start()
    await until(lambda: not box)
    await looked(looks)
    gate.set()
    await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("as_array", [False, True], ids=["tensor", "array"])
async def test_one_reference_that_nobody_sees_is_enough(
    looks: list[deadlock.Finding], gate: threading.Event, as_array: bool
) -> None:
    """A thread's variable. The waiting coroutine has the tensor too, so all the rest says that it is a deadlock."""
    box: deque[Any] = deque()

    async def work(s: asc.Scheduler) -> None:
        mine: Any = await s.put(BLOCK)
        if as_array:
            mine = await mine
        box.append(mine)
        await s.put(BLOCK)

    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        waiting = asyncio.create_task(work(s))
        await until(lambda: box)
        await had_by_a_thread(box, looks, gate)
        with pytest.raises(asc.MemoryDeadlockError):  # now it is one
            await waiting


def _yields(mine: Any) -> Iterator[None]:
    """Borrows the argument of the call from its variable, where Python does that."""
    print(mine, (yield))


def _yields_one_of_two(mine: Any) -> Iterator[None]:
    also = mine
    print(mine, (yield), also)


def _yields_beside_a_cell(mine: Any) -> Iterator[None]:
    print(mine, (yield), lambda: mine)


async def _yields_asynchronously(mine: Any) -> AsyncIterator[None]:
    print(mine, (yield))


@pytest.mark.parametrize("generator", [_yields, _yields_one_of_two, _yields_beside_a_cell, _yields_asynchronously])
async def test_borrowed_references_of_a_generator_stand_for_no_holder(
    looks: list[deadlock.Finding], gate: threading.Event, generator: Any
) -> None:
    box: deque[Any] = deque()

    async def work(s: asc.Scheduler) -> None:
        mine = generator(box[0])
        if isinstance(mine, AsyncIterator):
            await anext(mine)
        else:
            next(mine)
        await s.put(BLOCK)

    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        box.append(await s.put(BLOCK))
        waiting = asyncio.create_task(work(s))
        await turns()
        await had_by_a_thread(box, looks, gate)
        await cancelled(waiting)


def test_every_reference_is_found_or_missed() -> None:
    """For the walk alone: one more reference than it can see, in whatever number of those that it sees."""

    class Thing:
        pass

    async def holds(things: list[Thing]) -> None:
        await asyncio.Event().wait()

    async def others_of(thing: list[Thing], others: int) -> bool:
        task = asyncio.create_task(holds(thing * others))
        await turns()
        # On another thread, where no asyncio task asks, whose variables would count
        _, outside, _ = await asyncio.to_thread(lambda: Walk(thing, [task], [], float("inf")).holders(0))
        await cancelled(task)
        return outside

    for others in range(1, 4):
        assert not asyncio.run(others_of([Thing()], others))
        unseen = Thing()  # this frame runs, so nobody sees into it
        assert asyncio.run(others_of([unseen], others))


async def test_a_gather_is_not_stuck_while_one_of_its_parts_is_not(looks: list[deadlock.Finding]) -> None:
    event = asyncio.Event()

    async def fails() -> None:
        await event.wait()
        raise LookupError

    async def work(s: asc.Scheduler) -> None:
        mine = await s.put(BLOCK)
        await asyncio.gather(s.put(BLOCK), fails())
        del mine

    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        waiting = asyncio.create_task(work(s))
        await looked(looks)
        event.set()
        with pytest.raises(LookupError):
            await waiting
        del waiting
        await s.put(BLOCK)


async def test_a_circle_of_waiting_tasks_is_not_stuck_while_one_of_them_may_be_woken(
    looks: list[deadlock.Finding],
) -> None:
    """`first` waits for `second`, and for whoever sets the event; `second` holds, and waits for `first`."""
    event = asyncio.Event()
    tasks: dict[str, asyncio.Task[None]] = {}

    async def first() -> None:
        await asyncio.wait([tasks["second"], asyncio.create_task(event.wait())], return_when="FIRST_COMPLETED")

    async def second(s: asc.Scheduler) -> None:
        mine = [await s.put(BLOCK)]
        await asyncio.shield(tasks["first"])
        mine.clear()

    async def third(s: asc.Scheduler) -> None:
        mine = [await s.put(BLOCK)]
        await asyncio.gather(asyncio.shield(tasks["first"]), s.put(BLOCK))
        mine.clear()

    async with asc.Scheduler("cpu", max_bytes=2 * NB) as s:
        tasks["second"] = asyncio.create_task(second(s))
        tasks["first"] = asyncio.create_task(first())
        waiting = asyncio.create_task(third(s))
        await looked(looks)
        event.set()
        await asyncio.gather(waiting, *tasks.values())


async def test_a_callback_of_the_loop_may_wake_a_task(looks: list[deadlock.Finding]) -> None:
    async def work(s: asc.Scheduler) -> None:
        mine = await s.put(BLOCK)
        await asyncio.wait([asyncio.create_task(s.put(BLOCK))], timeout=3600)
        del mine

    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        waiting = asyncio.create_task(work(s))
        await looked(looks)
        await cancelled(waiting)
        del waiting
        await s.barrier()


async def test_a_wait_for_a_stuck_task_and_a_running_one_is_not_stuck(
    looks: list[deadlock.Finding], gate: threading.Event
) -> None:
    """The other may fail, which wakes it."""

    def fails() -> None:
        held(gate)
        raise LookupError

    async def work(s: asc.Scheduler) -> None:
        running = s.submit_nowait(fails)
        async with s.scope(reserve=3 * NB - 1) as scope:  # an account of its own, in which nothing runs
            mine = [await scope.put(BLOCK) for _ in range(2)]
            await asc.gather(asc.exp(mine[0]), running)

    async with asc.Scheduler("cpu", max_bytes=4 * NB, streams=2) as s:
        waiting = asyncio.create_task(work(s))
        await looked(looks)
        gate.set()
        with pytest.raises(LookupError):
            await waiting
        del waiting


KEPT: list[asc.Tensor] = []  # a module's variable


async def test_bytes_that_others_may_drop_let_a_task_in_that_drops_more(looks: list[deadlock.Finding]) -> None:
    """The first needs more than outsiders hold. But they can let in the second, and that has the rest."""
    async with asc.Scheduler("cpu", max_bytes=4 * NB) as s:
        KEPT.append(await s.put(BLOCK))
        kept = [await s.put(BLOCK) for _ in range(3)]

        async def small(kept: list[asc.Tensor]) -> None:
            await s.put(BLOCK[:50])
            kept.clear()

        large = asyncio.create_task(s.put(np.ones((200, 100))))
        await until(lambda: s.statistics().tasks_pending)
        waiting = asyncio.create_task(small(kept))
        del kept
        await looked(looks)
        KEPT.clear()
        await asyncio.gather(large, waiting)


async def holds_what_another_lacks(s: asc.Scheduler) -> None:
    """Hold a block, and wait for a task that wants another, in an async generator."""

    async def blocks() -> AsyncIterator[Any]:
        yield await s.put(BLOCK)

    async def wants() -> None:
        async for _ in blocks():
            pass

    kept = await s.put(BLOCK)
    await asyncio.create_task(wants())
    del kept


async def test_a_chain_of_awaits_is_seen_through_a_task_and_an_async_generator(looks: list[deadlock.Finding]) -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        with pytest.raises(asc.MemoryDeadlockError):
            await asyncio.create_task(holds_what_another_lacks(s))


@pytest.mark.parametrize("elsewhere", ["a module", "a thread", "who goes on"])
async def test_of_hundreds_that_hold_and_wait_the_block_of_one_is_held_elsewhere_too(
    looks: list[deadlock.Finding], gate: threading.Event, elsewhere: str
) -> None:
    n, box, told = 300, deque[Any](), list[bool]()

    async def work(s: asc.Scheduler, first: bool) -> None:
        mine = await s.put(BLOCK[0])
        if first:
            box.append(mine)
        try:
            await s.put(BLOCK[0])
        except asc.MemoryDeadlockError:
            told.append(first)
        del mine

    async def goes_on() -> None:
        mine = box.popleft()
        await looked(looks)
        del mine

    async with asc.Scheduler("cpu", max_bytes=n * BLOCK[0].nbytes) as s, asyncio.TaskGroup() as group:
        for i in range(n):
            group.create_task(work(s, i == 0))
        await until(lambda: box)
        if elsewhere == "a module":
            ELSEWHERE.append(box.popleft())
            await looked(looks)
            ELSEWHERE.clear()
        elif elsewhere == "a thread":
            await had_by_a_thread(box, looks, gate)
        else:
            await goes_on()
    assert len(told) == 1  # from then on it was a deadlock


@pytest.mark.parametrize("hidden", ["awaited_by", "steps_of"])
async def test_where_no_chain_is_seen_it_is_a_stall(
    looks: list[deadlock.Finding], monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """As where Python has other names for its links."""
    if hidden == "awaited_by":
        monkeypatch.setattr(deadlock, "awaited_by", lambda task: None)
    else:
        monkeypatch.setattr(holders, "_AWAITED", ())
        monkeypatch.setattr(holders, "_SUSPENDED", {})
    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1, stall_timeout=0.1) as s:
        with pytest.raises(asc.SchedulerStalled):
            await asyncio.create_task(holds_what_another_lacks(s))
    assert not any(finding.deadlock for finding in looks)


@pytest.mark.usefixtures("looks")
async def test_what_was_certain_and_is_not_any_more_is_judged_before_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The module may let go of the bytes. The first search does not ask, since nothing could happen when it began."""
    answers, looked_again = [None, "something may", "something may"], asyncio.Event()

    def may_happen(loop: asyncio.AbstractEventLoop) -> str | None:
        if len(answers) == 1:
            looked_again.set()
        return answers.pop(0) if answers else "something may"

    async def work(s: asc.Scheduler) -> None:
        ELSEWHERE.append(await s.put(BLOCK))
        await s.put(BLOCK)

    monkeypatch.setattr(stall, "may_happen", may_happen)
    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        waiting = asyncio.create_task(work(s))
        again = asyncio.create_task(looked_again.wait())
        await asyncio.wait([waiting, again], return_when="FIRST_COMPLETED")
        ELSEWHERE.clear()
        await again
        await waiting


@pytest.mark.usefixtures("may_block")
async def test_who_runs_while_it_is_searched_may_have_a_timer_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watchdog that looks every now and then: one timer has fired, and the next is not set."""
    searches: list[None] = []
    runs, searched, investigate = threading.Event(), threading.Event(), stall.investigate

    def search(*args: Any, **options: Any) -> dict[Any, deadlock.Finding]:
        searches.append(None)
        held(runs)
        found = investigate(*args, **options)
        if len(searches) == 1:
            assert all(finding.deadlock for finding in found.values())  # as far as is seen from a thread
        searched.set()
        return found

    async def work(s: asc.Scheduler) -> None:
        kept = await s.put(BLOCK)
        try:
            await s.put(BLOCK)
        finally:
            del kept

    async def watch(task: asyncio.Task[None]) -> None:
        await until(lambda: searches)
        runs.set()
        held(searched)
        while len(searches) < 2:
            await asyncio.sleep(1e-3)
        task.cancel()

    monkeypatch.setattr(stall, "PROBABLE", 0.0)
    monkeypatch.setattr(stall, "RARE", 1.0)
    monkeypatch.setattr(stall, "investigate", search)
    async with asc.Scheduler("cpu", max_bytes=2 * NB - 1) as s:
        waiting = asyncio.create_task(work(s))
        dog = asyncio.create_task(watch(waiting))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await dog
