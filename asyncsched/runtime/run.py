"""Running a program from synchronous code."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .life import running_loop

T = TypeVar("T")


def run(main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run `main`, a coroutine function or a coroutine, in a new event loop: uvloop's where it is installed.

    Returns what it returns, raises what it raises; RuntimeError where a loop runs already: there write `await main()`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         return await asc.arange(3).sum().item()
    >>> asc.run(main)
    3
    """
    if running_loop() is not None:
        raise RuntimeError(
            "asyncsched.run starts an event loop, and one runs on this thread already (as in a notebook):"
            " write `await main()`"
        )
    with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
        return runner.run(main() if callable(main) else main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
