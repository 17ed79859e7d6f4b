"""Predictions of `python -m asyncsched replan` beside real runs: time and peak of tracked bytes at three limits, for a
loader whose batches are multiplied, and for a perceptron trained with a window, by AdamW.

In each round a program is traced under the middle limit, then run under each limit, and replayed under each. (Traced
without a limit, its bodies take longer than with one, since with a limit they write to memory that is used again.) The
ratio says how far off the prediction is, in either direction: the larger of the two over the smaller.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched._core.ledger import Limits
from asyncsched.observe import Recording
from asyncsched.observe.replan import smallest_limit, streams_of
from asyncsched.observe.replay import Outcome, Program

from .harness.rows import Result, Row, Target
from .harness.subjects import Together
from .harness.turns import Turns

MIB = 2**20
HAPPENS, PREDICTED = "what happens", "predicted"
TIME = {PREDICTED: Target(1.15, "good enough to choose a limit by")}
PEAK = {PREDICTED: Target(1.05, "good enough to trust a limit")}
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
        trace = asc.Trace(path, details=0)  # pictures are not replayed
        asyncio.run(_timed(work, limit, trace))
        trace.close()
        return Program(Recording.read(path))


def _replayed(program: Program, limit: int | None) -> Outcome:
    return program.run(Limits(64, limit), streams_of(program))


def _predicted(key: str, title: str, program_of: Any, sizes: tuple[Any, Any], turns: Turns) -> Iterator[Result]:
    """Rows for the smallest limit under which a replay finishes, for the peak without a limit, and for a limit between.

    Args:
        sizes: the steps and the size of `program_of`; and those of a smoke run.
    """
    steps, size = sizes[turns.quick]
    work: Work = partial(program_of, steps=steps, size=size)
    asyncio.run(_timed(work, None))  # warm
    program = _recorded(work)
    # A replay finds the smallest limit to within 1%, and a real run holds one more small result now and then.
    smallest = int(smallest_limit(program, streams_of(program)) * 1.01)
    peak = _replayed(program, None).peak_bytes
    limits = {"smallest": smallest, "between": int((smallest * peak) ** 0.5), "most": peak}
    at = {"smallest": "the smallest limit", "between": "a limit between", "most": "what it takes"}
    found: dict[str, list[tuple[float, ...]]] = {which: [] for which in limits}
    for _ in range(min(turns.rounds, 5)):
        program = _recorded(work, limits["between"])
        for which, limit in limits.items():
            seconds, peak = asyncio.run(_timed(work, limit))
            told = _replayed(program, limit)
            found[which].append((seconds, told.seconds, peak / MIB, told.peak_bytes / MIB))
    for which, results in found.items():
        real, predicted, tracked, peaks = (list(column) for column in zip(*results, strict=True))
        times = Row(f"{key}-{which}-time", f"{title}, {at[which]}: time", "s", targets=TIME)
        bytes_ = Row(f"{key}-{which}-peak", f"{title}, {at[which]}: peak", "MiB", targets=PEAK)
        yield times.result({HAPPENS: real, PREDICTED: predicted}, off=True)
        yield bytes_.result({HAPPENS: tracked, PREDICTED: peaks}, off=True)


ROWS = (
    Together("loader", partial(_predicted, "loader", "a loader", loader, ((40, 768), (6, 128)))),
    Together("training", partial(_predicted, "training", "training", training, ((40, 512), (3, 64)))),
)
