"""The time from the end of a kernel to the end of its await, and the loop's lag while the card is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from ..harness.rows import Here, Result, Row, Target
from ..harness.turns import Turns
from ..loop_lag import ticks
from .card import WAYS, Gate, device

DEPTH = 32  # products in one iteration; two iterations are in flight


_HOW = {"asleep": {}, **WAYS}


def latency(turns: Turns) -> Iterator[Result]:
    """`await` against `event.synchronize()` in a thread, from the moment at which a kernel may end."""
    ways: dict[str, Any] = {"event.synchronize() in a thread": _in_thread}
    ways |= {f"await, {name}": partial(_awaited, how) for name, how in _HOW.items()}
    cells = {name: Here(partial(_median, way, 5 if turns.quick else 200)) for name, way in ways.items()}
    yield turns.measure(Row("latency", "from the end of a kernel to the end of its await", "us", cells))


def _median(way: Callable[[Gate, int], Coroutine[Any, Any, list[float]]], count: int) -> tuple[float, str]:
    p50, p99 = np.percentile(asyncio.run(way(Gate(), count)), (50, 99))
    return float(p50), f"in the last round p99 {p99 * 1e6:.0f} us"


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


def lag(turns: Turns) -> Iterator[Result]:
    """A 5 ms ticker beside a card that never runs dry; processor time of the streams' threads."""
    seconds, side = (0.1, 64) if turns.quick else (3.0, 4096)
    cells = {name: Here(partial(_lag, seconds, side, how)) for name, how in _HOW.items()}
    targets = {"asleep": Target(2, "nothing blocks the loop", absolute=True)}
    yield turns.measure(Row("lag", "lag of a 5 ms ticker beside a busy card, 99th percentile", "ms", cells, targets))


def _lag(seconds: float, side: int, how: dict[str, Any]) -> tuple[float, str]:
    """The 99th percentile, and the processor time of the library's threads meanwhile."""

    async def saturate() -> None:
        async with asc.Scheduler(device(**how)) as s:
            x, window = await s.put(np.full((side, side), 1 / side, np.float32)), s.window(2)
            while True:
                async with window:
                    for _ in range(DEPTH):
                        x @ x

    async def main() -> tuple[float, str]:
        before, started = _thread_seconds(), perf_counter()
        p50, p99, worst = np.percentile(await ticks(seconds, saturate()), (50, 99, 100)) * 1e3
        took = perf_counter() - started
        shares = [f"{kind}s {(spent - before[kind]) / took:.1%}" for kind, spent in _thread_seconds().items()]
        return float(p99) / 1e3, f"p50 {p50:.2f} ms, max {worst:.1f} ms; of a processor: {', '.join(shares)}"

    return asyncio.run(main())


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
