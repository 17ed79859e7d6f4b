"""Steppers: what members get of each step, and when they may leave."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import anyio
import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.ledger import used
from tests.waiting import (
    cancelled,
    eager_tasks,
    no_collector,
    no_tasks,
    outlasts_cancellations,
    tasks_made_by,
    turns,
    until,
)

from .asking import Panic
from .stepping import Model, Slots, Text, advance, read, reading_next, use

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
