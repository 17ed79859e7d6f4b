"""Members that could not have their last output in time are refused, by how many steps members took lately."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asyncsched as asc
from tests.waiting import Clock, turns

from .test_batcher_in_time import UNIT, clock

__all__ = ["clock"]  # a fixture


class Text:
    def __init__(self, name: str, length: int) -> None:
        self.name, self.left = name, length


class Model:
    """A step that takes as long as the test says. Members have a length."""

    def __init__(self, clock: Clock) -> None:
        self.steps: list[str] = []
        self._clock, self._gate = clock, asyncio.Event()

    async def __call__(self, texts: list[Text]) -> list[Any]:
        self.steps.append("".join(text.name for text in texts))
        await self._gate.wait()
        self._gate.clear()
        for text in texts:
            text.left -= 1
        return [text.name if text.left else asc.Last(text.name) for text in texts]

    async def takes(self, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            await turns()
            self._clock.passes(seconds * UNIT)
            self._gate.set()
        await turns()


class Joiner:
    def __init__(self, s: asc.Scheduler, model: Model, **options: Any) -> None:
        self.s, self.model = s, model
        self.stepper = asc.Stepper(model, **{"max_cost": 2} | options)
        self.told: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, names: str, length: int = 2, deadline: float | None = 10) -> str:
        """Returns those that are refused at once."""
        until = deadline and deadline * UNIT
        self._tasks += [asyncio.create_task(self._one(Text(name, length), until)) for name in names]
        await turns()
        return "".join(name for name in names if self.told.get(name) == "refused")

    async def _one(self, text: Text, deadline: float | None) -> None:
        try:
            async with self.s.scope(deadline=deadline, tenant=1), self.stepper.join(text) as outputs:
                async for _ in outputs:
                    pass
            self.told[text.name] = "answered"
        except asc.QueueFull:
            self.told[text.name] = "refused"

    def all(self, word: str) -> str:
        return "".join(sorted(name for name, told in self.told.items() if told == word))


@pytest.fixture
async def model(clock: Clock) -> Model:  # noqa: F811
    return Model(clock)


async def test_without_a_measurement_no_member_is_refused(s: asc.Scheduler, model: Model) -> None:
    joiner = Joiner(s, model)
    assert await joiner.join("abcdefgh") == ""
    await model.takes(0.1, 8)
    assert joiner.all("answered") == "abcdefgh"


async def test_of_members_with_a_deadline_the_oldest_go_first(s: asc.Scheduler, model: Model) -> None:
    joiner = Joiner(s, model)
    await joiner.join("abcdef")
    await model.takes(0.1, 6)
    assert model.steps[-4:] == ["cd", "cd", "ef", "ef"]
    await joiner.join("ghij", deadline=None)  # these take turns
    await model.takes(0.1, 4)
    assert sorted(model.steps[-4:-2]) == ["gh", "ij"]


async def test_a_member_that_would_end_too_late_is_refused(s: asc.Scheduler, model: Model) -> None:
    joiner = Joiner(s, model)
    await joiner.join("12")
    await model.takes(1.0, 2)  # two steps of 1 s each
    joiner.told.clear()
    assert await joiner.join("abcdefghi") == "i"  # two at a time: the last would end after 10 s
    assert await joiner.join("j", deadline=12) == ""
    assert await joiner.join("k", deadline=None) == ""
    await model.takes(1.0, 10)
    assert joiner.all("answered") == "abcdefghjk"


async def test_one_member_is_let_in_if_it_is_alone(s: asc.Scheduler, model: Model) -> None:
    joiner = Joiner(s, model)
    await joiner.join("1", deadline=None)
    await model.takes(50.0, 2)
    assert await joiner.join("ab") == "b"
    await model.takes(0.1, 2)
    assert joiner.told["a"] == "answered"


async def test_those_that_have_not_begun_are_refused_once_it_is_known_how_long_members_take(
    s: asc.Scheduler, model: Model
) -> None:
    joiner = Joiner(s, model)
    await joiner.join("abcdefghijkl")
    await model.takes(1.0, 2)
    assert (joiner.all("answered"), joiner.all("refused")) == ("ab", "jkl")
    await model.takes(1.0, 8)
    assert joiner.all("answered") == "abcdefghi"
    assert joiner.stepper.statistics().failed == 3


async def test_members_that_leave_by_themselves_tell_their_lengths_too(s: asc.Scheduler, model: Model) -> None:
    joiner = Joiner(s, model)

    async def two_outputs() -> None:
        async with joiner.stepper.join(Text("x", 1000)) as outputs:
            await anext(outputs)
            await anext(outputs)

    tasks = [asyncio.create_task(two_outputs()) for _ in range(2)]
    await model.takes(1.0, 3)
    await asyncio.gather(*tasks)
    assert "l" in await joiner.join("abcdefghijkl")
    await model.takes(1.0, 12)
