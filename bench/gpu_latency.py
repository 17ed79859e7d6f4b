"""How soon an await returns after its kernel has ended, and how late the loop is while the card is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from .gpu_card import FAKE, Gate, GPUReport, device
from .loop_lag import TICK
from .measure import Asked, Contestant, compare, on_loop

DEPTH = 32  # products in one iteration; two iterations are in flight


class Latency:
    """Times from the moment that a kernel may end until the loop runs whoever waits for it."""

    def __init__(self, way: Callable[[Gate], Callable[[int], Awaitable[list[float]]]], fake: bool, count: int) -> None:
        self._way = way
        self._fake = fake
        self._count = count
        self._all: list[float] = []

    async def round(self) -> float:
        """The median."""
        found = await self._way(Gate(self._fake))(self._count)
        self._all += found
        return float(np.median(found))

    def note(self) -> str:
        return "p50 {:.0f} us, p99 {:.0f} us".format(*np.percentile(self._all, (50, 99)) * 1e6)


def latency(quick: bool, report: GPUReport) -> None:
    """`await` against `event.synchronize()` in a thread."""
    fake, count = report.gpu == FAKE, 5 if quick else 200
    ways: dict[str, Any] = {"event.synchronize() in a thread": _in_thread}
    ways |= {f"await, {name}": partial(_awaited, how) for name, how in _HOW.items()}
    contestants = []
    for name, way in ways.items():
        this = Latency(way, fake, count)
        contestants.append(Contestant(f"d {name}", on_loop(this.round), note=this.note))
    report.rows += compare(contestants, 1 if quick else 7)


_HOW: dict[str, dict[str, Any]] = {
    "asleep": {},
    "spin 20 us": {"spin": 20e-6},
    "inline_launch": {"inline_launch": True},
}


def _awaited(how: dict[str, Any], gate: Gate) -> Callable[[int], Awaitable[list[float]]]:
    async def run(count: int) -> list[float]:
        async with asc.Scheduler(device(**how)) as s:
            found = []
            for _ in range(count):
                gate.shut()
                found.append(await _opened(gate, s.submit_nowait(gate.enqueue)))
            return found

    return run


def _in_thread(gate: Gate) -> Callable[[int], Awaitable[list[float]]]:
    import cupy

    async def run(count: int) -> list[float]:
        loop, event = asyncio.get_running_loop(), cupy.cuda.Event(block=True, disable_timing=True)
        found = []
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(count):
                gate.shut()
                gate.enqueue()
                event.record(stream)
                found.append(await _opened(gate, loop.run_in_executor(None, event.synchronize)))
        return found

    return run


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

    async def round(self) -> float:
        """The 99th percentile of the lags."""
        work = asyncio.create_task(self._saturate())
        await asyncio.sleep(0.1)
        before, started = _thread_seconds(), perf_counter()
        lags = []
        while (now := perf_counter()) < started + self._seconds:
            await asyncio.sleep(TICK)
            lags.append(max(0.0, perf_counter() - now - TICK))
        spent = {kind: total - before.get(kind, 0.0) for kind, total in _thread_seconds().items()}
        self._shares = {kind: seconds / (perf_counter() - started) for kind, seconds in spent.items()}
        self._lags += lags
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
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


def lag(quick: bool, report: GPUReport) -> None:
    """A 5 ms ticker while the card is saturated; processor time of the streams' threads."""
    contestants = []
    for name, how in _HOW.items():
        busy = Busy(0.1 if quick else 3.0, 64 if quick else 4096, how)
        asked = None if how else Asked(median=2)
        contestants.append(
            Contestant(f"f lag, {name}, p99", on_loop(busy.round), unit="ms", asked=asked, note=busy.note)
        )
    report.rows += compare(contestants, 1 if quick else 5, warm_up=False)


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
