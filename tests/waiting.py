"""Waiting in tests: for what must come, for what must not, and in a stream's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[[], object]) -> None:
    """Let the loop turn until something is so. Only the test's timeout ends it: how long it takes is no promise."""
    while not holds():
        await asyncio.sleep(0)


async def turns(count: int = 30) -> None:
    """Let the loop turn often enough for whatever it has to do."""
    for _ in range(count):
        await asyncio.sleep(0)


def held(gate: threading.Event, result: Any = None) -> Any:
    """A task's body that ends when its gate opens."""
    assert gate.wait(60)
    return result
