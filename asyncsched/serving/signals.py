"""SIGTERM begins the draining, and reaches the server when it is over.

A server that gets the signal at once closes its socket, and who comes later sees no answer at all.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager


@contextmanager
def drain_on_sigterm(drain: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """While open, the first SIGTERM awaits `drain` before the handler that was there before gets it; a second does not.

    Outside the main thread, where Python allows no signal handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    async def drain_and_pass_on() -> None:
        await drain()
        pass_on()

    def pass_on() -> None:
        signal.signal(signal.SIGTERM, previous)
        signal.raise_signal(signal.SIGTERM)

    def begin() -> None:
        pass_on() if tasks else tasks.append(loop.create_task(drain_and_pass_on()))

    def handler(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(begin)  # which wakes the loop

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, previous)
        for task in tasks:
            task.cancel()
