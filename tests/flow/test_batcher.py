"""Batchers: what is computed together, what is dropped, and who is told what."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from tests.waiting import cancelled, turns, until

from .asking import Panic, ask


class Model:
    """A batch function that remembers its batches, and waits at a gate while it is shut."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        await self.gate.wait()
        return [item * 10 for item in items]


@pytest.fixture
def model(s: asc.Scheduler) -> Model:
    return Model()


async def test_what_comes_in_one_turn_is_one_batch(model: Model) -> None:
    batcher = Batcher(model)
    assert await asyncio.gather(*ask(batcher, *range(5))) == [0, 10, 20, 30, 40]
    assert model.batches == [[0, 1, 2, 3, 4]]
    assert await batcher(7) == 70
    assert model.batches[1:] == [[7]]


async def test_a_batch_is_what_gathered_while_the_one_before_was_computed(model: Model) -> None:
    batcher = Batcher(model)
    model.gate.clear()
    first = ask(batcher, 0)
    await until(lambda: bool(model.batches))
    rest = ask(batcher, 1, 2)
    await until(lambda: batcher.statistics().waiting == 2)
    rest += ask(batcher, 3)
    await until(lambda: batcher.statistics().waiting == 3)
    assert model.batches == [[0]]
    assert repr(batcher) == "Batcher(Model, 3 waiting, 1 computing)"
    model.gate.set()
    assert await asyncio.gather(*first, *rest) == [0, 10, 20, 30]
    assert model.batches == [[0], [1, 2, 3]]


async def test_batches_are_bounded_by_cost_and_keep_the_order(model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=10, cost=float)
    await asyncio.gather(*ask(batcher, 4, 6, 1, 10, 9, 2))
    assert model.batches == [[4, 6], [1], [10], [9], [2]]
    found = batcher.statistics()
    assert (found.items, found.answered, found.batches, found.largest_batch) == (6, 6, 5, 2)
    assert (found.waiting, found.waiting_cost, found.computing) == (0, 0, 0)
    with pytest.raises(asc.TaskTooLarge, match="costs 11, and a batch at most 10 "):
        await batcher(11)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite number of at least 0"):
            await batcher(wrong)


async def test_several_batches_at_a_time(model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_batch_cost=1, concurrency=2)
    asked = ask(batcher, *range(5))
    await until(lambda: len(model.batches) == 2)
    await turns(20)
    assert model.batches == [[0], [1]]
    model.gate.set()
    assert await asyncio.gather(*asked) == [0, 10, 20, 30, 40]


async def test_a_plain_function_runs_on_a_stream() -> None:
    threads: set[str] = set()

    def total(items: list[Any]) -> Any:
        threads.add(threading.current_thread().name)
        return np.stack(items).sum(axis=1)

    async with asc.Scheduler("cpu"):
        batcher: Batcher[Any, Any] = Batcher(total)
        assert [int(x) for x in await asyncio.gather(*ask(batcher, *np.eye(3, 4)))] == [1, 1, 1]
        assert await Batcher(partial(sorted, reverse=True))("b") == "b"
    assert threading.current_thread().name not in threads


async def test_tensors_may_be_items_of_a_coroutine_function(s: asc.Scheduler) -> None:
    async def model(rows: list[asc.Tensor]) -> Any:
        return await asc.sum(asc.stack(rows), axis=1).numpy()

    x = await s.put(np.ones((2, 3)))
    assert await asyncio.gather(*ask(Batcher(model), x[0], x[1] * 2)) == [3, 6]


async def test_an_exception_among_the_results_goes_to_its_caller_alone() -> None:
    async with asc.Scheduler("cpu"):

        async def model(items: list[int]) -> list[Any]:
            return [ValueError("odd") if item % 2 else item for item in items] + []

        first, second, third = await asyncio.gather(*ask(Batcher(model), 0, 1, 2), return_exceptions=True)
        assert (first, third) == (0, 2)
        assert isinstance(second, ValueError)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
async def test_what_the_function_raises_goes_to_its_batch(plain: bool) -> None:
    def fails(items: list[Any]) -> list[Any]:
        if "bad" in items:
            raise LookupError("no such thing")
        return items

    async def fails_too(items: list[Any]) -> list[Any]:
        return fails(items)

    async with asc.Scheduler("cpu"):
        batcher: Batcher[Any, Any] = Batcher(fails if plain else fails_too, max_batch_cost=2)
        found = await asyncio.gather(*ask(batcher, "a", "bad", "b"), return_exceptions=True)
        assert [type(one) for one in found] == [LookupError, LookupError, str]
        assert batcher.statistics().answered == 3


class Table:
    """Its length is that of its rows, and iterating gives its columns, as with pandas."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter("abc")


async def test_odd_results() -> None:
    async with asc.Scheduler("cpu"):
        for returned, error, text in (
            ([1], ValueError, "2 items and returned 1"),
            (None, TypeError, "one per item, not NoneType"),
            ({1: "a", 2: "b"}, TypeError, "one per item, not dict"),
            ({"a", "b"}, TypeError, "one per item, not set"),
            (Table(), ValueError, "2 items and returned 3"),
            ([StopIteration(1), StopIteration(2)], RuntimeError, "StopIteration"),
            ([asyncio.CancelledError(), asyncio.CancelledError()], RuntimeError, "CancelledError"),
        ):

            async def model(items: list[Any], returned: Any = returned) -> Any:
                return returned

            for found in await asyncio.gather(*ask(Batcher(model), 1, 2), return_exceptions=True):
                assert isinstance(found, error)
                assert text in str(found)


async def test_a_cancellation_that_is_the_functions_own_cancels_no_caller() -> None:
    async with asc.Scheduler("cpu"):

        async def model(items: list[Any]) -> Any:
            raise asyncio.CancelledError

        batcher: Batcher[int, Any] = Batcher(model)
        with pytest.raises(asc.TaskCancelled, match="ended in a CancelledError"):
            await batcher(1)


async def test_failures_that_the_function_did_not_await_reach_its_callers(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> Any:
        s.submit_nowait(lambda: 1 // 0)
        return items

    batcher: Batcher[int, Any] = Batcher(model)
    with pytest.raises(ExceptionGroup, match="nobody awaited"):
        await batcher(1)


@pytest.mark.parametrize("how", ["coroutine", "plain", "not awaited"])
async def test_what_is_no_exception_of_pythons_own_kind_reaches_the_callers_too(s: asc.Scheduler, how: str) -> None:
    def fails(items: list[Any]) -> list[Any]:
        if "bad" in items:
            raise Panic
        return items

    async def awaits_or_not(items: list[Any]) -> list[Any]:
        if how == "coroutine":
            return fails(items)
        s.submit_nowait(fails, items)
        return items

    batcher: Batcher[Any, Any] = Batcher(fails if how == "plain" else awaits_or_not, max_batch_cost=2)
    found = await asyncio.gather(*ask(batcher, "a", "bad", "b"), return_exceptions=True)
    assert [type(one) for one in found] == [BaseExceptionGroup if how == "not awaited" else Panic] * 2 + [str]


async def test_cancelled_items_leave_the_queue_and_are_never_computed(model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_queue=3)
    asked = ask(batcher, 0)
    await until(lambda: bool(model.batches))
    asked += ask(batcher, 1, 2, 3)
    await until(lambda: batcher.statistics().waiting == 3)
    asked[1].cancel()
    asked[3].cancel()
    await until(lambda: batcher.statistics().waiting == 1)
    assert batcher.statistics().waiting_cost == 1
    asked += ask(batcher, 4, 5)  # there is room again
    model.gate.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [item for item in found if not isinstance(item, BaseException)] == [0, 20, 40, 50]
    assert model.batches == [[0], [2, 4, 5]]
    assert batcher.statistics().dropped == 2


async def test_cancelled_in_the_turn_it_came_or_before_its_first_step(model: Model) -> None:
    batcher = Batcher(model)
    for count in range(4):
        (task,) = ask(batcher, count)
        await turns(count)
        await cancelled(task)
    assert await batcher(9) == 90
    found = batcher.statistics()
    assert found.items == found.answered + found.dropped
    assert found.waiting == found.computing == 0


async def test_past_its_deadline_an_item_is_dropped_before_the_loop_could_tell_its_caller(
    s: asc.Scheduler, model: Model
) -> None:
    batcher = Batcher(model)

    async def late() -> None:
        end = time.monotonic() + 0.1
        async with s.scope(deadline=0.1), s.scope(deadline=3600):
            while time.monotonic() < end + 0.01:
                pass  # the loop cannot tell the time meanwhile
            await batcher(1)

    task = asyncio.create_task(late())
    with pytest.raises(asc.DeadlineExceeded):
        await task
    assert model.batches == []
    assert batcher.statistics().dropped == 1
    async with s.scope(deadline=3600):
        assert await batcher(2) == 20


async def test_started_in_a_scope_whose_deadline_has_passed_a_caller_is_told(s: asc.Scheduler, later: Any) -> None:
    left, batcher = asyncio.Event(), Batcher(Model())

    async def refresh() -> Any:
        await left.wait()
        return await batcher(1)

    async with s.scope(deadline=1800):
        task = asyncio.create_task(refresh())
    left.set()
    later()
    with pytest.raises(asc.DeadlineExceeded, match="outlives a scope"):
        await task
    assert batcher.statistics().dropped == 1


async def test_a_deadline_that_passes_before_the_stream_is_free_is_told(s: asc.Scheduler, later: Any) -> None:
    gate = threading.Event()
    batcher: Batcher[int, int] = Batcher(list)
    busy = await s.submit(gate.wait, 60)
    async with s.scope(deadline=1800):
        (task,) = ask(batcher, 1)
        await until(lambda: batcher.statistics().computing == 1)
    later()
    gate.set()
    assert await busy
    with pytest.raises(asc.DeadlineExceeded, match="outlives a scope"):
        await task
    assert batcher.statistics().dropped == 1


async def test_dropped_before_launch_when_the_stream_was_busy(s: asc.Scheduler) -> None:
    gate, seen = threading.Event(), []

    def model(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    busy = await s.submit(gate.wait, 60)
    batcher: Batcher[int, int] = Batcher(model)
    asked = ask(batcher, 1, 2, 3)
    await until(lambda: batcher.statistics().computing == 3)
    await cancelled(asked[1])
    gate.set()
    assert await busy
    assert [await asked[0], await asked[2]] == [1, 3]
    assert seen == [[1, 3]]
    assert batcher.statistics().dropped == 1


async def test_a_caller_that_leaves_a_running_batch_is_not_waited_for(model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model)
    asked = ask(batcher, 1, 2)
    await until(lambda: bool(model.batches))
    await cancelled(asked[0])
    model.gate.set()
    assert await asked[1] == 20


async def test_a_full_queue_refuses_at_once_and_says_how_long(model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=1, max_queue=2)
    await batcher(0)
    model.gate.clear()
    asked = ask(batcher, 1)
    await until(lambda: len(model.batches) == 2)
    asked += ask(batcher, 2, 3)
    await until(lambda: batcher.statistics().waiting == 2)
    with pytest.raises(asc.QueueFull, match=r"2 items wait .*max_queue") as caught:
        await batcher(4)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 0
    assert batcher.statistics().refused == 1
    model.gate.set()
    assert await asyncio.gather(*asked) == [10, 20, 30]
    assert await batcher(5) == 50


async def test_with_max_wait_a_full_batch_does_not_wait(model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=3, max_wait=3600)
    asked = ask(batcher, 1, 2)
    await until(lambda: batcher.statistics().waiting == 2)
    await turns(20)
    assert model.batches == []
    asked += ask(batcher, 3)
    assert await asyncio.gather(*asked) == [10, 20, 30]
    assert model.batches == [[1, 2, 3]]
    await asyncio.gather(*ask(batcher, *range(6)))
    assert model.batches[1:] == [[0, 1, 2], [3, 4, 5]]


async def test_with_max_wait_a_lone_item_goes_when_its_time_is_over(model: Model) -> None:
    assert await Batcher(model, max_batch_cost=3, max_wait=0.01)(1) == 10


async def test_while_it_waits_for_more_everyone_may_leave(model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=3, max_wait=0.01, concurrency=2)
    asked = ask(batcher, 1, 2)
    await until(lambda: batcher.statistics().waiting == 2)
    for task in asked:
        task.cancel()
    assert await asyncio.gather(*asked, return_exceptions=True)
    assert await batcher(3) == 30
    assert model.batches == [[3]]


async def test_a_runner_that_is_cancelled_while_it_waits_for_more_tells_the_callers() -> None:
    async with asc.Scheduler("cpu"):
        batcher = Batcher(Model(), max_batch_cost=3, max_wait=3600)
        asked, before = ask(batcher, 1, 2), asyncio.all_tasks()
        await until(lambda: batcher.statistics().waiting == 2 and asyncio.all_tasks() != before)
        (runner,) = asyncio.all_tasks() - before
        await asyncio.sleep(0)
        runner.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [asyncio.CancelledError] * 2


async def test_a_batcher_outlives_the_scope_that_it_was_made_in(s: asc.Scheduler, model: Model) -> None:
    async with s.scope(deadline=3600):
        batcher = Batcher(model)
        assert await batcher(1) == 10
    async with s.scope():
        assert await batcher(2) == 20


async def test_a_batch_runs_in_a_scope_of_its_own(s: asc.Scheduler) -> None:
    x = await s.put(np.ones(10_000))

    async def model(items: list[int]) -> Any:
        return [x + item for item in items]

    batcher: Batcher[int, asc.Tensor] = Batcher(model)
    y = None
    with pytest.raises(LookupError):
        async with s.scope():
            y = await batcher(1)
            raise LookupError  # cancels what is unfinished in the caller's scope
    assert y is not None
    assert (await y)[0] == 2


async def test_nothing_is_left_when_the_queue_is_empty(s: asc.Scheduler) -> None:
    model, before = Model(), asyncio.all_tasks()
    batcher = Batcher(model, concurrency=3)
    for _ in range(3):
        await asyncio.gather(*ask(batcher, *range(50)))
    await until(lambda: asyncio.all_tasks() == before)
    gc.collect()
    assert s._runtime.engine.root.children == {}
    assert s.statistics().bytes_retained == 0


async def test_without_a_scheduler_the_callers_are_told() -> None:
    batcher = Batcher(Model())
    found = await asyncio.gather(*ask(batcher, *range(40)), return_exceptions=True)
    assert {type(one) for one in found} == {asc.SchedulerClosed}
    assert (batcher.statistics().answered, batcher.statistics().computing) == (40, 0)


def test_when_the_loop_ends_so_do_the_callers() -> None:
    ended: list[str] = []

    async def main() -> None:
        async with asc.Scheduler("cpu") as s:
            model = Model()
            model.gate.clear()
            batcher = Batcher(model, max_batch_cost=1, scheduler=s)

            async def one(item: int) -> None:
                try:
                    await batcher(item)
                except asyncio.CancelledError:
                    ended.append("cancelled")
                    raise

            tasks = [asyncio.create_task(one(item)) for item in range(3)]
            await until(lambda: bool(model.batches))
            runners = asyncio.all_tasks() - {asyncio.current_task(), *tasks}  # type: ignore[arg-type]
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*tasks, *runners, return_exceptions=True)

    asyncio.run(main())
    assert ended == ["cancelled"] * 3


def test_a_batcher_belongs_to_one_loop() -> None:
    async def use() -> None:
        async with asc.Scheduler("cpu"):
            await batcher("x")

    batcher = Batcher(Model())
    asyncio.run(use())
    with pytest.raises(RuntimeError, match="one for each loop"):
        asyncio.run(use())


def test_bad_arguments() -> None:
    for wrong, error in (
        ({"max_batch_cost": 0}, ValueError),
        ({"max_batch_cost": float("inf")}, ValueError),
        ({"max_wait": -1}, ValueError),
        ({"max_queue": 0}, ValueError),
        ({"concurrency": 0}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(wrong))):
            Batcher(sorted, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function of a list"):
        Batcher(3)  # type: ignore[arg-type]


async def ask_as(s: asc.Scheduler, batcher: Batcher[Any, Any], item: Any, **whose: Any) -> Any:
    async with s.scope(**whose):
        return await batcher(item)


async def served(s: asc.Scheduler, items: list[tuple[Any, dict[str, Any]]], **options: Any) -> list[Any]:
    """The items in the order in which they are computed, one by one, where all have gathered behind the first."""
    model = Model()
    model.gate.clear()
    batcher = Batcher(model, **({"max_batch_cost": 1} | options))
    asked = []
    for item, whose in [(0, {}), *items]:
        before = batcher.statistics().items
        asked.append(asyncio.create_task(ask_as(s, batcher, item, **whose)))
        await until(lambda before=before: batcher.statistics().items > before)
    model.gate.set()
    await asyncio.gather(*asked)
    assert not batcher._queue._items
    assert not batcher._queue._tenants
    return [item for batch in model.batches for item in batch][1:]


async def test_tenants_take_turns(s: asc.Scheduler) -> None:
    many: list[tuple[Any, dict[str, Any]]] = [(i, {"tenant": "many"}) for i in range(1, 7)]
    few: list[tuple[Any, dict[str, Any]]] = [(i, {"tenant": "few"}) for i in (10, 20)]
    assert await served(s, many + few) == [1, 10, 2, 20, 3, 4, 5, 6]
    nobody: list[tuple[Any, dict[str, Any]]] = [(i, {}) for i in (7, 8, 9)]
    assert await served(s, nobody + few) == [7, 10, 8, 20, 9]


async def test_tenants_share_by_cost_and_weight(s: asc.Scheduler) -> None:
    dear: list[tuple[Any, dict[str, Any]]] = [(3, {"tenant": "dear"})] * 3
    cheap: list[tuple[Any, dict[str, Any]]] = [(1, {"tenant": "cheap"})] * 6
    assert await served(s, dear + cheap, cost=abs, max_batch_cost=3) == [3, 1, 1, 1, 3, 1, 1, 1, 3]
    heavy: list[tuple[Any, dict[str, Any]]] = [(i, {"tenant": "heavy", "weight": 2}) for i in range(1, 7)]
    light: list[tuple[Any, dict[str, Any]]] = [(i, {"tenant": "light"}) for i in (10, 20, 30)]
    assert await served(s, heavy + light) == [1, 10, 2, 20, 3, 4, 30, 5, 6]


async def test_a_tenant_that_comes_later_has_saved_nothing_up(s: asc.Scheduler, model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=1)
    for i in range(5):
        await ask_as(s, batcher, i, tenant="early")
    model.gate.clear()
    asked = [asyncio.create_task(ask_as(s, batcher, -1))]
    await until(lambda: len(model.batches) == 6)
    for i in (1, 2, 3):
        for whose in ("late", "early"):
            asked.append(asyncio.create_task(ask_as(s, batcher, i if whose == "late" else 10 * i, tenant=whose)))
            await until(lambda: batcher.statistics().items == 5 + len(asked))
    model.gate.set()
    await asyncio.gather(*asked)
    assert [batch[0] for batch in model.batches[6:]] == [1, 10, 2, 20, 3, 30]


async def test_what_was_cancelled_is_not_charged_to_its_tenant(s: asc.Scheduler, model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_batch_cost=1)
    asked = []
    for item, tenant in [(0, "x"), (1, "a"), (2, "a"), (3, "a"), (10, "b"), (20, "b")]:
        asked.append(asyncio.create_task(ask_as(s, batcher, item, tenant=tenant)))
        await until(lambda: batcher.statistics().items == len(asked))
    for gone in asked[1:3]:
        await cancelled(gone)
    model.gate.set()
    assert await asyncio.gather(asked[0], *asked[3:]) == [0, 30, 100, 200]
    assert [batch[0] for batch in model.batches] == [0, 3, 10, 20]


async def test_tenants_that_are_never_seen_again_do_not_starve_who_waits_and_are_forgotten(s: asc.Scheduler) -> None:
    asked: list[asyncio.Task[Any]] = []
    served: list[int] = []
    remembered: list[int] = []
    gathered = asyncio.Event()

    async def model(items: list[int]) -> list[int]:
        await gathered.wait()
        served.extend(items)
        remembered.append(len(batcher._queue._tenants))
        if len(served) < 100:
            await come()
        return items

    batcher: Batcher[int, int] = Batcher(model, max_batch_cost=1)
    context = contextvars.copy_context()  # not that of a batch

    async def come(tenant: str | None = None) -> None:
        item = len(asked)
        request = ask_as(s, batcher, item, tenant=tenant or f"new {item}")
        asked.append(asyncio.create_task(request, context=context.copy()))
        await until(lambda: batcher.statistics().items > item)

    for tenant in (None, "patient", "patient", None, None):
        await come(tenant)
    gathered.set()
    await until(lambda: len(served) >= 100)
    await asyncio.gather(*asked)
    assert served.index(2) < 15
    assert max(remembered) < 15


async def test_who_has_left_leaves_no_tenant(s: asc.Scheduler, model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_batch_cost=1)
    asked = [asyncio.create_task(ask_as(s, batcher, i, tenant=i)) for i in range(10)]
    await until(lambda: batcher.statistics().waiting == 9)
    for gone in asked[1:]:
        gone.cancel()
    await asyncio.wait(asked[1:])
    assert not batcher._queue._tenants
    assert not batcher._queue._shares
    model.gate.set()
    assert await asked[0] == 0
