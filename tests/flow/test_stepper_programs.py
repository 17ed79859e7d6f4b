"""Steppers: random programs, in which anything may end at any time."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.ledger import used
from tests.waiting import outside, turns, until

from .asking import Panic
from .stepping import Text, read


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
        (core,) = asc.observe.Probe(s).root.children
        assert core.children == {}
        await until(lambda: used(s) == s.statistics().bytes_reserved == 1000)  # a search may still hold something


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
