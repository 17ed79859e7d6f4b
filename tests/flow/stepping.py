"""Members of steppers, and steps, for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.waiting import held


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
