"""Steppers: the ends of their scheduler, loop and deadline; and what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.waiting import cancelled, turns, until

from .asking import past_its_deadline
from .stepping import Model, Slots, Text, advance, read, use

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
    stepper: Stepper[Text, int] = Stepper(advance)
    task = await past_its_deadline(s, later, lambda: read(stepper, Text(1)))
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
