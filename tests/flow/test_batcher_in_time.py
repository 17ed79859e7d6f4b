"""Items that could not be computed in time are refused, by how long batches took."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from tests.waiting import Clock, turns

READ_IT = ("scope", "batcher.batcher", "batcher.runners", "batcher.members", "batcher.stepper")
UNIT = 10.0  # seconds: no timer of the loop goes off in a test


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in READ_IT:
        monkeypatch.setattr(importlib.import_module(f"asyncsched.flow.{name}"), "monotonic", clock)
    return clock


class Model:
    """A batch function whose batches take as long as the test says."""

    def __init__(self, clock: Clock) -> None:
        self.batches: list[list[Any]] = []
        self._clock = clock
        self._gate = asyncio.Event()

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        await self._gate.wait()
        self._gate.clear()
        return items

    async def takes(self, seconds: float) -> list[Any]:
        """The batch that is computed now takes so long. Returns its items, once the next one is computed."""
        await turns()
        done = self.batches[-1]
        self._clock.passes(seconds * UNIT)
        self._gate.set()
        await turns()
        return done


class Asker:
    """Asks a batcher from scopes with a deadline, and knows what came of each item."""

    def __init__(self, s: asc.Scheduler, batcher: Batcher[Any, Any], deadline: float | None = 10) -> None:
        self.s, self.batcher, self.deadline = s, batcher, deadline
        self.told: dict[Any, str] = {}
        self.waits: dict[Any, float | None] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *items: Any, **options: Any) -> str:
        """Ask for each. Returns those that are refused at once."""
        self.tasks += [asyncio.create_task(self._one(item, options)) for item in items]
        await turns()
        return "".join(item for item in items if self.told.get(item) == "refused")

    async def _one(self, item: Any, options: dict[str, Any]) -> None:
        try:
            options = {"deadline": self.deadline, "tenant": 1} | options
            options["deadline"] = options["deadline"] and options["deadline"] * UNIT
            async with self.s.scope(**options):
                await self.batcher(item)
            self.told[item] = "answered"
        except asc.QueueFull as full:
            self.told[item], self.waits[item] = "refused", full.retry_after

    def all(self, word: str) -> str:
        return "".join(sorted(item for item, told in self.told.items() if told == word))


@pytest.fixture
async def model(clock: Clock) -> Model:
    return Model(clock)


async def test_without_a_measurement_nothing_is_refused(s: asc.Scheduler, model: Model) -> None:
    asker = Asker(s, Batcher(model, max_batch_cost=2))
    assert await asker.ask(*"abcdefghijkl") == ""
    while len(asker.told) < 12:
        await model.takes(0.5)
    assert asker.all("answered") == "abcdefghijkl"


async def measured(s: asc.Scheduler, model: Model, seconds: float, **options: Any) -> Asker:
    """A batcher whose full batches, of two items, have taken so long."""
    asker = Asker(s, Batcher(model, **{"max_batch_cost": 2} | options), deadline=None)
    await asker.ask("1")
    await asker.ask("2", "3")
    await model.takes(seconds / 2)
    await model.takes(seconds)
    asker.told.clear()
    asker.deadline = 10
    return asker


async def test_what_would_come_too_late_is_refused_at_once(s: asc.Scheduler, clock: Clock, model: Model) -> None:
    asker = await measured(s, model, 2.0)
    assert await asker.ask("a") == ""  # takes 1 s
    assert await asker.ask(*"bcdefghi") == ""  # four batches of 2 s
    assert await asker.ask("j") == "j"  # the next would end after 11 s
    assert asker.waits["j"] == pytest.approx(2.0 * UNIT)
    assert await asker.ask("k", deadline=13) == ""  # for this one that is soon enough
    assert await asker.ask("l", deadline=None) == ""
    statistics = asker.batcher.statistics()
    assert (statistics.refused, statistics.waiting) == (1, 10)
    assert await model.takes(1.0) == ["a"]
    for _ in range(5):
        await model.takes(2.0)
    assert asker.all("answered") == "abcdefghikl"


async def test_one_is_let_through_if_nothing_else_waits_so_that_a_stall_is_forgotten(
    s: asc.Scheduler, clock: Clock, model: Model
) -> None:
    asker = await measured(s, model, 40.0)
    for item in "abcde":
        assert await asker.ask(item, item.upper()) == ("" if item == "e" else item.upper())
        await model.takes(0.25)
    assert asker.all("answered") == "Eabcde"
    assert model.batches[-1] == ["e", "E"]  # two of them together, for the first time since


async def test_what_can_no_longer_be_in_time_is_refused_after_a_batch(
    s: asc.Scheduler, clock: Clock, model: Model
) -> None:
    asker = await measured(s, model, 1.0)
    await asker.ask("a", "b")
    assert await asker.ask(*"cdefghijkl") == ""
    await model.takes(4.0)  # from now on the next is taken to need twice the mean: 1.5 s
    assert asker.told == {"a": "answered", "b": "answered", "k": "refused", "l": "refused"}
    await model.takes(4.0)  # the second in a row
    assert model.batches[-1] == ["e"]  # with f it would not be in time
    await model.takes(1.0)
    assert asker.told["e"] == "answered"
    assert {asker.told[item] for item in "fghij"} == {"refused"}
    assert asker.batcher.statistics().dropped == 7


async def test_once_a_size_takes_longer_the_others_are_measured_anew(s: asc.Scheduler, model: Model) -> None:
    asker = await measured(s, model, 1.0)
    await asker.ask("a", "b")
    await asker.ask("c", "d")
    await model.takes(4.0)
    await model.takes(4.0)
    await asker.ask("e")  # alone it took 0.5 s before
    assert await asker.ask("f", deadline=3) == "f"
    await model.takes(0.5)
    await asker.ask("g")
    assert await asker.ask("h", deadline=3) == ""


async def test_a_batch_takes_no_item_with_which_others_would_be_late(s: asc.Scheduler, model: Model) -> None:
    asker = await measured(s, model, 2.0)
    await asker.ask("a")
    await asker.ask("b", deadline=2.5)
    await asker.ask("c", "d", deadline=None)
    for _ in range(3):
        await model.takes(1.0)
    assert model.batches[-3:] == [["a"], ["b"], ["c", "d"]]
    assert asker.all("answered") == "abcd"


async def test_a_lone_item_says_nothing_of_a_full_batch(s: asc.Scheduler, clock: Clock, model: Model) -> None:
    """The model takes as long for one as for thirty-two: no burst is refused that fits into a batch."""
    asker = Asker(s, Batcher(model, max_batch_cost=32), deadline=2)
    for item in "abc":
        await asker.ask(item)
        await model.takes(0.5)
    assert await asker.ask(*"efghijklmnopqrstuvwxyz") == ""
    await model.takes(0.5)
    await model.takes(0.5)
    assert len(asker.all("answered")) == 25


async def test_a_tenant_waits_for_as_much_of_others_as_of_its_own(s: asc.Scheduler, model: Model) -> None:
    asker = await measured(s, model, 2.0)
    assert await asker.ask("a") + await asker.ask(*"bcdefghi") + await asker.ask("j") == "j"
    assert await asker.ask("x", tenant=2) == ""
    assert await asker.ask("k") == "k"
    assert await model.takes(1.0) == ["a"]
    assert "x" in model.batches[-1]
    for _ in range(5):
        await model.takes(2.0)
    assert asker.all("answered") == "abcdefghx"
    assert asker.told["i"] == "refused"  # x went before it


async def test_a_higher_class_waits_for_no_lower_one(s: asc.Scheduler, model: Model) -> None:
    asker = await measured(s, model, 2.0)
    assert await asker.ask("a") + await asker.ask(*"bcdefghi", priority=0) + await asker.ask("j") == "j"
    assert await asker.ask("x", priority=1) + await asker.ask("y", priority=-1) == "y"
    for _ in range(6):
        await model.takes(2.0)
    assert model.batches[2:4] == [["a"], ["x", "b"]]
