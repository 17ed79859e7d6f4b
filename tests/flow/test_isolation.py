"""Batchers that isolate: what makes a batch fail is found, and fails alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from math import ceil, log2
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from tests.waiting import cancelled, held, turns, until

from .asking import Panic, ask


class Guilty(Exception):
    """Raised for a batch with a bad item."""


class Model:
    """Doubles its items, raises if one is bad, and remembers its batches. It waits at a gate while that is shut."""

    def __init__(self, *bad: Any) -> None:
        self.bad = bad
        self.batches: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def compute(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        if found := [item for item in items if item in self.bad]:
            raise Guilty(*found)
        return [2 * item for item in items]

    async def __call__(self, items: list[Any]) -> list[Any]:
        await self.gate.wait()
        return self.compute(items)


@pytest.fixture(params=["plain", "coroutine"])
def isolating(request: pytest.FixtureRequest) -> Callable[..., Batcher[Any, Any]]:
    """Makes a batcher of a model: of its method, which runs on a stream, or of itself."""
    plain = request.param == "plain"

    def make(model: Model, **options: Any) -> Batcher[Any, Any]:
        return Batcher(model.compute if plain else model, **({"max_batch_cost": 256, "isolate": True} | options))

    return make


async def answers(batcher: Batcher[Any, Any], *items: Any) -> list[Any]:
    return await asyncio.gather(*ask(batcher, *items), return_exceptions=True)


def settled(batcher: Batcher[Any, Any]) -> bool:
    found = batcher.statistics()
    return found.items == found.answered + found.dropped and found.computing == found.waiting == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 32, 100])
async def test_one_guilty_item_fails_alone(s: asc.Scheduler, isolating: Any, count: int) -> None:
    for guilty in {0, count // 3, count - 1}:
        model = Model(guilty)
        batcher = isolating(model)
        found = await answers(batcher, *range(count))
        assert [one for i, one in enumerate(found) if i != guilty] == [2 * i for i in range(count) if i != guilty]
        assert isinstance(found[guilty], Guilty)
        assert found[guilty].args == (guilty,)
        extra = len(model.batches) - 1
        assert extra <= 2 * ceil(log2(count)) <= max(0, 4 * log2(count))
        assert (batcher.statistics().batches, batcher.statistics().retries) == (1, extra)
        assert settled(batcher)


@pytest.mark.parametrize("guilty", [2, 3, 5, 16, 32])
async def test_several_guilty_items_fail_alone_each_by_its_own_error(
    s: asc.Scheduler, isolating: Any, guilty: int
) -> None:
    bad = [(7 * i) % 32 for i in range(guilty)]
    model = Model(*bad)
    batcher = isolating(model)
    found = await answers(batcher, *range(32))
    assert [one.args if isinstance(one, Guilty) else one for one in found] == [
        (i,) if i in bad else 2 * i for i in range(32)
    ]
    assert len(model.batches) - 1 <= min(2 * guilty * 5, 2 * 32 - 2)
    assert settled(batcher)


async def test_when_all_are_guilty_each_item_is_computed_a_few_times_more(s: asc.Scheduler, isolating: Any) -> None:
    model = Model(*range(64))
    assert [one.args for one in await answers(isolating(model), *range(64))] == [(i,) for i in range(64)]
    assert len(model.batches) == 1 + 2 * 64 - 2
    assert sum(map(len, model.batches)) == 64 * (1 + 6)


async def test_rows_of_different_lengths(s: asc.Scheduler) -> None:
    def total(rows: list[Any]) -> Any:
        return np.stack(rows) @ np.ones(4)

    batcher: Batcher[Any, Any] = Batcher(total, isolate=True)
    found = await answers(batcher, *[np.ones(3 if i == 5 else 4) for i in range(12)])
    assert [one for i, one in enumerate(found) if i != 5] == [4] * 11
    assert isinstance(found[5], ValueError)


async def test_what_leaves_no_result_for_a_bad_item_fails_that_item(s: asc.Scheduler) -> None:
    def filters(items: list[int]) -> list[int]:
        return [item for item in items if item != 3]

    found = await answers(Batcher(filters, isolate=True), *range(8))
    assert [one for one in found if isinstance(one, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert "1 items and returned 0 results" in str(found[3])


async def test_failures_that_the_function_did_not_await_are_isolated_too(s: asc.Scheduler) -> None:
    async def model(items: list[int]) -> list[int]:
        for item in items:
            s.submit_nowait(lambda item: 1 // item, item)
        return items

    found = await answers(Batcher(model, isolate=True), 1, 2, 0, 3)
    assert [one for one in found if isinstance(one, int)] == [1, 2, 3]
    assert isinstance(found[2], ExceptionGroup)


async def test_off_by_default_a_batch_is_computed_once(s: asc.Scheduler) -> None:
    model = Model(1)
    found = await answers(Batcher(model), 0, 1, 2)
    assert [type(one) for one in found] == [Guilty] * 3
    assert model.batches == [[0, 1, 2]]


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Panic()], ids=repr)
async def test_what_is_no_exception_fails_all_callers_at_once_and_not_the_loop(
    s: asc.Scheduler, error: BaseException, isolate: bool, plain: bool
) -> None:
    ran = []

    def fails(items: list[Any]) -> list[Any]:
        ran.append(items)
        if "bad" in items:
            raise error
        return items

    async def fails_too(items: list[Any]) -> list[Any]:
        return fails(items)

    batcher: Batcher[Any, Any] = Batcher(fails if plain else fails_too, isolate=isolate)
    found = await answers(batcher, "a", "bad", "b")
    kind = Panic if isinstance(error, Panic) else RuntimeError
    assert [type(one) for one in found] == [kind] * 3
    assert kind is Panic or f"a batch raised {error!r}" in str(found[0])
    assert ran == [["a", "bad", "b"]]
    assert await batcher("c") == "c"
    assert settled(batcher)


async def test_a_result_that_would_end_the_loop_fails_its_caller(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> list[Any]:
        return [SystemExit(item) if item else item for item in items]

    zero, one = await answers(Batcher(model), 0, 1)
    assert zero == 0
    assert isinstance(one, RuntimeError)
    assert isinstance(one.__cause__, SystemExit)


async def test_callers_that_get_the_same_exception_get_copies(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> list[Any]:
        error = LookupError("for all")
        error.add_note("a note")
        raise error

    first, second = await answers(Batcher(model), 1, 2)
    assert first is not second
    first.add_note("mine")
    assert (first.__notes__, second.__notes__) == (["a note", "mine"], ["a note"])
    assert first.args == second.args == ("for all",)


async def test_who_leaves_meanwhile_is_left_out_of_the_next_part(s: asc.Scheduler) -> None:
    model = Model(0)
    batcher: Batcher[Any, Any] = Batcher(model, isolate=True)
    asked = ask(batcher, *range(8))
    await until(lambda: model.batches)
    model.gate.clear()
    await turns()
    await cancelled(asked[1])
    await cancelled(asked[6])
    model.gate.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [found[i] for i in (2, 3, 4, 5, 7)] == [4, 6, 8, 10, 14]
    assert isinstance(found[0], Guilty)
    computed_again = [item for batch in model.batches[2:] for item in batch]  # one part was under way
    assert 6 not in computed_again
    assert [0] in model.batches
    assert settled(batcher)


async def test_when_all_have_left_nothing_is_computed_again(s: asc.Scheduler) -> None:
    model = Model(0)
    batcher: Batcher[Any, Any] = Batcher(model, isolate=True)
    model.gate.clear()
    asked = ask(batcher, *range(8))
    await until(lambda: batcher.statistics().computing == 8)
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    model.gate.set()
    await until(lambda: settled(batcher))
    assert model.batches == [list(range(8))]
    assert batcher.statistics().retries == 0


async def test_a_deadline_that_passes_between_two_parts_is_told(s: asc.Scheduler, later: Any) -> None:
    model = Model(0)
    batcher: Batcher[Any, Any] = Batcher(model, isolate=True)
    model.gate.clear()
    async with s.scope(deadline=1800):
        hurried = ask(batcher, 0, 1)
        await until(lambda: batcher.statistics().items == 2)
    patient = ask(batcher, 2, 3)
    await until(lambda: batcher.statistics().items == 4)
    model.gate.set()
    await until(lambda: model.batches)
    later()
    for task in hurried:
        with pytest.raises(asc.DeadlineExceeded, match="start longer work outside"):
            await task
    assert await asyncio.gather(*patient) == [4, 6]
    assert batcher.statistics().dropped == 2
    assert settled(batcher)


async def test_closed_meanwhile_the_callers_are_told() -> None:
    async with asc.Scheduler("cpu") as s:
        model = Model(0)
        batcher: Batcher[Any, Any] = Batcher(model, isolate=True, scheduler=s)
        model.gate.clear()
        asked = ask(batcher, *range(8))
        await until(lambda: batcher.statistics().computing == 8)
        await s.aclose()
        model.gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in found} == {asc.SchedulerClosed}
        assert model.batches == [list(range(8))]
        assert settled(batcher)


async def test_a_runner_that_is_cancelled_tells_those_that_wait_to_be_computed_again(s: asc.Scheduler) -> None:
    model = Model(0)
    batcher: Batcher[Any, Any] = Batcher(model, isolate=True)
    model.gate.clear()
    asked = ask(batcher, *range(8))
    await until(lambda: batcher.statistics().computing == 8)
    model.gate.set()
    await until(lambda: model.batches)
    model.gate.clear()
    await turns()
    (runner,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("batches of ")]
    await cancelled(runner)
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in found} <= {asyncio.CancelledError, int}
    assert batcher.statistics().computing == 0


async def test_parts_take_turns_with_the_batches_that_form_meanwhile(s: asc.Scheduler) -> None:
    model = Model(0)
    batcher: Batcher[Any, Any] = Batcher(model, max_batch_cost=4, isolate=True)
    model.gate.clear()
    asked = ask(batcher, *range(4), *range(10, 22))
    await until(lambda: batcher.statistics().items == 16)
    model.gate.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in found if isinstance(one, int)] == [2, 4, 6, *range(20, 44, 2)]
    first, *rest = model.batches
    assert first == [0, 1, 2, 3]
    assert rest == [[0, 1], [10, 11, 12, 13], [2, 3], [14, 15, 16, 17], [0], [18, 19, 20, 21], [1]]


async def test_a_part_waits_for_admission_behind_what_others_submitted() -> None:
    gate, order = threading.Event(), []

    def fails_first(items: list[int]) -> list[int]:
        held(gate)
        order.append(len(items))
        if len(items) > 2:
            raise Guilty
        return items

    async with asc.Scheduler("cpu", max_ops=1) as s:
        batcher: Batcher[int, int] = Batcher(fails_first, isolate=True)
        asked = ask(batcher, 1, 2, 3, 4)
        await until(lambda: s.statistics().tasks_in_flight == 1)
        async with s.scope(tenant="other") as scope:
            for _ in range(2):
                scope.submit_nowait(order.append, "other")
            gate.set()
            assert await asyncio.gather(*asked) == [1, 2, 3, 4]
    assert order[:2] == [4, "other"]


async def test_several_runners_share_the_parts(s: asc.Scheduler) -> None:
    model = Model(*range(0, 32, 3))
    batcher: Batcher[Any, Any] = Batcher(model, isolate=True, concurrency=4)
    found = await answers(batcher, *range(32))
    assert [one for one in found if isinstance(one, int)] == [2 * i for i in range(32) if i % 3]
    assert settled(batcher)


@pytest.mark.parametrize("seed", range(10))
async def test_at_random_each_caller_hears_its_own(s: asc.Scheduler, isolating: Any, seed: int) -> None:
    chance = np.random.default_rng(seed)
    bad = {int(i) for i in chance.integers(0, 200, chance.integers(0, 20))}
    model = Model(*bad)
    batcher = isolating(model, max_batch_cost=int(chance.integers(1, 40)), concurrency=int(chance.integers(1, 4)))
    asked = []
    for i in range(200):
        asked += ask(batcher, i)
        await turns(int(chance.integers(0, 3)))
        if chance.random() < 0.1:
            asked[int(chance.integers(0, len(asked)))].cancel()
    for i, one in enumerate(await asyncio.gather(*asked, return_exceptions=True)):
        if not isinstance(one, asyncio.CancelledError):
            assert (one.args == (i,)) if i in bad else (one == 2 * i)
    await until(lambda: settled(batcher))
