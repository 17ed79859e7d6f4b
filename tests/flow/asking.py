"""What the tests of batchers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncsched import Scheduler
from asyncsched.flow.batcher.batcher import Batcher


class Model:
    """A batch function that remembers its batches, and waits at a gate while it is shut."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        await self.gate.wait()
        return [item * 10 for item in items]


def ask(batcher: Batcher[Any, Any], *items: Any) -> list[asyncio.Task[Any]]:
    """Ask for each item in a task of its own."""

    async def one(item: Any) -> Any:
        return await batcher(item)

    return [asyncio.create_task(one(item)) for item in items]


async def past_its_deadline(s: Scheduler, later: Callable[[], None], ask: Callable[[], Any]) -> asyncio.Task[Any]:
    """A task that was started in a scope with a deadline, and asks only when that has passed."""
    left = asyncio.Event()

    async def refresh() -> Any:
        await left.wait()
        return await ask()

    async with s.scope(deadline=1800):
        task = asyncio.create_task(refresh())
    left.set()
    later()
    return task


def tenants_of(batcher: Batcher[Any, Any]) -> dict[int, list[Any]]:
    """The tenants that a batcher remembers, by priority. It tells nobody of them."""
    return {level: list(group.tenants) for level, group in batcher._queue._groups.items()}


class Panic(BaseException):
    """What libraries in Rust raise."""
