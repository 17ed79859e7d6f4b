"""What the tests of batchers share."""

from __future__ import annotations

import asyncio
from typing import Any

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


class Panic(BaseException):
    """What libraries in Rust raise."""
