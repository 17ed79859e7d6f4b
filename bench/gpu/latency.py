"""How soon an await returns after its kernel has ended, and how late the loop is while the card is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from ..harness.rows import Here, Result, Row, Target
from ..harness.turns import Turns
from ..loop_lag import ticks
from .card import WAYS, Gate, device, on_loop

DEPTH = 32  # products in one iteration; two iterations are in flight


class Latency:
    """Times from the moment that a kernel may end until the loop runs whoever waits for it."""

    def __init__(self, way: Callable[[Gate, int], Awaitable[list[float]]], count: int) -> None:
        self._way = way
        self._count = count
        self._all: list[float] = []

    def round(self) -> float:
        """The median."""
        return on_loop(self._round)

    async def _round(self) -> float:
        found = await self._way(Gate(), self._count)
        self._all += found
        return float(np.median(found))

    def note(self) -> str:
        return "p50 {:.0f} us, p99 {:.0f} us".format(*np.percentile(self._all, (50, 99)) * 1e6)


_HOW = {"asleep": {}, **WAYS}


def latency(turns: Turns) -> Iterator[Result]:
    """`await` against `event.synchronize()` in a thread."""
    ways: dict[str, Any] = {"event.synchronize() in a thread": _in_thread}
    ways |= {f"await, {name}": partial(_awaited, how) for name, how in _HOW.items()}
    found = {name: Latency(way, 5 if turns.quick else 200) for name, way in ways.items()}
    cells = {name: Here(way.round, note=way.note) for name, way in found.items()}
    yield turns.measure(Row("latency", "from the end of a kernel to the end of its await", "us", cells))


async def _awaited(how: dict[str, Any], gate: Gate, count: int) -> list[float]:
    async with asc.Scheduler(device(**how)) as s:
        found = []
        for _ in range(count):
            gate.shut()
            found.append(await _opened(gate, s.submit_nowait(gate.enqueue)))
        return found


async def _in_thread(gate: Gate, count: int) -> list[float]:
    import cupy

    loop, event = asyncio.get_running_loop(), cupy.cuda.Event(block=True, disable_timing=True)
    found = []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(count):
            gate.shut()
            gate.enqueue()
            event.record(stream)
            found.append(await _opened(gate, loop.run_in_executor(None, event.synchronize)))
    return found


async def _opened(gate: Gate, waited: Awaitable[Any]) -> float:
    """Seconds from opening the gate until `waited` returns. It is opened once the loop has nothing else to do."""
    opened = 0.0

    def open_gate() -> None:
        nonlocal opened
        opened = perf_counter()
        gate.open()

    asyncio.get_running_loop().call_later(0.002, open_gate)
    await waited
    return perf_counter() - opened


class Busy:
    """The lag of a ticker beside a card that never runs dry, and what the library's threads cost meanwhile."""

    def __init__(self, seconds: float, side: int, how: dict[str, Any]) -> None:
        self._seconds = seconds
        self._how = how
        self._array = np.full((side, side), 1 / side, np.float32)
        self._lags: list[float] = []
        self._shares: dict[str, float] = {}

    def round(self) -> float:
        """The 99th percentile of the lags."""
        return on_loop(self._round)

    async def _round(self) -> float:
        before, started = _thread_seconds(), perf_counter()
        lags = await ticks(self._seconds, self._saturate())
        spent = {kind: total - before.get(kind, 0.0) for kind, total in _thread_seconds().items()}
        self._shares = {kind: seconds / (perf_counter() - started) for kind, seconds in spent.items()}
        self._lags += lags
        return float(np.percentile(lags, 99))

    async def _saturate(self) -> None:
        async with asc.Scheduler(device(**self._how)) as s:
            x = await s.put(self._array)
            window = s.window(2)
            while True:
                async with window:
                    for _ in range(DEPTH):
                        x @ x

    def note(self) -> str:
        p50, worst = np.percentile(self._lags, (50, 100)) * 1e3
        shares = ", ".join(f"{kind}s {share:.1%}" for kind, share in self._shares.items())
        return f"p50 {p50:.2f} ms, max {worst:.1f} ms; of a processor: {shares}"


def lag(turns: Turns) -> Iterator[Result]:
    """A 5 ms ticker while the card is saturated; processor time of the streams' threads."""
    seconds, side = (0.1, 64) if turns.quick else (3.0, 4096)
    found = {name: Busy(seconds, side, how) for name, how in _HOW.items()}
    cells = {name: Here(busy.round, note=busy.note) for name, busy in found.items()}
    targets = {"asleep": Target(2, "nothing blocks the loop", absolute=True)}
    yield turns.measure(Row("lag", "lag of a 5 ms ticker beside a busy card, 99th percentile", "ms", cells, targets))


def _thread_seconds() -> dict[str, float]:
    """Processor seconds of the issuers, the watchers and the loop's thread so far; from Linux's /proc."""
    found = {"watcher": 0.0, "issuer": 0.0, "loop": 0.0}
    for thread in threading.enumerate():
        kind = "loop" if thread is threading.main_thread() else thread.name.rpartition(" ")[2]
        if kind in found:
            try:
                with open(f"/proc/self/task/{thread.native_id}/schedstat", encoding="ascii") as file:
                    found[kind] += int(file.read().split()[0]) / 1e9
            except OSError:  # it ended meanwhile
                continue
    return found
