"""Batchers, and reserves: those of callers, of a batch, and of the scope that batches run in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from asyncsched.serving import Serving
from tests.waiting import cancelled, outside, turns, until

MIB = 1 << 20
BATCHERS: list[dict[str, Any]] = [{}, {"concurrency": 2}, {"isolate": True}, {"max_batch_cost": 1}]
BATCHERS += [{"max_batch_cost": 1, "concurrency": 2}]


@pytest.fixture
async def s(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asc.Scheduler]:
    """One that looks soon at who is stuck: most tests here wait for that."""
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 0.01)
    monkeypatch.setattr("asyncsched.runtime.stall.PROBABLE", 0.05)
    async with asc.Scheduler("cpu", max_bytes=MIB) as scheduler:
        yield scheduler


@pytest.fixture(params=["puts", "calls", "plain"])
def makes_arrays(request: pytest.FixtureRequest, s: asc.Scheduler) -> Any:
    """A batch function whose results take bytes."""

    async def puts(items: list[Any]) -> list[Any]:
        return [await s.put(np.full(1000, item)) for item in items]

    async def calls(items: list[Any]) -> list[Any]:
        return [await s.call(np.full, 1000, item) for item in items]

    def plain(items: list[Any]) -> list[Any]:
        return [np.full(1000, item) for item in items]

    return {"puts": puts, "calls": calls, "plain": plain}[request.param]


async def reserving(
    s: asc.Scheduler, batcher: Batcher[Any, Any], count: int, deadline: float | None = None
) -> list[Any]:
    """What callers get that hold their reserves when the first asks."""
    entered = asyncio.Barrier(count)

    async def one(item: int) -> int:
        async with s.scope(reserve=MIB // 4, deadline=deadline):
            await entered.wait()
            answer = await batcher(item)
            found = int((await answer if isinstance(answer, asc.Tensor) else answer)[0])
            del answer
            return found

    return await asyncio.gather(*map(one, range(count)), return_exceptions=True)


@pytest.mark.parametrize("options", BATCHERS, ids=str)
async def test_a_batch_with_a_reserve_has_bytes_beside_its_callers(
    s: asc.Scheduler, makes_arrays: Any, options: dict[str, Any]
) -> None:
    batcher: Batcher[Any, Any] = Batcher(makes_arrays, reserve=MIB // 4, **options)
    assert await reserving(s, batcher, 3) == [0, 1, 2]
    assert await reserving(s, batcher, 3) == [0, 1, 2]
    assert s.statistics().bytes_reserved == 0


@pytest.mark.parametrize("options", BATCHERS, ids=str)
async def test_a_caller_whose_reserve_leaves_its_batch_no_room_is_told(
    s: asc.Scheduler, makes_arrays: Any, options: dict[str, Any]
) -> None:
    batcher: Batcher[Any, Any] = Batcher(makes_arrays, reserve="256 KiB", **options)
    found = await reserving(s, batcher, 4)
    (last,) = [one for one in found if isinstance(one, asc.MemoryDeadlockError)]
    assert all(one == i for i, one in enumerate(found) if one is not last)
    assert last.limit == MIB
    assert last.needed >= 5 * MIB // 4
    assert "reserved by scope" in str(last)
    statistics = batcher.statistics()
    assert (statistics.waiting, statistics.computing) == (0, 0)


@pytest.mark.parametrize("options", BATCHERS, ids=str)
async def test_without_a_reserve_of_the_batch_too(s: asc.Scheduler, options: dict[str, Any]) -> None:
    async def puts(items: list[Any]) -> list[Any]:
        return [await s.put(np.full(1000, item)) for item in items]

    found = await reserving(s, Batcher(puts, **options), 4)
    assert sorted(type(one).__name__ for one in found) == ["MemoryDeadlockError", "int", "int", "int"]


async def test_what_a_batch_makes_beyond_its_reserve_is_too_large(s: asc.Scheduler) -> None:
    async def puts(items: list[Any]) -> list[Any]:
        return [await s.put(np.ones(10_000)) for _ in items]

    with pytest.raises(asc.TaskTooLarge, match="reserve"):
        await Batcher(puts, reserve=1000)(1)


async def test_nobody_is_told_whom_others_may_yet_make_room_for(s: asc.Scheduler) -> None:
    async def puts(items: list[Any]) -> list[Any]:
        return [await s.put(np.full(1000, item)) for item in items]

    kept = [await s.put(np.ones(3 * MIB // 32))]  # three quarters
    asked = asyncio.create_task(reserving(s, Batcher(puts), 1))
    await until(lambda: s.statistics().tasks_pending)
    await turns()
    assert not asked.done()
    kept.clear()
    assert await asked == [0]


async def test_a_reserve_counts_only_while_its_own_coroutine_waits(s: asc.Scheduler) -> None:
    async def puts(items: list[Any]) -> list[Any]:
        return [await s.put(np.full(1000, item)) for item in items]

    batcher: Batcher[int, Any] = Batcher(puts)

    async def one() -> Any:
        return await batcher(1)

    async with s.scope(reserve=MIB):
        asked = asyncio.create_task(one())
        await until(lambda: s.statistics().tasks_pending)
        await turns()
        assert not asked.done()
    assert (await (await asked))[0] == 1  # this scope was left sooner
    del asked


async def test_a_batcher_of_a_scope_uses_its_reserve(s: asc.Scheduler, makes_arrays: Any) -> None:
    async with s.scope(reserve=MIB // 4) as own:
        batcher: Batcher[Any, Any] = Batcher(makes_arrays, scheduler=own)
        with outside():
            assert await reserving(s, batcher, 3) == [0, 1, 2]

        async def puts(items: list[Any]) -> list[Any]:
            return [await s.put(np.ones(MIB // 16)) for _ in items]

        with pytest.raises(asc.TaskTooLarge, match="is 262,144"):
            await Batcher(puts, scheduler=own)(1)
        with pytest.raises(asc.TaskTooLarge, match="300,000 bytes, and the limit is 262,144"):
            Batcher(puts, scheduler=own, reserve=300_000)
    with pytest.raises(asc.SchedulerClosed, match="is closed"):
        await batcher(1)


async def test_what_can_never_fit_is_refused_where_it_is_set_up(s: asc.Scheduler) -> None:
    for options in ({"scheduler": s}, {}):  # it is the only one on this loop
        with pytest.raises(asc.TaskTooLarge, match="2,097,152 bytes, and the limit is 1,048,576"):
            Batcher(sorted, reserve="2 MiB", **options)  # type: ignore[arg-type]
    for wrong in (0, -1, "much"):
        with pytest.raises(ValueError, match="reserve"):
            Batcher(sorted, reserve=wrong)
    loop = asyncio.get_running_loop()  # on another thread no scheduler is known
    later: Batcher[int, int] = await loop.run_in_executor(None, lambda: Batcher(sorted, reserve="2 MiB"))
    with pytest.raises(asc.TaskTooLarge, match="needs 2,097,152 bytes"):
        await later(1)


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("reserve", "of_a_batch"), [("2 MiB", None), (None, "2 MiB"), ("768 KiB", "512 KiB")], ids=["own", "batch", "both"]
)
async def test_a_server_refuses_to_start_where_no_request_could_be_answered(
    may_block: None, reserve: Any, of_a_batch: Any
) -> None:
    def make() -> asc.Scheduler:
        return asc.Scheduler("cpu", max_bytes=MIB)

    batcher: Batcher[int, int] = Batcher(sorted, reserve=of_a_batch)
    with pytest.raises(asc.TaskTooLarge, match="a request with its batch"):
        async with Serving(nothing, make, reserve=reserve, batchers={"sorted": batcher}).open():
            pass


async def test_a_runner_that_waits_for_its_reserve_and_is_cancelled_tells_its_callers(s: asc.Scheduler) -> None:
    batcher: Batcher[int, int] = Batcher(sorted, reserve=MIB)

    async def one(item: int) -> int:
        return await batcher(item)

    kept = await s.put(np.ones(1000))
    asked = [asyncio.create_task(one(item)) for item in range(3)]
    await until(lambda: s.load().bytes_pending)
    (runner,) = [task for task in asyncio.all_tasks() if task.get_name() == "batches of sorted"]
    await cancelled(runner)
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in found} == {asyncio.CancelledError}
    assert batcher.statistics().computing == 0
    del kept
    assert await batcher(1) == 1


async def test_where_callers_have_reserved_what_a_batch_lacks_another_reserve_is_no_cure(s: asc.Scheduler) -> None:
    async def keeps_some(items: list[int]) -> list[asc.Tensor]:
        x = await s.put(np.ones(20_000))
        return [await s.call(np.copy, x + item) for item in items]

    found = await reserving(s, Batcher(keeps_some, scheduler=s), 3)
    assert [type(error) for error in found] == [asc.MemoryDeadlockError] * 3
    assert "reserve less at a time, or reserve also for waiting tasks (`Batcher(reserve=)`" in str(found[0])
    assert "s.scope(reserve=...)" not in str(found[0])
    found.clear()
