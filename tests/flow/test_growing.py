"""Scopes whose reserve grows page by page, and who is told to give it back when they wait for each other."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime import stall
from tests.ledger import engine_of
from tests.waiting import cancelled, turns, until

PAGE = 1000


@pytest.fixture
async def s(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asc.Scheduler]:
    """One of eight pages, which never looks at who holds bytes: what is told here is told at once."""
    for pause in ("FIRST_LOOK", "FIRST_LOG"):
        monkeypatch.setattr(stall, pause, 1e6)
    async with asc.Scheduler("cpu", max_bytes=8 * PAGE) as scheduler:
        yield scheduler
        found = scheduler.statistics()
        assert (found.bytes_reserved, found.reserves_waiting, found.bytes_waiting) == (0, 0, 0)
        assert not engine_of(scheduler).root.children


class Cache:
    """A coroutine with a scope that grows as it is asked to."""

    def __init__(self, s: asc.Scheduler, name: str, pages: int = 1, **options: Any) -> None:
        self.scope = s.scope(name=name, reserve=pages * PAGE, **options)
        self.asked = asyncio.Event()
        self.told: asc.Preempted | None = None
        self.pages = 0
        self.more = 0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self.scope:
                self.pages += 1
                while True:
                    await self.asked.wait()
                    self.asked.clear()
                    if not self.more:
                        return
                    await self.scope.grow(self.more * PAGE)
                    self.pages += self.more
                    self.more = 0
        except asc.Preempted as told:
            self.told = told

    async def asks(self, pages: int = 1) -> None:
        self.more = pages
        self.asked.set()
        await turns()

    async def ends(self) -> None:
        self.more = 0
        self.asked.set()
        await self.task


async def entered(s: asc.Scheduler, *names: str, pages: int = 1, **options: Any) -> list[Cache]:
    found = []
    for name in names:
        found.append(cache := Cache(s, name, pages, **options))
        await until(lambda cache=cache: cache.pages)  # type: ignore[misc]
    return found


async def test_what_waits_inside_goes_on_when_the_reserve_has_grown(s: asc.Scheduler) -> None:
    async with s.scope(reserve=PAGE) as cache:
        first = await cache.put(np.zeros(PAGE // 8))
        waiting = asyncio.create_task(cache.put(np.ones(PAGE // 8)))
        await turns()
        assert not waiting.done()
        await cache.grow(f"{PAGE} B")
        second = await waiting
        del waiting
        assert s.statistics().bytes_reserved == s.load().bytes_tracked == 2 * PAGE
        assert (await second - await first).sum() == PAGE // 8
        del first, second


async def test_sequences_that_grow_page_by_page_all_end(s: asc.Scheduler) -> None:
    """Twelve of six pages each, where eight pages fit; the oldest of those inside goes on whatever happens."""
    told: Counter[int] = Counter()
    order: list[int] = []

    async def sequence(number: int) -> int:
        reserve = PAGE
        while True:
            try:
                async with s.scope(name=f"sequence {number}", reserve=reserve) as cache:
                    pages = [await cache.put(np.full(PAGE // 8, number))]
                    while len(pages) < 6:
                        if PAGE * len(pages) == reserve:
                            await cache.grow(PAGE)
                            reserve += PAGE
                        pages.append(await cache.put(np.full(PAGE // 8, number)))
                    order.append(number)
                    return int(sum([(await page)[0] for page in pages]))
            except asc.Preempted as error:
                assert f"'sequence {number}'" in str(error)
                assert error.reserve is not None
                assert error.reserve > reserve - PAGE
                told[number] += 1
                reserve = error.reserve
            finally:
                pages = []

    assert await asyncio.gather(*map(sequence, range(12))) == [6 * number for number in range(12)]
    assert sorted(order) == list(range(12))
    assert told
    assert told[0] == 0
    assert max(told.values()) <= 5  # it has a page more each time
    assert s.statistics().scopes_preempted == told.total()


async def test_the_youngest_is_told_when_all_that_have_grown_wait(s: asc.Scheduler) -> None:
    a, b, c = await entered(s, "a", "b", "c")
    for cache in (a, b, c, a, b):
        await cache.asks()  # eight
    for cache in (c, a):
        await cache.asks()
        assert not c.told
    await b.asks()
    assert c.told
    assert (a.told, b.told) == (None, None)
    assert (a.pages, b.pages) == (4, 4)
    await a.ends()
    await b.ends()


@pytest.mark.parametrize("priorities", [(0, 0, 0), (0, 5, 5), (0, -1, 0)], ids=str)
async def test_of_the_lowest_class_the_youngest(s: asc.Scheduler, priorities: tuple[int, ...]) -> None:
    caches = []
    for name, priority in zip("abc", priorities, strict=True):
        caches += await entered(s, name, pages=2, priority=priority)
    last = min(reversed(caches), key=lambda cache: priorities[caches.index(cache)])
    await asyncio.gather(*[cache.asks(3) for cache in caches])
    await until(lambda: any(cache.told for cache in caches))
    assert [cache.told is not None for cache in caches] == [cache is last for cache in caches]
    assert last.told is not None
    assert last.told.reserve == 5 * PAGE
    assert (last.told.limit, last.told.needed) == (8 * PAGE, 15 * PAGE)
    for cache in caches:
        await cache.ends()


async def test_one_that_goes_on_is_waited_for(s: asc.Scheduler) -> None:
    a, b, c = await entered(s, "a", "b", "c", pages=2)
    await c.asks(2)  # eight
    await a.asks()
    await b.asks()
    assert (a.told, b.told, a.pages, b.pages) == (None, None, 1, 1)
    await c.ends()
    await until(lambda: a.pages + b.pages == 4)
    await a.ends()
    await b.ends()


async def test_one_that_keeps_its_pages_for_long_is_not(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = await entered(s, "a", "b", "c", pages=2)
    await c.asks(2)
    newcomer = Cache(s, "newcomer", pages=4)
    await turns()  # it is stuck from now on: who grows later is looked at all the same
    monkeypatch.setattr(stall, "FIRST_LOOK", 0.01)
    await a.asks()
    await b.asks()
    await until(lambda: b.told)
    assert (a.told, c.told) == (None, None)
    await until(lambda: a.pages == 2)
    for cache in (a, b, c, newcomer):
        await cache.ends()


async def test_who_waits_to_grow_is_told_while_a_search_for_holders_is_under_way(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    searches = threading.Event()

    def investigate(*_: Any, **__: Any) -> dict[Any, Any]:
        searches.set()
        assert gate.wait(60)
        return {}

    monkeypatch.setattr(stall, "PROBABLE", 0.0)
    monkeypatch.setattr(stall, "investigate", investigate)
    a, b = await entered(s, "a", "b", pages=4)
    newcomer = Cache(s, "newcomer")
    await until(searches.is_set)
    await asyncio.gather(a.asks(), b.asks())
    await until(lambda: b.told)
    gate.set()
    await until(lambda: a.pages == 2)
    for cache in (a, b, newcomer):
        await cache.ends()


async def test_what_does_not_grow_is_no_reason_to_wait(s: asc.Scheduler) -> None:
    """A model's own reserve, and its weights, stay for ever."""
    weights = await s.put(np.ones(PAGE // 8))
    own, a, b = *await entered(s, "model", pages=3), *await entered(s, "a", "b", pages=2)
    await asyncio.gather(a.asks(), b.asks())
    assert b.told
    await until(lambda: a.pages == 2)
    await a.ends()
    await own.ends()
    del weights


async def test_alone_it_waits_for_room(s: asc.Scheduler) -> None:
    kept = [await s.put(np.ones(PAGE // 8)) for _ in range(6)]
    (cache,) = await entered(s, "cache", pages=2)
    newcomer = Cache(s, "newcomer")
    await cache.asks()
    assert cache.pages == 1
    kept.pop()
    await until(lambda: cache.pages == 2)
    assert not newcomer.pages  # it came sooner, and goes later
    kept.clear()
    await until(lambda: newcomer.pages)
    await cache.ends()
    await newcomer.ends()


async def test_who_does_not_leave_is_told_once_and_then_the_next(s: asc.Scheduler) -> None:
    names: list[str] = []

    async def stubborn(name: str) -> None:
        async with s.scope(name=name, reserve=4 * PAGE) as cache:
            await turns()
            while names != ["b", "a"]:
                try:
                    await cache.grow(PAGE)
                except asc.Preempted:
                    names.append(name)

    await asyncio.gather(stubborn("a"), stubborn("b"))
    assert names == ["b", "a"]


async def test_where_all_were_told_it_is_a_deadlock_like_any(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "FIRST_LOOK", 0.01)
    errors: list[type] = []

    async def stubborn() -> None:
        async with s.scope(reserve=4 * PAGE) as cache:
            for _ in range(3):
                try:
                    await cache.grow(PAGE)
                except asc.MemoryDeadlockError as error:
                    errors.append(type(error))

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(stubborn())
    assert sorted(kind.__name__ for kind in errors)[:1] == ["MemoryDeadlockError"]
    assert Counter(errors)[asc.Preempted] == 2


async def test_it_is_told_wherever_it_is_awaited(s: asc.Scheduler) -> None:
    old, young = await entered(s, "old", "young", pages=4)
    growing = asyncio.create_task(old.scope.grow(PAGE))
    with pytest.raises(asc.Preempted, match=r"'young'.*s\.scope\(reserve=6000\)"):
        await young.scope.grow(2 * PAGE)
    await young.ends()
    await growing
    await old.ends()


async def test_within_a_reserve_those_inside_share_it(s: asc.Scheduler) -> None:
    async with s.scope(reserve=4 * PAGE) as around, around.scope(reserve=PAGE) as inner:
        with pytest.raises(asc.TaskTooLarge, match="grown by 4,000 bytes, needs 5,000 bytes, and the limit is 4,000"):
            await inner.grow(4 * PAGE)
        await inner.grow(3 * PAGE)
        assert s.load().bytes_tracked == 4 * PAGE


async def test_cancelled_while_it_waits_to_grow(s: asc.Scheduler) -> None:
    kept = await s.put(np.ones(PAGE // 8))
    async with s.scope(reserve=7 * PAGE) as cache:
        for _ in range(5):
            task = asyncio.create_task(cache.grow(PAGE))
            await turns()
            assert s.statistics().bytes_waiting == PAGE
            await cancelled(task)
        assert s.statistics().bytes_reserved == 7 * PAGE
        late = asyncio.create_task(cache.grow(PAGE))
        await turns()
        del kept
        engine_of(s).dispatch()
        await cancelled(late)  # in the turn that granted it
        assert s.load().bytes_tracked == 7 * PAGE
        await cache.grow(PAGE)


@pytest.mark.parametrize("error", [None, LookupError])
async def test_who_waits_to_grow_a_scope_that_is_left_is_told(s: asc.Scheduler, error: Any) -> None:
    kept = await s.put(np.ones(PAGE // 8))
    try:
        async with s.scope(name="left", reserve=7 * PAGE) as cache:
            task = asyncio.create_task(cache.grow(PAGE))
            await turns()
            if error is not None:
                raise error
    except LookupError:
        pass
    with pytest.raises(asc.TaskCancelled, match="the end of scope 'left'"):
        await task
    with pytest.raises(asc.SchedulerClosed, match="'left' is closed"):
        await cache.grow(PAGE)
    del kept, task


async def test_bad_input(s: asc.Scheduler) -> None:
    async with s.scope(name="bare") as bare:
        with pytest.raises(RuntimeError, match=r"'bare' has no reserve .*s\.scope\(reserve="):
            await bare.grow(1)
    with pytest.raises(RuntimeError, match="not entered"):
        await s.scope(reserve=1).grow(1)
    async with s.scope(reserve=1) as cache:
        for wrong in (0, -1, "much"):
            with pytest.raises(ValueError, match="nbytes"):
                await cache.grow(wrong)
        with pytest.raises(TypeError, match="nbytes"):
            await cache.grow(1.5)  # type: ignore[arg-type]
        with pytest.raises(asc.TaskTooLarge, match="limit is 8,000") as caught:
            await cache.grow(8 * PAGE)
        assert (caught.value.needed, caught.value.limit) == (8 * PAGE + 1, 8 * PAGE)


async def test_a_scheduler_that_closes_takes_back_what_waits() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * PAGE) as s:
        kept = await s.put(np.ones(PAGE // 8))
        scope = await s.scope(reserve=PAGE).__aenter__()
        task = asyncio.create_task(scope.grow(PAGE))
        await turns()
        with pytest.raises(TimeoutError):
            await s.aclose(timeout=0.01)
    with pytest.raises(asc.TaskCancelled):
        await task
    del kept, task


async def test_members_of_a_stepper_leave_it_to_grow_and_all_end(s: asc.Scheduler) -> None:
    """A step gives `Last` where a member's page is full; it joins again with another page, or starts over."""

    def step(texts: list[list[int]]) -> list[Any]:
        for text in texts:
            text.append(len(text))
        return [asc.Last(text[-1]) if len(text) % 4 == 0 else text[-1] for text in texts]

    stepper: asc.Stepper[list[int], int] = asc.Stepper(step)
    told = 0

    async def generate(length: int) -> list[int]:
        nonlocal told
        reserve, sent, text = PAGE, list[int](), list[int]()
        while True:
            try:
                async with s.scope(name="cache", reserve=reserve) as cache:
                    while len(text) < length:
                        if len(text) == 4 * reserve // PAGE:
                            await cache.grow(PAGE)
                            reserve += PAGE
                        async with stepper.join(text) as outputs:
                            sent += [output async for output in outputs]
                    return sent
            except asc.Preempted as error:
                told += 1
                assert error.reserve is not None
                reserve = error.reserve

    assert await asyncio.gather(*[generate(24) for _ in range(6)]) == [list(range(24))] * 6
    assert told
    assert stepper.statistics().members == 0


@pytest.mark.parametrize("seed", range(4))
async def test_clients_that_come_grow_and_leave_when_they_like_leave_nothing(s: asc.Scheduler, seed: int) -> None:
    chance = random.Random(seed)
    ended: Counter[str] = Counter()

    async def client(pages: int, wait: float | None, priority: int) -> None:
        reserve = PAGE
        while True:
            try:
                async with s.scope(reserve=reserve, wait=wait, priority=priority) as cache:
                    await s.call(int)
                    for _ in range(pages - reserve // PAGE):
                        await cache.grow(PAGE)
                        await s.call(int)
                ended["done"] += 1
                return
            except asc.Preempted as told:
                assert told.reserve is not None
                reserve, wait = told.reserve, None
            except asc.QueueFull:
                ended["refused"] += 1
                return

    tasks = []
    for _ in range(120):
        options = chance.randint(1, 7), chance.choice([None, None, 0, 0.001]), chance.choice([0, 0, 1])
        tasks.append(asyncio.create_task(client(*options)))
        await turns(chance.randint(0, 20))
        if chance.random() < 1 / 3:
            chance.choice(tasks).cancel()
    await asyncio.wait(tasks)
    ended["cancelled"] = sum(task.cancelled() for task in tasks)
    assert ended.total() == len(tasks)
    assert [task.exception() for task in tasks if not task.cancelled()] == [None] * (120 - ended["cancelled"])
    assert ended["done"]
