"""Steppers that isolate: a member that makes its step fail ends alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import asyncsched as asc
from tests.waiting import until


class Guilty(Exception):
    """Raised for a step with a bad member."""


class Text:
    """Gives the numbers up to its length; `bad` is the one that it fails at."""

    def __init__(self, length: int, bad: int | None = None) -> None:
        self.length, self.bad, self.next = length, bad, 0


def repeatable(texts: list[Text]) -> list[Any]:
    """Computes first, then advances."""
    outputs = []
    for text in texts:
        if text.next == text.bad:
            raise Guilty(text.next)
        outputs.append(asc.Last(text.next) if text.next + 1 == text.length else text.next)
    for text in texts:
        text.next += 1
    return outputs


async def repeatable_coroutine(texts: list[Text]) -> list[Any]:
    return repeatable(texts)


async def read(stepper: asc.Stepper[Text, int], text: Text) -> list[Any]:
    """Its outputs, and the exception that ended it."""
    found: list[Any] = []
    try:
        async with stepper.join(text) as outputs:
            async for output in outputs:
                found.append(output)
    except Exception as error:
        found.append(type(error))
    return found


@pytest.mark.parametrize("step", [repeatable, repeatable_coroutine], ids=["plain", "coroutine"])
@pytest.mark.parametrize("bad", [{}, {3: 0}, {0: 4, 5: 2, 12: 2}, dict.fromkeys(range(13), 1)], ids=len)
async def test_only_the_members_that_fail_end(s: asc.Scheduler, step: Callable[..., Any], bad: dict[int, int]) -> None:
    stepper: asc.Stepper[Text, int] = asc.Stepper(step, isolate=True)
    texts = [Text(5 + number, bad.get(number)) for number in range(13)]
    found = await asyncio.gather(*[read(stepper, text) for text in texts])
    for number, outputs in enumerate(found):
        whole = list(range(5 + number))
        assert outputs == ([*whole[: bad[number]], Guilty] if number in bad else whole)
    told = stepper.statistics()
    assert (told.failed, told.members, told.stepping, told.waiting) == (len(bad), 0, 0, 0)
    assert (told.retries > 0) == bool(bad)


async def test_a_wrong_number_of_outputs_is_isolated_too(s: asc.Scheduler) -> None:
    def step(texts: list[Text]) -> list[Any]:
        return [asc.Last(text.length) for text in texts if text.bad is None]

    stepper: asc.Stepper[Text, int] = asc.Stepper(step, isolate=True)
    found = await asyncio.gather(*[read(stepper, Text(number, 0 if number == 2 else None)) for number in range(5)])
    assert found == [[0], [1], [ValueError], [3], [4]]


async def test_without_it_every_member_of_the_step_ends(s: asc.Scheduler) -> None:
    stepper: asc.Stepper[Text, int] = asc.Stepper(repeatable)
    assert (
        await asyncio.gather(*[read(stepper, Text(3, 0 if number == 2 else None)) for number in range(4)])
        == [[Guilty]] * 4
    )


async def test_a_member_that_leaves_while_its_part_waits_is_in_no_step_any_more(s: asc.Scheduler) -> None:
    steps, gate = list[list[Text]](), threading.Event()

    def step(texts: list[Text]) -> list[Any]:
        steps.append(texts)
        if len(texts) == 1:
            gate.wait(60)
        return repeatable(texts)

    stepper: asc.Stepper[Text, int] = asc.Stepper(step, isolate=True)
    bad, leaves = Text(3, 0), Text(3)
    first = asyncio.create_task(read(stepper, bad))
    second = asyncio.create_task(read(stepper, leaves))
    await until(lambda: len(steps) == 2)  # both failed together, and now the first runs alone
    assert steps == [[bad, leaves], [bad]]
    second.cancel()
    gate.set()
    assert await first == [Guilty]
    with pytest.raises(asyncio.CancelledError):
        await second
    assert len(steps) == 2
    assert stepper.statistics().members == 0
