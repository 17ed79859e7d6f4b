"""What one operation costs: `python -m bench.overhead`.

a  issue 10,000 tiny operations, await the last          b  await each of 10,000 tiny operations
c  ten matmuls queued, the first awaited                  d  cost per operation as the number of operations grows
e  bytes per pending operation                            f  import time
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from .graphs import add_repeatedly, plus_one
from .measure import NO_UVLOOP, Asked, Contestant, Report, Row, compare, on_loop, run_bench, timed, uvloop_factory

TINY = (1, 2)
# The last is too large to run on the loop's thread, so that it takes the way over a stream.
LARGER = {"8 KiB": (1, 2048), "64 KiB": (16, 1024), "128 KiB (a stream)": (32, 1024)}
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


def tiny() -> Any:
    return np.ones(TINY, np.float32)


# -- a: issued without an await -----------------------------------------------------------------------------------


def issue(quick: bool, report: Report) -> None:
    n, x = 500 if quick else 10_000, tiny()
    contestants = [
        Contestant("a NumPy inline", lambda: timed(lambda: add_repeatedly(x, n)), n),
        Contestant("a asyncsched", on_loop(lambda: _issue(n)), n, asked=Asked(ratio=6, aim=3)),
        Contestant("a run_in_executor", on_loop(lambda: _issue_to_executor(n)), n),
    ]
    report.rows += compare(contestants, 1 if quick else 25)


async def _issue(n: int) -> float:
    async with asc.Scheduler("cpu") as s:
        x = await s.put(tiny())
        started = perf_counter()
        await add_repeatedly(x, n)
        return perf_counter() - started


async def _issue_to_executor(n: int) -> float:
    loop, x = asyncio.get_running_loop(), tiny()
    started = perf_counter()
    for _ in range(n):
        last = loop.run_in_executor(None, plus_one, x)
    await last
    return perf_counter() - started


# -- b: each awaited ----------------------------------------------------------------------------------------------


def await_each(quick: bool, report: Report) -> None:
    n = 100 if quick else 10_000
    contestants = _awaited(n, "b", None)
    if factory := uvloop_factory():
        contestants += _awaited(n, "b uvloop:", factory)
    else:
        report.notes.append(f"b {NO_UVLOOP}")
    report.rows += compare(contestants, 1 if quick else 7)


def _awaited(n: int, section: str, factory: LoopFactory) -> list[Contestant]:
    x, executor, to_thread = tiny(), f"{section} run_in_executor", f"{section} to_thread"
    third = Asked(ratio=1 / 3, aim=0.1)

    def on(main: Callable[[], Any]) -> Callable[[], float]:
        return on_loop(main, factory)

    return [
        Contestant(executor, on(lambda: _await_each(n, _in_executor())), n, to=executor),
        Contestant(to_thread, on(lambda: _await_each(n, lambda: asyncio.to_thread(plus_one, x))), n, to=executor),
        Contestant(f"{section} NumPy inline", lambda: timed(lambda: add_repeatedly(x, n)), n, to=executor),
        Contestant(f"{section} asyncsched, await x + 1", on(lambda: _operators(n, TINY)), n, to=executor, asked=third),
        *[
            Contestant(f"{section} asyncsched, {name}", on(partial(_operators, n, shape)), n, to=executor)
            for name, shape in LARGER.items()
        ],
        Contestant(f"{section} asyncsched, await s.call(fn, x)", on(lambda: _calls(n)), n, to=executor),
    ]


def _in_executor() -> Callable[[], Awaitable[object]]:
    x = tiny()
    return lambda: asyncio.get_running_loop().run_in_executor(None, plus_one, x)


async def _await_each(n: int, once: Callable[[], Awaitable[object]]) -> float:
    await once()  # the executor's first thread starts
    started = perf_counter()
    for _ in range(n):
        await once()
    return perf_counter() - started


async def _operators(n: int, shape: tuple[int, int]) -> float:
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.ones(shape, np.float32))
        return await _await_each(n, lambda: x + 1)


async def _calls(n: int) -> float:
    async with asc.Scheduler("cpu") as s:
        x = await s.put(tiny())
        return await _await_each(n, lambda: s.call(plus_one, x))


# -- c: the first of ten ------------------------------------------------------------------------------------------


def first_of_ten(quick: bool, report: Report) -> None:
    side = 100 if quick else 1000
    x = np.ones((side, side), np.float32)
    overlap = "as many at once as streams, each on its part of the processors"
    contestants = [
        Contestant("c NumPy inline, one matmul", lambda: timed(lambda: x @ x), unit="ms"),
        Contestant("c asyncsched, one matmul", on_loop(lambda: _first_of(1, side)), unit="ms", asked=Asked(1.2)),
        Contestant("c asyncsched, first of ten", on_loop(lambda: _first_of(10, side)), unit="ms", note=lambda: overlap),
        Contestant(
            "c one stream, first of ten", on_loop(lambda: _first_of(10, side, streams=1)), unit="ms", asked=Asked(1.2)
        ),
    ]
    report.rows += compare(contestants, 1 if quick else 21)


async def _first_of(queued: int, side: int, streams: int | None = None) -> float:
    async with asc.Scheduler("cpu", streams=streams) as s:
        x = await s.put(np.ones((side, side), np.float32))
        await (x @ x)
        started = perf_counter()
        products = [x @ x for _ in range(queued)]
        await products[0]
        return perf_counter() - started


# -- d: as the number of operations grows -------------------------------------------------------------------------


def growth(quick: bool, report: Report) -> None:
    counts = (100, 1_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    report.rows += compare([_inline(n, counts) for n in counts], 1 if quick else 5)
    for kind in ("independent", "chain", "independent, no gc"):
        contestants = [c for n in counts for c in _pending(kind, n, counts)]
        report.rows += compare(contestants, 1 if quick else 3)


def _inline(n: int, counts: Sequence[int]) -> Contestant:
    repeats = max(1, counts[1] // n)  # a short round is mostly noise
    run = on_loop(lambda: _issue_unbounded(n, repeats))
    return Contestant(f"d inline, n={n:,}", run, n * repeats, asked=_flat(n, counts))


def _pending(kind: str, n: int, counts: Sequence[int]) -> list[Contestant]:
    """Two contestants for one thing: the first runs it, the second tells how long it took altogether."""
    run, repeats = Pending(kind, n), max(1, counts[1] // n)

    def contestant(what: str, round: Callable[[], float]) -> Contestant:
        to = f"d {kind}, {what}, n={counts[0]:,}"
        return Contestant(f"d {kind}, {what}, n={n:,}", round, n * repeats, to=to, asked=_flat(n, counts))

    return [contestant("issue", lambda: run.issue(repeats)), contestant("issue to barrier", lambda: run.total)]


def _flat(n: int, counts: Sequence[int]) -> Asked | None:
    return Asked(1.4) if n != counts[0] else None


async def _issue_unbounded(n: int, repeats: int) -> float:
    async with asc.Scheduler("cpu", max_pending=None) as s:
        x = await s.put(tiny())
        started = perf_counter()
        for _ in range(repeats):
            await add_repeatedly(x, n)
        return perf_counter() - started


def _fill(s: asc.Scheduler, gate: threading.Event) -> None:
    """Take every slot until the gate opens, so that what is issued meanwhile is pending."""
    while s.statistics().tasks_in_flight < s.statistics().max_ops:
        s.submit_nowait(gate.wait)


class Pending:
    """Operations that all wait behind callables until the last is issued.

    Python's garbage collector visits what is pending over and over as it grows, about five times each, which costs as
    much as issuing does. So one kind runs without it, to tell the scheduler's growth from the collector's.
    """

    def __init__(self, kind: str, n: int) -> None:
        self._chain = kind == "chain"
        self._collect = not kind.endswith("no gc")
        self._n = n
        self.total = 0.0

    def issue(self, repeats: int) -> float:
        """Seconds of issuing. `total` then has the seconds up to the barrier, without the wait for the gate."""
        self.total = 0.0
        if not self._collect:
            gc.disable()
        try:
            return sum(on_loop(self.run)() for _ in range(repeats))
        finally:
            gc.enable()

    async def run(self) -> float:
        async with asc.Scheduler("cpu", max_pending=None) as s:
            x = await s.put(tiny())
            gate = threading.Event()
            _fill(s, gate)
            started = perf_counter()
            y = self._issue(x)
            issued = perf_counter() - started
            gate.set()
            await s.barrier()
            self.total += perf_counter() - started
            await y
        return issued

    def _issue(self, x: Any) -> Any:
        if not self._chain:
            return add_repeatedly(x, self._n)
        for _ in range(self._n):
            x = x + 1
        return x


# -- e: bytes per pending operation -------------------------------------------------------------------------------


def descriptors(quick: bool, report: Report) -> None:
    n = 2_000 if quick else 100_000
    cases: dict[str, Callable[[asc.Scheduler, Any], Any]] = {
        "e operator, handle kept": lambda _, x: [x + 1 for _ in range(n)],
        "e operator, handle dropped": lambda _, x: add_repeatedly(x, n),
        "e submit_nowait(fn, x), handle kept": lambda s, x: [s.submit_nowait(plus_one, x) for _ in range(n)],
    }
    for name, hold in cases.items():
        nbytes = on_loop(partial(_traced, hold))() / n
        report.rows.append(Row(name, nbytes, "B/op", [nbytes / 1024], "1 KiB", Asked(median=1024), f"{n:,} pending"))


async def _traced(hold: Callable[[asc.Scheduler, Any], Any]) -> float:
    """Bytes allocated and kept while everything issued is pending."""
    async with asc.Scheduler("cpu", max_pending=None) as s:
        x = await s.put(tiny())
        gate = threading.Event()
        _fill(s, gate)
        tracemalloc.start()
        held = hold(s, x)
        nbytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gate.set()
        await s.barrier()
        del held
    return nbytes


# -- f: import time, of a processor -------------------------------------------------------------------------------


def imports(quick: bool, report: Report) -> None:
    contestants = [
        Contestant("f import numpy", lambda: import_seconds("numpy"), unit="s"),
        Contestant("f import asyncsched", lambda: import_seconds("asyncsched"), unit="s", asked=Asked(ratio=2)),
    ]
    report.rows += compare(contestants, 1 if quick else 15)


def import_seconds(module: str) -> float:
    code = f"from time import process_time as t; a = t(); import {module}; print(t() - a)"
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=compiled).stdout)


if __name__ == "__main__":
    run_bench("overhead", {"a": issue, "b": await_each, "c": first_of_ten, "d": growth, "e": descriptors, "f": imports})
