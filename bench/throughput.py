"""How fast streams run: `python -m bench.throughput`.

a  1,000 x `y = x + 1` on shape (1000, 1000), on one and two streams     b  a training loop, bounded and unbounded
c  (a) with other bounds on the operations in flight
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from . import synthetic
from .graphs import add_repeatedly, plus_one
from .measure import ROOT, Asked, Contestant, Report, Row, compare, on_loop, run_bench, timed

WORKERS = 2
MAX_OPS = (1, 2, 4, 16, 64, 256, None)


def large(quick: bool) -> Any:
    return np.ones((200, 200) if quick else (1000, 1000), np.float32)


# -- a: large additions -------------------------------------------------------------------------------------------


def additions(quick: bool, report: Report) -> None:
    n, x = 50 if quick else 1_000, large(quick)
    contestants = [
        _inline("a NumPy inline", x, n),
        Contestant("a asyncsched, streams=2", on_loop(lambda: _add(x, n, streams=2)), n, asked=Asked(0.9, aim=0.6)),
        Contestant("a asyncsched, streams=1", on_loop(lambda: _add(x, n, streams=1)), n),
        Contestant("a run_in_executor, 2 workers", on_loop(lambda: _in_executor(x, n)), n),
        Contestant("a to_thread, 2 workers", on_loop(lambda: _to_thread(x, n)), n),
    ]
    report.rows += compare(contestants, 1 if quick else 9)


def _inline(name: str, x: Any, n: int) -> Contestant:
    return Contestant(name, lambda: timed(lambda: add_repeatedly(x, n)), n)


async def _add(array: Any, n: int, **options: Any) -> float:
    async with asc.Scheduler("cpu", **options) as s:
        x = await s.put(array)
        started = perf_counter()
        add_repeatedly(x, n)
        await s.barrier()
        return perf_counter() - started


async def _in_executor(x: Any, n: int) -> float:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(WORKERS) as pool:
        return await _drained(lambda: loop.run_in_executor(pool, plus_one, x), n)


async def _to_thread(x: Any, n: int) -> float:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKERS))
    return await _drained(lambda: asyncio.create_task(asyncio.to_thread(plus_one, x)), n)


async def _drained(issue: Callable[[], Awaitable[object]], n: int) -> float:
    """Issue everything, then await in order, letting each result go: together they would be gigabytes."""
    started = perf_counter()
    waiting = deque(issue() for _ in range(n))
    while waiting:
        await waiting.popleft()
    return perf_counter() - started


# -- b: a training loop -------------------------------------------------------------------------------------------


def train(quick: bool, report: Report) -> None:
    steps, size = 1 if quick else 20, synthetic.size(quick)
    inline, bounded, unbounded = "b training, NumPy inline", "b training, max_ops=64", "b training, unbounded"
    free, held = on_loop(lambda: _train(steps, size, "unbounded")), on_loop(lambda: _train(steps, size, "bounded"))
    contestants = [
        Contestant(inline, lambda: synthetic.inline(steps, size), steps, unit="ms"),
        Contestant(unbounded, free, steps, unit="ms", to=inline),
        Contestant(bounded, held, steps, unit="ms", to=unbounded, asked=Asked(ratio=1.0)),
    ]
    report.rows += compare(contestants, 1 if quick else 5)
    report.rows += _memory(steps if quick else steps * 3, size)


async def _train(steps: int, size: str, bounds: str) -> float:
    seconds, _ = await synthetic.scheduled(steps, size, bounds)
    return seconds


def _memory(steps: int, size: str) -> list[Row]:
    found = {who: _peaks(who, steps, size) for who in ("inline", "unbounded", "bounded")}
    return [
        _bytes_row(f"b {kind} bytes, {who}", peaks[kind], found["unbounded"][kind], f"peak over {steps} steps")
        for kind in ("tracked", "resident")
        for who, peaks in found.items()
        if kind != "tracked" or who != "inline"
    ]


def _bytes_row(name: str, nbytes: int, other: int, note: str) -> Row:
    return Row(name, nbytes / 2**20, "MiB", [nbytes / other if other else 1.0], "unbounded", note=note)


def _peaks(who: str, steps: int, size: str) -> dict[str, int]:
    command = [sys.executable, "-m", "bench.synthetic", who, str(steps), size]
    run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(run.stdout)
    return found


# -- c: other bounds ----------------------------------------------------------------------------------------------


def bounds(quick: bool, report: Report) -> None:
    n, x = 50 if quick else 1_000, large(quick)
    contestants = [_inline("c NumPy inline", x, n)]
    for max_ops in MAX_OPS:
        run = on_loop(partial(_add, x, n, streams=2, max_ops=max_ops))
        contestants.append(Contestant(f"c streams=2, max_ops={max_ops}", run, n))
    report.rows += compare(contestants, 1 if quick else 7)


if __name__ == "__main__":
    run_bench("throughput", {"a": additions, "b": train, "c": bounds})
