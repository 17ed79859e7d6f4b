"""How the tenants of a batcher share it."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from typing import Any

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from tests.waiting import cancelled, until

from .asking import Model, tenants_of


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
    assert batcher.statistics().waiting == 0
    assert tenants_of(batcher) == {}
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


async def test_the_highest_priority_goes_first_and_no_other_starves(s: asc.Scheduler) -> None:
    low: list[tuple[Any, dict[str, Any]]] = [(i, {"priority": -1}) for i in (1, 2)]
    usual: list[tuple[Any, dict[str, Any]]] = [(i, {"tenant": "a"}) for i in (10, 11, 12)]
    usual += [(i, {"tenant": "b"}) for i in (20,)]
    high: list[tuple[Any, dict[str, Any]]] = [(i, {"tenant": "a", "priority": 2}) for i in range(100, 120)]
    order = await served(s, low + usual + high)
    assert order == [*range(100, 116), 10, 1, 116, 117, 118, 119, 20, 11, 12, 2]


async def test_a_batch_is_filled_from_the_highest_class_down(s: asc.Scheduler, model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_batch_cost=4)
    asked = [asyncio.create_task(batcher(0))]
    await until(lambda: batcher.statistics().computing)
    for priority in (-1, -1, 0, 0, 1, 1, 1):
        asked.append(asyncio.create_task(ask_as(s, batcher, priority, priority=priority)))
        await until(lambda: batcher.statistics().items == len(asked))
    model.gate.set()
    await asyncio.gather(*asked)
    assert model.batches == [[0], [1, 1, 1, 0], [0, -1, -1]]


async def test_tenants_that_are_never_seen_again_do_not_starve_who_waits_and_are_forgotten(s: asc.Scheduler) -> None:
    asked: list[asyncio.Task[Any]] = []
    served: list[int] = []
    remembered: list[int] = []
    gathered = asyncio.Event()

    async def model(items: list[int]) -> list[int]:
        await gathered.wait()
        served.extend(items)
        remembered.append(sum(map(len, tenants_of(batcher).values())))
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
    assert tenants_of(batcher) == {}
    model.gate.set()
    assert await asked[0] == 0


async def test_steps_have_the_highest_priority_first_and_let_no_other_starve(s: asc.Scheduler) -> None:
    steps: list[list[str]] = []
    gate = asyncio.Event()

    async def step(members: list[list[str]]) -> list[Any]:
        await gate.wait()
        steps.append([member[0] for member in members])
        return [asc.Last() if len(steps) > 200 else asc.SKIP for _ in members]

    stepper: asc.Stepper[list[str], None] = asc.Stepper(step, max_cost=4)

    async def one(name: str, priority: int) -> list[None]:
        async with s.scope(priority=priority, tenant=name), stepper.join([name]) as outputs:
            return [output async for output in outputs]

    tasks = [asyncio.create_task(one(*whose)) for whose in [("high", 1)] * 5 + [("usual", 0)] * 9]
    await until(lambda: stepper.statistics().members == len(tasks))
    gate.set()
    assert await asyncio.gather(*tasks) == [[]] * len(tasks)
    had = Counter(name for step in steps[30:200] for name in step)
    assert had == {"high": 640, "usual": 40}


async def test_a_batch_has_a_share_for_each_that_waits_for_it() -> None:
    """As if they came without a batcher."""
    shares = list[float]()

    class Shares(asc.observe.Instrument):
        def scope_opened(self, scope: Any) -> None:
            if scope.name.startswith("batch of"):
                shares.append(scope.queue.tenant.weight)

    async with asc.Scheduler("cpu", instruments=[Shares()]):
        batcher = Batcher(list, max_batch_cost=2)
        await asyncio.gather(*[batcher(item) for item in range(5)])
    assert shares == [5, 3, 1]
