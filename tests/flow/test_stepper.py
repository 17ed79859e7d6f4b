"""Steppers: who is in a step, what members get of it, and when they may leave."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.ledger import engine_of, used
from tests.waiting import (
    cancelled,
    eager_tasks,
    held,
    no_collector,
    no_tasks,
    outlasts_cancellations,
    outside,
    tasks_made_by,
    turns,
    until,
)

from .asking import Panic


class Text:
    """A member that counts from 0, so many times."""

    def __init__(self, length: int, cost: float = 1) -> None:
        self.length, self.cost, self.step = length, cost, 0

    def advance(self) -> Any:
        self.step += 1
        return asc.Last(self.step - 1) if self.step == self.length else self.step - 1


def reading_next(outputs: Any) -> asyncio.Task[int]:
    """A task that reads one output."""

    async def one() -> int:
        found: int = await anext(outputs)
        return found

    return asyncio.create_task(one())


class Model:
    """A step that remembers whom it had, and waits at a gate while it is shut."""

    def __init__(self) -> None:
        self.steps: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, members: list[Any]) -> list[Any]:
        self.steps.append(members)
        await self.gate.wait()
        return [member.advance() for member in members]


def advance(members: list[Any]) -> list[Any]:
    """A step on a stream."""
    return [member.advance() for member in members]


async def advance_on_the_loop(members: list[Any]) -> list[Any]:
    return advance(members)


STEPS: dict[str, Callable[[list[Any]], Any]] = {"plain": advance, "coroutine": advance_on_the_loop}


async def read(stepper: Stepper[Any, Any], member: Any) -> list[Any]:
    async with stepper.join(member) as outputs:
        return [output async for output in outputs]


@pytest.fixture(params=STEPS)
def step(request: pytest.FixtureRequest) -> Callable[[list[Any]], Any]:
    return STEPS[request.param]


# -- outputs ----------------------------------------------------------------------------------------------------------


async def test_each_member_gets_its_outputs_in_order(s: asc.Scheduler, step: Any) -> None:
    stepper: Stepper[Text, int] = Stepper(step)
    found = await asyncio.gather(*[read(stepper, Text(n)) for n in (3, 1, 5)])
    assert found == [[0, 1, 2], [0], [0, 1, 2, 3, 4]]
    told = stepper.statistics()
    assert (told.members, told.stepping, told.waiting, told.paused, told.admitting) == (0, 0, 0, 0, 0)
    assert (told.joined, told.begun, told.failed, told.outputs, told.stepped) == (3, 3, 0, 9, 9)
    assert 5 <= told.steps <= 9
    assert told.first_seconds > 0
    assert told.gap_seconds >= told.longest_gap > 0
    assert repr(stepper).endswith("0 members: 0 in a step, 0 paused)")


async def test_tasks_may_be_eager(limited: asc.Scheduler, step: Any) -> None:
    with eager_tasks():
        for reserve in (None, lambda text: 1000 + 500 * text.step):
            stepper: Stepper[Text, int] = Stepper(step, reserve=reserve)
            assert await read(stepper, Text(3)) == [0, 1, 2]


async def test_a_task_factory_that_fails_leaves_nobody_in_the_queue(s: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance)
    with tasks_made_by(no_tasks), pytest.raises(LookupError):
        await read(stepper, Text(3))
    told = stepper.statistics()
    assert (told.members, told.stepping, told.waiting) == (0, 0, 0)
    assert await read(stepper, Text(3)) == [0, 1, 2]


async def test_members_join_and_leave_between_steps(s: asc.Scheduler) -> None:
    model, a, b = Model(), Text(9), Text(2)
    stepper: Stepper[Text, int] = Stepper(model)
    async with stepper.join(a) as of_a:
        assert await anext(of_a) == 0
        model.gate.clear()
        await until(lambda: len(model.steps) == 2)
        other = asyncio.create_task(read(stepper, b))
        await until(lambda: stepper.statistics().waiting == 1)
        assert repr(stepper) == "Stepper(Model, 2 members: 1 in a step, 0 paused)"
        model.gate.set()
        assert await other == [0, 1]
    assert model.steps[0] == model.steps[1] == [a]
    assert model.steps[2] == [b, a]  # who joined is there before who comes back
    count = len(model.steps)
    await turns()
    assert len(model.steps) == count


async def test_a_step_may_skip_a_member_and_end_it_without_an_output(s: asc.Scheduler) -> None:
    told = iter([asc.SKIP, 1, asc.SKIP, 2, asc.Last()])

    async def step(members: list[str]) -> list[Any]:
        return [next(told) for _ in members]

    stepper: Stepper[str, int] = Stepper(step)
    assert await read(stepper, "m") == [1, 2]
    assert next(told, None) is None
    assert repr(asc.SKIP) == "asyncsched.SKIP"
    with pytest.raises(TypeError, match="a member has one last output"):
        asc.Last(asc.Last(1))


async def test_an_array_is_as_many_outputs(s: asc.Scheduler) -> None:
    stepper: Stepper[list[int], Any] = Stepper(lambda rows: np.array([sum(row) for row in rows]))
    async with stepper.join([1, 2]) as first, stepper.join([3, 4]) as second:
        assert [await anext(first), await anext(second)] == [3, 7]


async def test_an_exception_among_the_outputs_ends_its_member_alone(s: asc.Scheduler) -> None:
    async def step(members: list[Text]) -> list[Any]:
        return [
            ValueError("odd") if member.length == 7 and member.step == 2 else member.advance() for member in members
        ]

    stepper: Stepper[Text, int] = Stepper(step)
    got = []

    async def odd() -> None:
        async with stepper.join(Text(7)) as outputs:
            with pytest.raises(ValueError, match="odd"):
                async for output in outputs:
                    got.append(output)
            assert [output async for output in outputs] == []

    assert (await asyncio.gather(odd(), read(stepper, Text(6))))[1] == [0, 1, 2, 3, 4, 5]
    assert got == [0, 1]
    assert stepper.statistics().failed == 1


@pytest.mark.parametrize("error", [LookupError("no such thing"), Panic()], ids=["Exception", "no Exception"])
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "coroutine"])
async def test_what_a_step_raises_ends_its_members_and_no_others(
    s: asc.Scheduler, plain: bool, error: BaseException
) -> None:
    def step(members: list[Text]) -> list[Any]:
        if any(member.length == 13 for member in members):
            raise error
        return advance(members)

    async def step_on_the_loop(members: list[Text]) -> list[Any]:
        return step(members)

    stepper: Stepper[Text, int] = Stepper(step if plain else step_on_the_loop, max_cost=2)
    texts = [Text(13), Text(4), Text(5), Text(3)]
    found = await asyncio.gather(*[read(stepper, text) for text in texts], return_exceptions=True)
    assert [type(one) for one in found[:2]] == [type(error)] * 2
    assert found[0] is not found[1]
    assert found[2:] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert await read(stepper, Text(2)) == [0, 1]


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        ([1], ValueError, "2 members and returned 1 outputs: return one per member, in order"),
        ([1, 2, 3], ValueError, "2 members and returned 3 outputs"),
        (None, TypeError, "a list of outputs, one per member, not NoneType"),
        (np.array(1.0), TypeError, "not a single number"),
        ([asc.Last, asc.Last], TypeError, "the class Last: use `asc.Last(output)`"),
        ([StopIteration(1), StopIteration(1)], RuntimeError, "StopIteration"),
        ([asyncio.CancelledError(), asyncio.CancelledError()], RuntimeError, "CancelledError"),
    ],
)
async def test_what_is_no_list_of_outputs_is_told_to_the_members(
    s: asc.Scheduler, returned: Any, error: type[Exception], text: str
) -> None:
    async def step(members: list[Any]) -> Any:
        return returned

    stepper: Stepper[Any, Any] = Stepper(step)
    for found in await asyncio.gather(*[read(stepper, [i]) for i in range(2)], return_exceptions=True):
        assert isinstance(found, error)
        assert text in str(found)


async def test_who_is_cancelled_while_it_waits_for_an_output_loses_none(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model)
    async with stepper.join(Text(3)) as outputs:
        got = [await anext(outputs)]
        model.gate.clear()

        for _ in range(3):
            reading = reading_next(outputs)
            await turns()
            await cancelled(reading)
        model.gate.set()
        got += [output async for output in outputs]
    assert got == [0, 1, 2]


async def test_one_coroutine_reads_at_a_time(s: asc.Scheduler) -> None:
    model = Model()
    model.gate.clear()
    stepper: Stepper[Text, int] = Stepper(model)
    async with stepper.join(Text(3)) as outputs:
        reading = reading_next(outputs)
        await turns()
        with pytest.raises(RuntimeError, match="another coroutine waits"):
            await anext(outputs)
        assert repr(outputs) == "Outputs(0 to read, going on)"
        model.gate.set()
        assert await reading == 0


async def test_of_several_that_read_an_output_at_once_none_hangs(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model, ahead=1)
    async with stepper.join(Text(3)) as outputs:
        await until(lambda: stepper.statistics().paused)
        model.gate.clear()
        reading = [reading_next(outputs) for _ in range(4)]
        await asyncio.wait(reading, return_when=asyncio.FIRST_EXCEPTION)
        model.gate.set()
        found = await asyncio.gather(*reading, return_exceptions=True)
    assert found[:2] == [0, 1]
    assert [type(one) for one in found[2:]] == [RuntimeError] * 2


# -- pausing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 2, 5])
async def test_who_does_not_read_pauses_and_others_go_on(s: asc.Scheduler, ahead: int, step: Any) -> None:
    stepper: Stepper[Text, int] = Stepper(step, ahead=ahead)
    slow = Text(20)
    async with stepper.join(slow) as outputs:
        await until(lambda: stepper.statistics().paused)
        assert slow.step == ahead
        assert repr(outputs) == f"Outputs({ahead} to read, paused)"
        assert await read(stepper, Text(30)) == list(range(30))
        assert slow.step == ahead
        assert await anext(outputs) == 0
        await until(lambda: stepper.statistics().paused)
        assert slow.step == ahead + 1
        assert [output async for output in outputs] == list(range(1, 20))
        assert repr(outputs) == "Outputs(0 to read, ended)"
    assert stepper.statistics().outputs == 50


# -- leaving ----------------------------------------------------------------------------------------------------------


class Slots:
    """A step on a stream that writes to the slot of a member at its end, and waits at a gate before."""

    def __init__(self) -> None:
        self.pool = np.zeros((2, 4), int)
        self.gate = threading.Event()
        self.begun = 0

    def __call__(self, slots: list[list[int]]) -> list[int]:
        self.begun += 1
        held(self.gate)
        for (slot,) in slots:
            self.pool[slot] += 1
        return [1] * len(slots)


async def use(stepper: Stepper[Any, Any], slot: int, left: list[int]) -> None:
    try:
        async with stepper.join([slot]) as outputs:
            async for _ in outputs:
                pass
    finally:
        left.append(slot)


async def test_leaving_waits_until_the_step_no_longer_has_the_member(s: asc.Scheduler) -> None:
    slots, left = Slots(), list[int]()
    stepper: Stepper[Any, int] = Stepper(slots)
    task = asyncio.create_task(use(stepper, 0, left))
    await until(lambda: slots.begun)
    await outlasts_cancellations(task, slots.gate, times=3)
    assert left == [0]
    after = slots.pool.copy()
    await turns()
    assert (slots.pool == after).all()
    assert stepper.statistics().members == 0
    assert used(s) == 0


async def test_an_anyio_scope_that_is_cancelled_waits_for_the_step_too(s: asc.Scheduler) -> None:
    slots, left = Slots(), list[int]()
    stepper: Stepper[Any, int] = Stepper(slots)
    opener = asyncio.get_running_loop().create_future()

    async def cancel() -> None:
        await until(lambda: slots.begun)
        scope.cancel()
        await turns()
        assert left == []
        slots.gate.set()
        opener.set_result(None)

    task = asyncio.create_task(cancel())
    with anyio.CancelScope() as scope:
        await use(stepper, 0, left)
    assert scope.cancelled_caught
    await task
    assert left == [0]


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_the_end_of_the_body_waits_too_and_its_exception_comes_out(s: asc.Scheduler, how: str) -> None:
    slots = Slots()
    stepper: Stepper[Any, int] = Stepper(slots)

    async def body() -> None:
        async with stepper.join([1]):
            await until(lambda: slots.begun)
            if how == "raises":
                raise LookupError("mine")

    task = asyncio.create_task(body())
    await until(lambda: slots.begun)
    await turns()
    assert not task.done()
    slots.gate.set()
    if how == "returns":
        await task
    else:
        with pytest.raises(LookupError, match="mine"):
            await task
    assert slots.pool[1].tolist() == [1] * 4


async def test_who_waits_for_a_step_leaves_at_once(s: asc.Scheduler) -> None:
    slots, left = Slots(), list[int]()
    stepper: Stepper[Any, int] = Stepper(slots)
    first = asyncio.create_task(use(stepper, 0, left))
    await until(lambda: slots.begun)
    second = asyncio.create_task(use(stepper, 1, left))
    await until(lambda: stepper.statistics().waiting)
    await cancelled(second)
    assert left == [1]
    await outlasts_cancellations(first, slots.gate)
    assert slots.pool[1].tolist() == [0] * 4


async def test_who_reads_elsewhere_when_the_block_is_left_is_told(s: asc.Scheduler) -> None:
    model = Model()
    model.gate.clear()
    stepper: Stepper[Text, int] = Stepper(model)
    async with stepper.join(Text(3)) as outputs:
        reading = reading_next(outputs)
        await turns()
        model.gate.set()
        await asyncio.sleep(0)
        left = outputs
        reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    with pytest.raises(RuntimeError, match="that block was left"):
        await anext(left)
    assert repr(left).endswith("left)")


async def test_a_task_that_reads_while_the_block_is_left_does_not_hang(s: asc.Scheduler) -> None:
    model = Model()
    model.gate.clear()
    stepper: Stepper[Text, int] = Stepper(model)

    async def body() -> asyncio.Task[int]:
        async with stepper.join(Text(3)) as outputs:
            reading = reading_next(outputs)
            await turns()
            return reading

    task = asyncio.create_task(body())
    await until(lambda: len(model.steps))
    await turns()
    assert not task.done()
    model.gate.set()
    with pytest.raises(RuntimeError, match="that block was left"):
        await (await task)


@pytest.mark.drops_at_once
async def test_what_a_member_holds_is_free_when_its_block_is_left(s: asc.Scheduler, step: Any) -> None:
    stepper: Stepper[Text, int] = Stepper(step)

    async def short(length: int, read_all: bool) -> weakref.ref[Text]:
        text = Text(length)
        async with stepper.join(text) as outputs:
            async for _ in outputs:
                if not read_all:
                    break
        return weakref.ref(text)

    async with stepper.join(Text(10**9)) as going_on:
        await anext(going_on)
        with no_collector():
            for read_all in (True, False):
                kept = await short(3, read_all)
                await anext(going_on)
                assert kept() is None


@pytest.mark.drops_at_once
async def test_of_a_member_that_fails_nothing_is_kept_once_its_exception_is_gone(s: asc.Scheduler, step: Any) -> None:
    def cost(text: Text) -> float:
        return 1 if text.step < 2 else 99

    stepper: Stepper[Text, int] = Stepper(step, cost=cost)
    text = Text(5)
    with no_collector():
        with pytest.raises(asc.TaskTooLarge):
            await read(stepper, text)
        kept = weakref.ref(text)
        del text
        assert kept() is None


def test_the_end_of_the_loop_ends_members_that_nobody_waits_for() -> None:
    ended: list[str] = []
    gate = threading.Event()

    async def main() -> None:
        opened = asyncio.Event()

        async def serve() -> None:
            async with asc.Scheduler("cpu"):
                opened.set()
                await asyncio.Event().wait()

        async def one(text: Text) -> None:
            try:
                await read(stepper, text)
            finally:
                ended.append("left")

        def step(texts: list[Text]) -> list[Any]:
            asyncio_loop.call_soon_threadsafe(gate.set)
            return advance(texts)

        asyncio_loop = asyncio.get_running_loop()
        stepper: Stepper[Text, int] = Stepper(step, ahead=2)
        tasks = [asyncio.create_task(serve())]
        await opened.wait()
        tasks += [asyncio.create_task(one(Text(10**9))) for _ in range(5)]
        await until(gate.is_set)

    asyncio.run(main())
    assert ended == ["left"] * 5


# -- who goes ---------------------------------------------------------------------------------------------------------


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


# -- bytes ------------------------------------------------------------------------------------------------------------


async def test_a_member_joins_when_its_reserve_is_there_and_gives_it_back(limited: asc.Scheduler, step: Any) -> None:
    stepper: Stepper[Text, int] = Stepper(step, reserve=lambda text: 1000 * text.length)
    got = list[str]()

    async def one(name: str, length: int) -> None:
        async with stepper.join(Text(length)) as outputs:
            got.append(name)
            assert limited.statistics().bytes_reserved == 1000 * length
            assert [output async for output in outputs] == list(range(length))

    await asyncio.gather(*[one(name, length) for name, length in (("a", 9), ("b", 8), ("c", 7))])
    assert got == ["a", "b", "c"]
    assert used(limited) == 0
    with pytest.raises(asc.TaskTooLarge, match="member of advance"):
        await one("d", 11)
    assert used(limited) == 0


@pytest.fixture
async def limited(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asc.Scheduler]:
    """10,000 bytes; it looks soon at who is stuck."""
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 0.01)
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:
        yield s


async def test_who_joins_in_the_block_of_another_has_a_reserve_of_its_own(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=2000, ahead=1, wait=0)
    async with limited.scope(reserve=5000), stepper.join(Text(2)) as one, stepper.join(Text(2)) as two:
        assert used(limited) == 5000
        with pytest.raises(asc.TaskTooLarge, match="2,000"):
            await limited.put(np.ones(251))
        with pytest.raises(asc.QueueFull):
            await read(stepper, Text(1))
        assert [output async for output in one] == [output async for output in two] == [0, 1]
    async with stepper.join(Text(2)), stepper.join(Text(2)):
        assert limited.statistics().bytes_reserved == 4000
    assert used(limited) == 0


class Pages(Text):
    """A text whose cache takes another 1,000 bytes with every fourth step."""

    @property
    def nbytes(self) -> int:
        return 1000 * (1 + self.step // 4)


@pytest.fixture
def pages(step: Any) -> Stepper[Pages, int]:
    return Stepper(step, ahead=1, reserve=lambda text: text.nbytes)


async def test_a_cache_grows_page_by_page(limited: asc.Scheduler, pages: Stepper[Pages, int]) -> None:
    text = Pages(20)
    async with pages.join(text) as outputs:
        async for output in outputs:
            assert limited.statistics().bytes_reserved >= 1000 * (1 + output // 4)
        assert limited.statistics().bytes_reserved == 5000
    assert used(limited) == 0


async def test_one_that_began_with_no_reserve_does_not_grow(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=lambda text: 1000 if text.step else None)  # type: ignore[arg-type,return-value]
    got = list[int]()
    async with stepper.join(Text(3)) as outputs:
        with pytest.raises(ValueError, match="a member reserved nothing as it joined, and 1,000 bytes now: begin with"):
            async for output in outputs:
                got.append(output)
    assert got == [0]


async def test_who_waits_to_grow_holds_up_nobody_else(limited: asc.Scheduler, pages: Stepper[Pages, int]) -> None:
    async with limited.scope(reserve=7000):
        with outside():
            async with pages.join(Pages(3)) as outputs:
                waiting = asyncio.create_task(read(pages, text := Pages(12)))
                await until(lambda: text.step == 8 and pages.statistics().admitting == 1)
                assert [output async for output in outputs] == [0, 1, 2]
                assert not waiting.done()
                assert "1 in a step" not in repr(pages)
            assert await waiting == list(range(12))
    assert used(limited) == 0


async def write(stepper: Stepper[Pages, int], length: int, told: list[int]) -> list[int]:
    """A text that starts over, where it left off, when it is to give its pages back."""
    text, got = Pages(length), list[int]()
    while True:
        try:
            async with stepper.join(text) as outputs:
                async for output in outputs:
                    got.append(output)
                return got
        except asc.Preempted as error:
            told.append(length)
            assert error.reserve >= text.nbytes
            assert text.nbytes > 1000


async def test_where_all_wait_to_grow_the_youngest_gives_its_pages_back(
    limited: asc.Scheduler, pages: Stepper[Pages, int]
) -> None:
    told = list[int]()
    found = await asyncio.gather(*[write(pages, length, told) for length in (30, 31, 32, 33)])
    assert found == [list(range(length)) for length in (30, 31, 32, 33)]
    assert told
    assert 30 not in told[:1]
    assert used(limited) == 0


@pytest.mark.parametrize("later_by", range(6))
async def test_who_leaves_while_it_grows_leaves_nothing(
    limited: asc.Scheduler, pages: Stepper[Pages, int], later_by: int
) -> None:
    async with limited.scope(reserve=9000):
        with outside():
            task = asyncio.create_task(read(pages, text := Pages(12)))
            await until(lambda: text.step == 4)
            await turns(later_by)
            await cancelled(task)
        assert pages.statistics().admitting == pages.statistics().members == 0
    assert used(limited) == 0


async def test_more_than_there_can_be_is_told_to_its_member(limited: asc.Scheduler, pages: Stepper[Pages, int]) -> None:
    with pytest.raises(asc.TaskTooLarge, match="member of advance.*grown by 1,000 bytes"):
        await read(pages, Pages(99))
    assert used(limited) == 0


async def test_who_does_not_want_to_wait_long_for_its_reserve_is_told(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=10_000, wait=0)
    async with stepper.join(Text(1)):
        with pytest.raises(asc.QueueFull):
            await read(stepper, Text(1))
    assert await read(stepper, Text(1)) == [0]
    with pytest.raises(ValueError, match="give `reserve=`"):
        Stepper(advance, wait=1.0)


async def test_who_waits_for_its_reserve_can_be_cancelled(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=10_000, ahead=1)
    text = Text(3)
    async with stepper.join(Text(3)) as outputs:
        waiting = asyncio.create_task(read(stepper, text))
        await until(lambda: stepper.statistics().admitting == 1 and "reserve" in limited.explain())
        told = limited.explain()
        assert (__file__ in told, "contextlib" in told) == (True, False)  # the line that joins, not what it calls
        with pytest.raises(ValueError, match="has joined already"):
            await read(stepper, text)
        await cancelled(waiting)
        assert [output async for output in outputs] == [0, 1, 2]
    assert await read(stepper, text) == [0, 1, 2]
    assert used(limited) == 0


async def test_a_step_that_lacks_bytes_which_its_own_members_reserve_is_told(limited: asc.Scheduler) -> None:
    async def step(members: list[Any]) -> list[Any]:
        x = await limited.put(np.ones(100))
        return [await x.sum().item() for _ in members]

    stepper: Stepper[Any, float] = Stepper(step, reserve=5000)
    found = await asyncio.gather(*[read(stepper, [i]) for i in range(2)], return_exceptions=True)
    assert [type(one) for one in found] == [asc.MemoryDeadlockError] * 2
    assert used(limited) == 0


async def test_who_only_waits_for_a_step_is_told_first_and_makes_room(limited: asc.Scheduler) -> None:
    async def step(members: list[Any]) -> list[Any]:
        x = await limited.put(np.ones(300))
        return [asc.Last(await x.sum().item()) for _ in members]

    stepper: Stepper[Any, float] = Stepper(step, reserve=4000, max_cost=1)
    found = await asyncio.gather(*[read(stepper, [i]) for i in range(2)], return_exceptions=True)
    assert found[0] == [300.0]
    assert isinstance(found[1], asc.MemoryDeadlockError)
    assert "`Stepper(scheduler=scope)` for steps" in str(found[1])
    assert used(limited) == 0


async def test_steps_of_a_scope_use_its_reserve(limited: asc.Scheduler) -> None:
    async with limited.scope(reserve=4000) as own:

        async def step(members: list[Any]) -> list[Any]:
            x = await limited.put(np.ones(300))
            return [asc.Last(await x.sum().item()) for _ in members]

        stepper: Stepper[Any, float] = Stepper(step, scheduler=own)
        assert await read(stepper, "m") == [300.0]


@pytest.mark.parametrize("in_block", [True, False], ids=["in the block", "in a step"])
async def test_a_donated_cache_is_charged_where_it_was_made(limited: asc.Scheduler, in_block: bool) -> None:
    zeros = np.zeros((100, 4))

    def add(cache: asc.Tensor, row: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        cache[0] = row
        return cache.sum(), cache

    added = await limited.capture(add, await limited.put(zeros), await limited.put(np.ones(4)), donate=0)

    async def step(members: list[dict[str, asc.Tensor]]) -> list[Any]:
        (member,) = members
        if not in_block:
            member["cache"] = await limited.put(zeros)
        total, member["cache"] = added(member["cache"], await limited.put(np.ones(4)))
        return [asc.Last(await total.item())]

    stepper: Stepper[dict[str, asc.Tensor], float] = Stepper(step, reserve=7000)
    member: dict[str, asc.Tensor] = {}
    with nullcontext() if in_block else pytest.raises(asc.MemoryDeadlockError):  # a step has 3,000 bytes, a cache 3,200
        async with stepper.join(member) as outputs:
            if in_block:
                member["cache"] = await limited.put(zeros)
            assert [output async for output in outputs] == [4.0]


async def test_caches_of_tensors_are_written_in_place(s: asc.Scheduler) -> None:
    """Each step writes a row of each member's cache, and gives the sum of the rows so far."""

    class Cache:
        n = 0

    caches = await s.put(np.zeros((2, 8, 4)))

    async def step(members: list[Cache]) -> Any:
        slots, rows = np.arange(len(members)), np.array([member.n for member in members])
        caches[await s.put(slots), await s.put(rows)] = await s.put((rows + 1.0)[:, None] * np.ones(4))
        for member in members:
            member.n += 1
        return await asc.sum(caches[: len(members)], axis=(1, 2)).numpy()

    stepper: Stepper[Cache, float] = Stepper(step, ahead=1)
    async with stepper.join(Cache()) as outputs:
        assert [await anext(outputs) for _ in range(4)] == [4, 12, 24, 40]


async def test_a_pytorch_module_is_a_step(s: asc.Scheduler, may_block: None) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Cumulative(torch.nn.Module):  # type: ignore[misc]
        """Each step reads the last numbers of its members, and gives them one more."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            torch.nn.init.constant_(self.layer.weight, 2.0)
            torch.nn.init.constant_(self.layer.bias, 1.0)
            self.threads = set[str]()

        def forward(self, rows: list[list[float]]) -> Any:
            self.threads.add(threading.current_thread().name)
            found = self.layer(torch.tensor([row[-1:] for row in rows]))[:, 0]
            assert not found.requires_grad
            for row, number in zip(rows, found.tolist(), strict=True):
                row.append(number)
            return found

    module = Cumulative()
    stepper: Stepper[list[float], float] = Stepper(module)
    async with stepper.join([0.0]) as one, stepper.join([1.0]) as two:
        assert [float(await anext(one)) for _ in range(3)] == [1, 3, 7]
        assert [float(await anext(two)) for _ in range(3)] == [3, 7, 15]
    assert threading.current_thread().name not in module.threads


async def test_one_made_before_any_scheduler_is_open_works_for_that_of_its_members() -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=1000)
    async with asc.Scheduler("cpu") as other, asc.Scheduler("cpu") as s:
        async with s.scope():
            assert await read(stepper, Text(2)) == [0, 1]
        assert other.statistics().tasks_completed == 0
        assert s.statistics().tasks_completed == 2


# -- the scheduler, the loop, the deadline ----------------------------------------------------------------------------


async def test_when_the_scheduler_closes_members_read_what_they_have_and_are_told(step: Any) -> None:
    async with asc.Scheduler("cpu") as s:
        stepper: Stepper[Text, int] = Stepper(step, scheduler=s, ahead=3)
        joined, closed, got = asyncio.Event(), asyncio.Event(), list[int]()

        async def one() -> None:
            async with stepper.join(Text(99)) as outputs:
                await until(lambda: stepper.statistics().paused)
                joined.set()
                await closed.wait()
                async for output in outputs:
                    got.append(output)

        task = asyncio.create_task(one())
        await joined.wait()
    closed.set()
    with pytest.raises(asc.SchedulerClosed):
        await task
    assert got == [0, 1, 2]
    with pytest.raises(asc.SchedulerClosed):
        await read(stepper, Text(1))


async def test_the_deadline_of_its_scope_ends_a_member(s: asc.Scheduler) -> None:
    model = Model()
    stepper: Stepper[Text, int] = Stepper(model)

    async def late() -> None:
        async with s.scope(deadline=0.02):
            await read(stepper, Text(10**9))

    task = asyncio.create_task(late())
    other = asyncio.create_task(read(stepper, Text(10)))
    with pytest.raises(asc.DeadlineExceeded):
        await task
    assert await other == list(range(10))


async def test_a_member_past_the_deadline_of_a_scope_it_was_started_in_is_told(s: asc.Scheduler, later: Any) -> None:
    left = asyncio.Event()
    stepper: Stepper[Text, int] = Stepper(advance)

    async def refresh() -> Any:
        await left.wait()
        return await read(stepper, Text(1))

    async with s.scope(deadline=1800):
        task = asyncio.create_task(refresh())
    left.set()
    later()
    with pytest.raises(asc.DeadlineExceeded, match="before a step had room for its member"):
        await task


async def test_a_runner_that_is_cancelled_tells_the_members(s: asc.Scheduler) -> None:
    model = Model()
    model.gate.clear()
    stepper: Stepper[Text, int] = Stepper(model, max_cost=1)
    tasks = [asyncio.create_task(read(stepper, Text(3))) for _ in range(3)]
    await until(lambda: model.steps)
    (runner,) = [task for task in asyncio.all_tasks() if task.get_name() == "steps of Model"]
    await cancelled(runner)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found] == [asc.TaskCancelled] * 3
    model.gate.set()
    assert await read(stepper, Text(2)) == [0, 1]


async def test_one_may_be_made_on_another_thread(s: asc.Scheduler, step: Any) -> None:
    stepper: Stepper[Text, int] = await asyncio.to_thread(Stepper, step)
    assert await read(stepper, Text(2)) == [0, 1]


def test_a_stepper_belongs_to_one_loop_while_that_is_open() -> None:
    async def run(text: Text) -> Any:
        async with asc.Scheduler("cpu"):
            return await read(stepper, text)

    stepper: Stepper[Text, int] = Stepper(advance)
    with asyncio.Runner() as runner:
        assert runner.run(run(Text(2))) == [0, 1]
        with pytest.raises(RuntimeError, match="one for each loop"):
            asyncio.run(run(Text(2)))
    assert asyncio.run(run(Text(3))) == [0, 1, 2]


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_explain_names_a_step_that_does_not_end(s: asc.Scheduler) -> None:
    model = Model()
    model.gate.clear()
    stepper: Stepper[Text, int] = Stepper(model)
    tasks = [asyncio.create_task(read(stepper, Text(1))) for _ in range(2)]
    await until(lambda: model.steps)
    told = s.explain()
    assert "a step of Model has 2 members since " in told
    assert "and waits at " in told
    assert "in Model.__call__" in told
    model.gate.set()
    await asyncio.gather(*tasks)
    assert "a step of" not in s.explain()


async def test_explain_says_where_a_step_on_a_stream_is(s: asc.Scheduler) -> None:
    slots, left = Slots(), list[int]()
    stepper: Stepper[Any, int] = Stepper(slots)
    task = asyncio.create_task(use(stepper, 0, left))
    await until(lambda: slots.begun)
    task.cancel()
    await turns()
    told = s.explain()
    assert "a step of Slots has 1 member since " in told
    assert "runs on cpu stream" in told
    slots.gate.set()
    with suppress(asyncio.CancelledError):
        await task


class Formed(asc.observe.Instrument):
    def __init__(self) -> None:
        self.formed: list[tuple[str, int]] = []

    def batch_formed(self, scope: Any, items: int, callers: Any) -> None:
        self.formed.append((scope.name, items))


async def test_an_instrument_is_told_of_steps(s: asc.Scheduler) -> None:
    formed = Formed()
    s.add_instrument(formed)
    assert await read(Stepper(advance), Text(2)) == [0, 1]
    assert formed.formed == [("steps of advance", 1)] * 2


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (partial(Stepper, 3), TypeError, "a function of a list of members, not int"),
        (partial(Stepper, advance, ahead=0), ValueError, "ahead must be at least 1"),
        (partial(Stepper, advance, ahead=1.5), TypeError, "ahead must be an int"),
        (partial(Stepper, advance, max_cost=0), ValueError, "max_cost must be a finite number above 0"),
        (partial(Stepper, advance, cost=3), TypeError, "cost takes a function of a member, not int"),
        (partial(Stepper, advance, reserve="much"), ValueError, "reserve='much' is no size"),
        (partial(Stepper, advance, scheduler="cpu"), TypeError, "scheduler= takes a Scheduler or a scope"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


async def test_who_joins_twice_is_told(s: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance)
    text = Text(3)
    async with stepper.join(text) as outputs:
        with pytest.raises(ValueError, match="has joined already"):
            await read(stepper, text)
        assert [output async for output in outputs] == [0, 1, 2]
    with pytest.raises(TypeError), stepper.join(text):  # type: ignore[attr-defined]
        pass


async def test_a_step_that_waits_for_its_own_stepper_is_told(s: asc.Scheduler) -> None:
    async def step(texts: list[Text]) -> list[Any]:
        return [await read(stepper, Text(1)) for _ in texts]

    stepper: Stepper[Text, int] = Stepper(step)
    with pytest.raises(RuntimeError, match="step waits for its own next step, which waits for it"):
        await read(stepper, Text(1))


# -- random programs --------------------------------------------------------------------------------------------------


class Broken(Exception):
    """What a step raises."""


class Actor(Text):
    """A member that checks that it is in one step at a time, and in none that it has left."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(int(rng.integers(1, 12)), float(rng.integers(0, 5)))
        self.kinds = rng.choice(["value", "value", "value", "skip", "error"], p=[0.3, 0.3, 0.2, 0.17, 0.03], size=99)
        self.given: list[int] = []
        self.end: Any = None
        self.busy = self.left = False

    def begin(self) -> None:
        assert not self.busy
        assert not self.left
        assert self.end is None
        self.busy = True

    def advance(self) -> Any:
        kind = self.kinds[self.step]
        if kind == "skip":
            self.step += 1
            return asc.SKIP
        if kind == "error":
            self.end = ValueError
            return ValueError("mine")
        output = super().advance()
        if isinstance(output, asc.Last):
            self.end = "last"
            self.given.append(output.value)  # type: ignore[arg-type]
        elif self.step > self.length:
            self.end = "last"
            return asc.Last()
        else:
            self.given.append(output)
        return output


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "coroutine"])
@pytest.mark.parametrize("seed", range(16))
async def test_random_programs(seed: int, plain: bool) -> None:
    rng = np.random.default_rng((seed, plain))
    fails = rng.random(10_000) < rng.choice([0, 0.05])
    steps = 0

    def compute(actors: list[Actor]) -> list[Any]:
        nonlocal steps
        steps += 1
        assert sum(actor.cost for actor in actors) <= max_cost
        for actor in actors:
            actor.begin()
        try:
            if fails[steps]:
                for actor in actors:
                    actor.end = Broken
                raise Broken
            return [actor.advance() for actor in actors]
        finally:
            for actor in actors:
                actor.busy = False

    async def compute_on_the_loop(actors: list[Actor]) -> list[Any]:
        for actor in actors:
            actor.begin()
        x = await s.put(np.zeros(len(actors)))
        await turns(int(rng.integers(4)))
        await (x + 1)
        for actor in actors:
            actor.busy = False
        return compute(actors)

    max_cost = float(rng.integers(4, 12))
    grows = int(rng.choice([-1, 0, 100]))
    reserve = None if grows < 0 else (lambda actor: 300 + int(10 * actor.cost) + grows * (actor.step // 3))
    async with asc.Scheduler("cpu", max_bytes=5000) as s, s.scope(reserve=1000) as own:
        before = asyncio.all_tasks()
        stepper: Stepper[Actor, int] = Stepper(
            compute if plain else compute_on_the_loop,
            max_cost=max_cost,
            cost=lambda actor: actor.cost,
            ahead=int(rng.integers(1, 4)),
            reserve=reserve,
            scheduler=own,
        )

        async def one(actor: Actor, stop: int, pauses: Any) -> list[int]:
            got = list[int]()
            try:
                with outside():
                    async with s.scope(tenant=stop % 3), stepper.join(actor) as outputs:
                        async for output in outputs:
                            got.append(output)
                            assert got == actor.given[: len(got)]
                            await turns(int(pauses[len(got)]))
                            if len(got) == stop:
                                break
                        else:
                            assert actor.end == "last"
                            assert got == actor.given
            finally:
                assert not actor.busy
                actor.left = True
            return got

        actors, tasks = list[Actor](), list[asyncio.Task[list[int]]]()
        for _ in range(40):
            actor = Actor(rng)
            pauses = rng.integers(0, 1 + 20 * (rng.random() < 0.2), 99)
            actors.append(actor)
            tasks.append(asyncio.create_task(one(actor, int(rng.integers(1, 20)), pauses)))
            await turns(int(rng.integers(0, 6)))
            if rng.random() < 0.4:
                tasks[int(rng.integers(len(tasks)))].cancel()
        await asyncio.wait(tasks)
        for actor, task in zip(actors, tasks, strict=True):
            error = None if task.cancelled() else task.exception()
            if error is not None:
                assert type(error) is actor.end or (grows > 0 and type(error) is asc.Preempted), error
        await until(lambda: asyncio.all_tasks() == before)
        found = stepper.statistics()
        assert (found.members, found.stepping, found.waiting, found.paused, found.admitting) == (0, 0, 0, 0, 0)
        assert len(engine_of(s).root.children) == 1
        assert own._core().children == {}
        assert used(s) == s.statistics().bytes_reserved == 1000


@pytest.mark.parametrize("error", [LookupError, Panic, SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["cost", "reserve"])
async def test_what_a_members_cost_or_reserve_raises_ends_that_member_alone(
    s: asc.Scheduler, step: Any, error: type[BaseException], where: str
) -> None:
    guilty, others = Text(9), [Text(5), Text(7)]

    def asked(member: Text) -> int:
        if member is guilty and member.step == 3:
            raise error("it")
        return 1000

    stepper: Stepper[Text, int] = Stepper(step, max_cost=9999, **{where: asked})

    async def read_guilty() -> list[int]:
        received = []
        expected = error if error in (LookupError, Panic) else RuntimeError
        with pytest.raises(expected):
            async with stepper.join(guilty) as outputs:
                async for output in outputs:
                    received.append(output)
        return received

    found = await asyncio.gather(read_guilty(), *[read(stepper, other) for other in others])
    assert found == [[0, 1, 2], [*range(5)], [*range(7)]]
    assert stepper.statistics().failed == 1
