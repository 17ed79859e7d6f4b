"""How late a coroutine wakes: it sleeps 5 ms at a time, beside products of 1000 x 1000."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .harness.rows import Row, Target
from .libraries import Library

TICK = 0.005
DEPTH = 32  # products in one iteration; two iterations are in flight, so that no stream ever runs dry
Load = Callable[[Any, Any], Awaitable[None]]


async def idle(library: Library, x: Any) -> None:
    """No load: the lag of the loop and the system by themselves."""
    await asyncio.get_running_loop().create_future()


async def inline(library: Library, x: Any) -> None:
    """On the loop's thread, a turn of the loop after each."""
    while True:
        np.matmul(x, x)
        await asyncio.sleep(0)


async def to_thread(library: Library, x: Any) -> None:
    """Two at a time: as many as the streams of the largest contestant."""
    waiting = deque(asyncio.create_task(asyncio.to_thread(np.matmul, x, x)) for _ in range(2))
    while True:
        await waiting.popleft()
        waiting.append(asyncio.create_task(asyncio.to_thread(np.matmul, x, x)))


async def streams(library: Library, array: Any) -> None:
    """A backlog of DEPTH to 2 x DEPTH products on asyncsched's streams."""
    x, window = await library.put(array), library.window(2)
    while True:
        async with window:
            for _ in range(DEPTH):
                x @ x


async def ticks(seconds: float, load: Awaitable[None]) -> list[float]:
    """The lags of a ticker beside a load, in seconds."""
    work = asyncio.ensure_future(load)
    await asyncio.sleep(0.1)  # the streams fill
    lags, started = [], perf_counter()
    while (now := perf_counter()) < started + seconds:
        await asyncio.sleep(TICK)
        lags.append(max(0.0, perf_counter() - now - TICK))
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return lags


async def lag(library: Library, n: int, *, load: Load) -> Run:
    """The 99th percentile of a round's lags."""
    seconds, side = (0.1, 200) if library.quick else (3.0, 1000)
    array = np.ones((side, side), np.float32)

    async def run(count: int) -> tuple[float, str]:
        lags = await ticks(seconds, load(library, array))
        await library.finish([])
        p50, p99, worst = np.percentile(lags, (50, 99, 100))
        return float(p99), f"in the last round p50 {p50 * 1e3:.2f} ms, max {worst * 1e3:.1f} ms"

    return run


WORKS: dict[str, Work] = {
    load.__name__: Work(partial(lag, load=load), once=True) for load in (idle, inline, to_thread, streams)
}
_WAYS = {
    "inline": ("numpy", "inline"),
    "idle": ("numpy", "idle"),
    "to_thread": ("numpy", "to_thread"),
    "one stream": ("asyncsched streams=1", "streams"),
    "two streams": ("asyncsched streams=2", "streams"),
}
_LATE = dict.fromkeys(("one stream", "two streams"), Target(10, "a server's loop may be so late", absolute=True))


def _row(loop: str, words: str) -> Row:
    cells = {column: (who + words, f"loop_lag.{work}") for column, (who, work) in _WAYS.items()}
    return Row(loop, f"lag of a 5 ms ticker, 99th percentile, {loop}", "ms", cells, _LATE)


ROWS = (_row("asyncio", ""), _row("uvloop", " uvloop"))
