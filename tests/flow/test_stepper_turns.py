"""Steppers: who is in a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.waiting import until

from .stepping import Model, Text, advance, read


def costs(members: list[Text]) -> list[float]:
    return sorted(member.cost for member in members)


async def stepped(stepper: Stepper[Text, int], model: Model, texts: list[Text], steps: int) -> list[list[Text]]:
    """The first steps that all of these have a chance to be in."""
    model.gate.clear()
    tasks = [asyncio.create_task(read(stepper, text)) for text in texts]
    await until(lambda: stepper.statistics().members == len(texts))
    seen = len(model.steps)
    model.gate.set()
    await until(lambda: len(model.steps) >= seen + steps)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return model.steps[seen : seen + steps]


async def test_all_go_where_all_fit_and_a_prompt_where_there_is_room(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model, max_cost=40, cost=lambda text: text.cost)
    texts = [Text(999) for _ in range(8)] + [Text(999, cost=32)]
    assert [costs(step) for step in await stepped(stepper, model, texts, 5)] == [[1] * 8 + [32]] * 5


async def test_a_prompt_goes_not_before_others_tokens_and_is_not_starved(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model, max_cost=16, cost=lambda text: text.cost)
    prompt = Text(9999, cost=16)
    streams = [Text(9999) for _ in range(16)]
    steps = await stepped(stepper, model, [prompt, *streams], 170)
    with_prompt = [i for i, step in enumerate(steps) if prompt in step]
    assert 9 <= len(with_prompt) <= 11  # one for each 16 of a stream's
    assert all(step == [prompt] or prompt not in step for step in steps)
    assert np.diff(with_prompt).min() >= 15  # so no stream waits two steps running


class Prompt(Text):
    """A text with a prompt that is read in so many parts."""

    def __init__(self, cost: float, parts: int) -> None:
        super().__init__(9999, cost)
        self.parts = parts

    def advance(self) -> Any:
        self.parts -= 1
        if self.parts > 0:
            return asc.SKIP
        self.cost = 1.0
        return super().advance()


async def beside_streams(streams: list[Text], prompts: list[Prompt], max_cost: float) -> list[dict[Text, float]]:
    """What each of the steps cost from which on prompts were read beside streams, until all were."""
    spent = list[dict[Text, float]]()

    async def step(members: list[Text]) -> list[Any]:
        spent.append({member: member.cost for member in members})
        return advance(members)

    stepper: Stepper[Text, int] = Stepper(step, max_cost=max_cost, cost=lambda text: text.cost)
    tasks = [asyncio.create_task(read(stepper, text)) for text in streams]
    await until(lambda: stepper.statistics().begun == len(streams))
    tasks += [asyncio.create_task(read(stepper, prompt)) for prompt in prompts]
    await until(lambda: stepper.statistics().begun == len(tasks))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    first = next(i for i, each in enumerate(spent) if set(prompts) & set(each))
    last = max(i for i, each in enumerate(spent) if max(each.values()) > 1)
    return spent[first : last + 1]


async def test_prompts_that_come_together_take_the_room_that_tokens_leave(s: asc.Scheduler) -> None:
    streams, prompts = [Text(9999) for _ in range(8)], [Prompt(16, parts=2) for _ in range(6)]
    steps = await beside_streams(streams, prompts, 40)
    assert all(set(streams) <= set(step) for step in steps)
    assert sum([*step.values()].count(16) for step in steps) == 12
    assert 6 <= len(steps) <= 12
    assert max(sum(step.values()) for step in steps) <= 40


async def test_where_tokens_leave_no_room_a_prompt_goes_now_and_then(s: asc.Scheduler) -> None:
    streams, prompts = [Text(9999) for _ in range(16)], [Prompt(16, parts=2) for _ in range(2)]
    steps = await beside_streams(streams, prompts, 16)
    read = [i for i, step in enumerate(steps) if not set(streams) & set(step)]
    assert len(read) == 4
    assert set(np.diff(read)) == {17}


async def test_members_of_a_tenant_get_equal_shares_of_cost(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model, max_cost=4, cost=lambda text: text.cost)
    texts = [Text(9999, cost=c) for c in (1, 1, 2, 2, 4, 4)]
    steps = (await stepped(stepper, model, texts, 340))[100:]  # all have begun
    spent = [sum(text.cost for step in steps for text in step if text is one) for one in texts]
    assert max(spent) - min(spent) <= 8
    assert sum(spent) >= 4 * 240 * 0.9


@asynccontextmanager
async def tenant_members(
    s: asc.Scheduler, stepper: Stepper[Text, int], numbers: dict[Any, int], **options: Any
) -> AsyncIterator[dict[Any, list[Text]]]:
    async def one(text: Text, tenant: Any) -> None:
        async with s.scope(tenant=tenant, weight=options.get(tenant)):
            await read(stepper, text)

    texts = {tenant: [Text(99999) for _ in range(number)] for tenant, number in numbers.items()}
    tasks = [asyncio.create_task(one(text, tenant)) for tenant, those in texts.items() for text in those]
    try:
        await until(lambda: stepper.statistics().members == len(tasks))
        yield texts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_tenants_share_a_step_by_weight_however_many_members_they_have(s: asc.Scheduler) -> None:
    model = Model()
    model.gate.clear()
    stepper: Stepper[Text, int] = Stepper(model, max_cost=6)
    async with tenant_members(s, stepper, {"many": 30, "few": 2, "heavy": 30}, heavy=2.0) as texts:
        model.gate.set()
        await until(lambda: len(model.steps) > 300)
        steps = model.steps[100:300]
    got = {whose: sum(text in those for step in steps for text in step) for whose, those in texts.items()}
    assert sum(got.values()) == 6 * 200
    assert got["few"] == pytest.approx(300, abs=8)  # a quarter, of which two members hold it
    assert got["heavy"] == pytest.approx(600, abs=8)
    assert model.steps[200].count(texts["few"][0]) <= 1


async def test_who_was_paused_has_saved_nothing_up(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model, max_cost=2, ahead=1)
    sleeper = Text(999)
    async with stepper.join(sleeper) as outputs:
        await until(lambda: stepper.statistics().paused == 1)
        others = [asyncio.create_task(read(stepper, Text(9999))) for _ in range(3)]
        await until(lambda: len(model.steps) > 200)
        at = len(model.steps)
        for _ in range(20):
            await anext(outputs)
        took = len(model.steps) - at
        assert sleeper.step <= 22
        assert took >= 20  # not every step is its own
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def test_a_cost_that_grows_too_large_or_raises_ends_its_member_alone(s: asc.Scheduler, step: Any) -> None:
    def cost(text: Text) -> float:
        if text.length == 7 and text.step == 2:
            raise LookupError("of the user's")
        return 99 if text.length == 8 and text.step == 3 else 1

    stepper: Stepper[Text, int] = Stepper(step, cost=cost, max_cost=9)
    found = await asyncio.gather(*[read(stepper, Text(n)) for n in (6, 7, 8)], return_exceptions=True)
    assert found[0] == [0, 1, 2, 3, 4, 5]
    assert isinstance(found[1], LookupError)
    assert isinstance(found[2], asc.TaskTooLarge)
    assert "a member costs 99, and a step at most 9 (max_cost)" in str(found[2])
    with pytest.raises(asc.TaskTooLarge, match="a member costs 10"):
        await read(Stepper(advance, max_cost=9, cost=lambda _: 10), Text(1))
