"""How late a coroutine wakes that sleeps 5 ms at a time beside 1000 x 1000 matmuls: `python -m bench.loop_lag`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from .measure import NO_UVLOOP, Asked, Contestant, Report, compare, on_loop, run_bench, uvloop_factory

TICK = 0.005
DEPTH = 32  # products in one iteration; two iterations are in flight, so that no stream ever runs dry
Count = Callable[[], None]
Load = Callable[[Any, Count], Awaitable[None]]


async def idle(x: Any, count: Count) -> None:
    """Nothing: how late the loop and the system are by themselves."""
    await asyncio.get_running_loop().create_future()


async def inline(x: Any, count: Count) -> None:
    """On the loop's thread, a turn of the loop after each."""
    while True:
        np.matmul(x, x)
        count()
        await asyncio.sleep(0)


async def to_thread(x: Any, count: Count) -> None:
    """Two at a time, as many as there are streams in the largest contestant."""
    waiting = deque(asyncio.create_task(asyncio.to_thread(np.matmul, x, x)) for _ in range(2))
    while True:
        await waiting.popleft()
        count()
        waiting.append(asyncio.create_task(asyncio.to_thread(np.matmul, x, x)))


def streams(number: int) -> Load:
    """A backlog of DEPTH to 2 x DEPTH products on asyncsched's streams."""

    async def load(array: Any, count: Count) -> None:
        async with asc.Scheduler("cpu", streams=number) as s:
            x = await s.put(array)
            window = s.window(2)
            while True:
                async with window:
                    for _ in range(DEPTH):
                        x @ x
                        count()

    return load


LOADS: dict[str, Load] = {
    "inline": inline,
    "idle": idle,
    "to_thread": to_thread,
    "asyncsched, streams=1": streams(1),
    "asyncsched, streams=2": streams(2),
}


class Lag:
    """One load under one kind of loop; remembers the lags of all rounds."""

    def __init__(self, load: Load, seconds: float, side: int) -> None:
        self._load = load
        self._seconds = seconds
        self._x = np.ones((side, side), np.float32)
        self._lags: list[float] = []
        self._rates: list[float] = []

    async def round(self) -> float:
        """The 99th percentile of one round's lags, in seconds."""
        counts: list[None] = []
        work = asyncio.create_task(self._run(counts))
        await asyncio.sleep(0.1)  # the streams fill
        lags, done, started = [], len(counts), perf_counter()
        while (now := perf_counter()) < started + self._seconds:
            await asyncio.sleep(TICK)
            lags.append(max(0.0, perf_counter() - now - TICK))
        self._rates.append((len(counts) - done) / (perf_counter() - started))
        self._lags += lags
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return float(np.percentile(lags, 99))

    async def _run(self, counts: list[None]) -> None:
        await self._load(self._x, lambda: counts.append(None))

    def note(self) -> str:
        p50, worst = np.percentile(self._lags, (50, 100)) * 1e3
        return f"p50 {p50:.2f} ms, max {worst:.1f} ms, {np.median(self._rates):.0f} matmul/s"


def lags(quick: bool, report: Report) -> None:
    contestants = _contestants(quick, "asyncio", None)
    if factory := uvloop_factory():
        contestants += _contestants(quick, "uvloop", factory)
    else:
        report.notes.append(NO_UVLOOP)
    report.rows += compare(contestants, 1 if quick else 5, warm_up=False)
    report.notes.append("median: of the rounds' 99th percentiles; p50 and max: of all ticks")


def _contestants(quick: bool, loop: str, factory: Callable[[], asyncio.AbstractEventLoop] | None) -> list[Contestant]:
    def contestant(name: str, load: Load) -> Contestant:
        lag = Lag(load, 0.1 if quick else 3.0, 200 if quick else 1000)
        run, to = on_loop(lag.round, factory), f"{loop}: inline, p99"
        asked = Asked(median=10) if "streams" in name else None
        return Contestant(f"{loop}: {name}, p99", run, unit="ms", to=to, asked=asked, note=lag.note)

    return [contestant(name, load) for name, load in LOADS.items()]


if __name__ == "__main__":
    run_bench("loop_lag", {"lag": lags})
