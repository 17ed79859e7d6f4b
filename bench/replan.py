"""What `python -m asyncsched replan` predicts, beside what happens: `python -m bench.replan`.

a  a loader whose batches are multiplied: time and peak of tracked bytes at three limits, from a run under one of them
b  a perceptron trained with a window, by AdamW

In each round a program is traced under the middle limit, then runs under each, and is replayed under each. (Traced
without one its bodies take longer than they do with one, since then they write to memory that is used anew.) The ratio
is how far off the prediction is, whichever way: the larger of the two over the smaller.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched._core.ledger import Limits
from asyncsched.observe import Recording
from asyncsched.observe.replan import smallest_limit, streams_of
from asyncsched.observe.replay import Outcome, Program

from .measure import Asked, Report, Row, run_bench

MIB = 2**20
TIME, PEAK = Asked(ratio=1.15), Asked(ratio=1.05)
Work = Callable[[asc.Scheduler], Awaitable[Any]]


async def loader(s: asc.Scheduler, steps: int, size: int) -> None:
    rng = np.random.default_rng(0)
    weights = [await s.put((rng.standard_normal((size, size)) * 0.03).astype(np.float32)) for _ in range(2)]
    batch = rng.standard_normal((2 * size, size)).astype(np.float32)
    means = []
    for _ in range(steps):
        x = await s.put(batch)
        means.append((asc.maximum(x @ weights[0], 0) @ weights[1]).mean())
        del x
    await asc.gather(*means)


async def training(s: asc.Scheduler, steps: int, size: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2 * size, size)).astype(np.float32), rng.integers(0, 10, 2 * size)
    model = nn.Sequential(nn.Linear(size, 2 * size, rng=rng), nn.ReLU(), nn.Linear(2 * size, 10, rng=rng))
    optimizer, window = optim.AdamW(model.parameters()), s.window(2)
    for _ in range(steps):
        async with window:
            loss = nn.cross_entropy(model(await s.put(x)), await s.put(y))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del loss
    await s.barrier()


async def _timed(work: Work, limit: int | None, trace: asc.Trace | None = None) -> tuple[float, int]:
    async with asc.Scheduler("cpu", max_bytes=limit, instruments=[trace] if trace else []) as s:
        started = perf_counter()
        await work(s)
        await s.barrier()
        return perf_counter() - started, s.statistics().peak_bytes


def _recorded(work: Work, limit: int | None = None) -> Program:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        trace = asc.Trace(path, details=0)  # what is drawn is not replayed
        asyncio.run(_timed(work, limit, trace))
        trace.close()
        return Program.of(Recording.read(path))


def _replayed(program: Program, limit: int | None) -> Outcome:
    return program.run(Limits(64, limit), streams_of(program))


def _predicted(name: str, work: Work, rounds: int) -> list[Row]:
    """Rows for the smallest limit that a replay finishes under, what the program takes without any, and between."""
    asyncio.run(_timed(work, None))  # warm
    program = _recorded(work)
    # A replay tells the smallest limit to within 1%, and a real run holds a small result more at one time or another.
    smallest = int(smallest_limit(program, streams_of(program)) * 1.01)
    peak = _replayed(program, None).peak_bytes
    limits = {"the smallest limit": smallest, "between": int((smallest * peak) ** 0.5), "what it takes": peak}
    found: dict[str, list[tuple[float, float, float, float]]] = {which: [] for which in limits}
    for _ in range(rounds):
        program = _recorded(work, limits["between"])
        for which, limit in limits.items():
            seconds, tracked = asyncio.run(_timed(work, limit))
            told = _replayed(program, limit)
            found[which].append((told.seconds, seconds, told.peak_bytes, tracked))
    rows = []
    for which, results in found.items():
        told, seconds, peaks, tracked = (list(column) for column in zip(*results, strict=True))
        at = f"{name}, {which}"
        rows += [
            _row(f"{at}: time", "s", told, seconds, 1.0, TIME),
            _row(f"{at}: peak", "MiB", peaks, tracked, 1 / MIB, PEAK),
        ]
    return rows


def _row(name: str, unit: str, told: list[float], real: list[float], scale: float, asked: Asked) -> Row:
    off = [max(a, b) / min(a, b) for a, b in zip(told, real, strict=True)]
    note = f"predicted {median(told) * scale:.3g} {unit}"
    return Row(name, median(real) * scale, unit, off, "predicted", asked, note)


def loading(quick: bool, report: Report) -> None:
    work = partial(loader, steps=6 if quick else 40, size=128 if quick else 768)
    report.rows += _predicted("a loader", work, 1 if quick else 5)


def learning(quick: bool, report: Report) -> None:
    work = partial(training, steps=3 if quick else 40, size=64 if quick else 512)
    report.rows += _predicted("b training", work, 1 if quick else 5)


if __name__ == "__main__":
    run_bench("replan", {"a": loading, "b": learning})
