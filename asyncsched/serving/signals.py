"""SIGTERM and Ctrl-C begin the draining, and reach the server when it is over.

A server that gets the signal at once closes its socket, and who comes later sees no answer at all. And it waits for the
responses that have begun before it tells the application to stop: a stream of events would never hear of it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def drain_on_signals(drain: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """While open, the first of these signals awaits `drain` before the handler that was there before gets it; a second
    one does not.

    Outside the main thread, where Python allows no signal handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    async def drain_and_pass_on(number: int) -> None:
        await drain()
        pass_on(number)

    def pass_on(number: int) -> None:
        signal.signal(number, previous[number])
        signal.raise_signal(number)

    def begin(number: int) -> None:
        if tasks:
            pass_on(number)
        else:
            tasks.append(loop.create_task(drain_and_pass_on(number)))

    def handler(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(begin, number)  # which wakes the loop

    previous = {int(number): signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number in SIGNALS:
            if signal.getsignal(number) is handler:
                signal.signal(number, previous[number])
        for task in tasks:
            task.cancel()
