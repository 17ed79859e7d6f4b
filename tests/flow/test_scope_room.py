"""How long a scope waits for its reserve, at most; and what is told of those who wait."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime.rates import Room
from tests.ledger import engine_of, runtime_of
from tests.waiting import Clock, outside, turns, until


@pytest.fixture
async def clock(s: asc.Scheduler) -> Clock:
    """By which the scheduler measures how long those wait who reserve."""
    clock = Clock()
    runtime_of(s).room = Room(engine_of(s).admission, clock)
    return clock


@pytest.fixture
async def s() -> Any:
    async with asc.Scheduler("cpu", max_bytes=1000) as scheduler:
        yield scheduler
        assert not engine_of(scheduler).root.children
        assert not runtime_of(scheduler).room.waiting


class Holder:
    """A scope that is open until it is told to end."""

    def __init__(self, s: asc.Scheduler | asc.Scope, reserve: int, **options: Any) -> None:
        self.ending = asyncio.Event()
        self.inside = False
        self.task = asyncio.create_task(self._run(s.scope(reserve=reserve, **options)))

    async def _run(self, scope: asc.Scope) -> None:
        async with scope:
            self.inside = True
            await self.ending.wait()

    async def end(self) -> None:
        self.ending.set()
        await self.task


async def filled(s: asc.Scheduler) -> Holder:
    holder = Holder(s, 1000)
    await until(lambda: holder.inside)
    return holder


@pytest.mark.parametrize("wait", [0, 0.01, 100])
async def test_with_room_it_is_entered(s: asc.Scheduler, wait: float) -> None:
    async with s.scope(reserve=1000, wait=wait):
        assert s.statistics().bytes_reserved == 1000


@pytest.mark.parametrize("wait", [0, 0.01])
async def test_without_room_it_is_not(s: asc.Scheduler, wait: float) -> None:
    full = await filled(s)
    with pytest.raises(asc.QueueFull, match=r"scope 'text': there is no room for the 500 bytes .*wait=") as caught:
        async with s.scope(name="text", reserve=500, wait=wait):
            pytest.fail("entered")
    assert (caught.value.retry_after or 0) >= wait
    assert s.statistics().reserves_waiting == 0
    assert s.load().bytes_pending == 0
    await full.end()
    async with s.scope(reserve=500, wait=wait):
        pass


async def test_it_is_entered_when_room_comes_in_time(s: asc.Scheduler) -> None:
    full = await filled(s)
    waits = Holder(s, 500, wait=3600)
    await turns()
    assert not waits.inside
    await full.end()
    await until(lambda: waits.inside)
    await waits.end()


async def test_who_would_wait_too_long_by_those_before_is_told_at_once(s: asc.Scheduler, clock: Clock) -> None:
    full = await filled(s)
    first = Holder(s, 1000, wait=3600)
    await turns()
    clock.passes(3)
    await full.end()
    await until(lambda: first.inside)  # 1000 bytes took 3 s
    second = Holder(s, 1000, wait=3600)
    await turns()
    with pytest.raises(asc.QueueFull, match="within 5 s .* likely to be in 6 s") as caught:
        await s.scope(reserve=1000, wait=5).__aenter__()
    assert caught.value.retry_after == pytest.approx(6)
    third = Holder(s, 1000, wait=7)
    await turns()
    assert s.load().estimated_wait == pytest.approx(6)
    for holder in (first, second, third):
        await holder.end()


async def test_the_first_who_waits_shows_how_long_it_takes(s: asc.Scheduler, clock: Clock) -> None:
    """However slow it was once: else nobody would wait any more, and nobody would see that it is fast again."""
    full = await filled(s)
    first = Holder(s, 1000)
    await turns()
    clock.passes(1000)
    await full.end()
    await until(lambda: first.inside)
    next_one = Holder(s, 1000, wait=3600)
    await turns()
    assert not next_one.task.done()
    await first.end()
    await next_one.end()


async def test_a_tenant_is_not_told_for_what_another_asks(s: asc.Scheduler, clock: Clock) -> None:
    full = await filled(s)
    first = Holder(s, 1000, tenant="a")
    await turns()
    clock.passes(1)
    await full.end()
    await until(lambda: first.inside)
    many = [Holder(s, 1000, tenant="a") for _ in range(9)]
    await turns()
    with pytest.raises(asc.QueueFull):
        await s.scope(reserve=1000, tenant="a", wait=5).__aenter__()
    with pytest.raises(asc.QueueFull):
        await s.scope(reserve=1000, tenant="c", priority=-1, wait=5).__aenter__()
    other = Holder(s, 1000, tenant="b", wait=5)
    urgent = Holder(s, 1000, priority=1, wait=1.5)
    await turns()
    assert not other.task.done()
    assert not urgent.task.done()
    for holder in (first, urgent, other, *many):
        holder.ending.set()
    await asyncio.gather(*[holder.task for holder in (first, urgent, other, *many)])


async def test_the_wait_that_a_load_tells_is_that_of_those_who_reserve(s: asc.Scheduler, clock: Clock) -> None:
    """Calls end by the thousand meanwhile, and take no bytes."""
    full = await filled(s)
    waits = Holder(s, 1000)
    await turns()
    for _ in range(100):
        await s.call(int)
    clock.passes(2.5)
    assert s.load().estimated_wait == pytest.approx(2.5)  # so far
    clock.passes(0.5)
    await full.end()
    await until(lambda: waits.inside)
    last = Holder(s, 1000)
    await turns()
    assert s.load().estimated_wait == pytest.approx(3)
    await waits.end()
    await last.end()
    assert s.load().estimated_wait == 0


async def test_who_waits_for_room_is_told_by_kind(s: asc.Scheduler, clock: Clock) -> None:
    full = await filled(s)
    waits = [Holder(s, 100), Holder(s, 200), Holder(s, 300, priority=2)]
    await turns()
    clock.passes(4)
    found = runtime_of(s).room.read()
    assert [(one.who, one.count, one.nbytes, one.longest) for one in found] == [
        ("priority 0", 2, 300, 4.0),
        ("priority 2", 1, 300, 4.0),
    ]
    assert (s.statistics().reserves_waiting, s.statistics().bytes_waiting) == (3, 600)
    for holder in (full, *waits):
        await holder.end()


async def test_cancelled_or_late_while_it_waits(s: asc.Scheduler) -> None:
    full = await filled(s)
    waits = Holder(s, 500, wait=3600)
    await turns()
    waits.task.cancel()
    await asyncio.wait([waits.task])
    assert waits.task.cancelled()
    with pytest.raises(asc.DeadlineExceeded):
        await s.scope(reserve=500, wait=3600, deadline=0.01).__aenter__()
    with pytest.raises(asc.QueueFull):
        await s.scope(reserve=500, wait=0.01, deadline=3600).__aenter__()
    await full.end()


async def test_those_who_wait_within_a_reserve_are_measured_by_themselves(s: asc.Scheduler, clock: Clock) -> None:
    """As where caches have a part of the limit, and a model another."""
    async with s.scope(name="caches", reserve=400) as caches:
        with outside():
            full, elsewhere = Holder(caches, 400), Holder(s, 600)
            await until(lambda: full.inside and elsewhere.inside)
            first = Holder(caches, 400)
            await turns()
            clock.passes(2)
            assert s.load().estimated_wait == pytest.approx(2)
            await full.end()
            await until(lambda: first.inside)
            second = Holder(caches, 400)
            await turns()
            assert s.load().estimated_wait == pytest.approx(2)
            with pytest.raises(asc.QueueFull, match="within 3 s .* in 4 s"):
                await caches.scope(reserve=400, wait=3).__aenter__()
            third = Holder(s, 600, wait=3)  # of the whole nobody knows how long it takes
            await turns()
            assert not third.task.done()
            for holder in (first, second, elsewhere, third):
                await holder.end()


async def test_within_a_reserve_it_waits_as_long(s: asc.Scheduler) -> None:
    async with s.scope(reserve=500) as around:
        kept = await around.put(np.ones(10))
        with pytest.raises(asc.QueueFull):
            await around.scope(reserve=450, wait=0).__aenter__()
        with pytest.raises(asc.QueueFull):
            await around.scope(reserve=450, wait=0.01).__aenter__()
        del kept
        async with around.scope(reserve=450, wait=0):
            pass


async def test_bad_input(s: asc.Scheduler) -> None:
    with pytest.raises(ValueError, match=r"wait= is for .*reserve="):
        s.scope(wait=1)
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="wait"):
            s.scope(reserve=1, wait=wrong)
    with pytest.raises(TypeError, match="wait"):
        s.scope(reserve=1, wait="long")  # type: ignore[arg-type]
    with pytest.raises(asc.TaskTooLarge):
        await s.scope(reserve=1001, wait=0).__aenter__()


@pytest.mark.parametrize("wait", [0, 0.01])
async def test_a_member_joins_within_its_wait_or_not_at_all(s: asc.Scheduler, wait: float) -> None:
    def step(members: list[list[int]]) -> list[Any]:
        return [asc.Last(len(member)) for member in members]

    stepper: asc.Stepper[list[int], int] = asc.Stepper(step, reserve=lambda member: 100 * len(member), wait=wait)
    async with stepper.join([0] * 9) as outputs:
        with outside(), pytest.raises(asc.QueueFull, match="no room for the 200 bytes"):
            await stepper.join([0] * 2).__aenter__()
        assert (stepper.statistics().members, stepper.statistics().admitting) == (1, 0)
        assert [output async for output in outputs] == [9]
    async with stepper.join([0] * 2) as outputs:
        assert [output async for output in outputs] == [2]
    with pytest.raises(ValueError, match="wait= is for"):
        asc.Stepper(step, wait=1)
