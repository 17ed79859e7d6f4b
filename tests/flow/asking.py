"""What the tests of batchers share."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncsched.flow.batcher.batcher import Batcher


def ask(batcher: Batcher[Any, Any], *items: Any) -> list[asyncio.Task[Any]]:
    """Ask for each item in a task of its own."""

    async def one(item: Any) -> Any:
        return await batcher(item)

    return [asyncio.create_task(one(item)) for item in items]


class Panic(BaseException):
    """What libraries in Rust raise."""
