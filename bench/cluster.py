"""The cost of an operation on a cluster of processes, and the size from which a cluster pays.

Independent products of square matrices of several sizes, on this machine's streams and on a local cluster of as many
workers with one thread each. Twenty operations on one array, one by one and as a captured step. Bursts of functions and
of tiny operations. The cluster pays where its ratio is below one. That is nowhere if its workers have only the
processors of the streams: then the table says what a task costs there, however small it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from .harness.rows import Result, Row
from .harness.subjects import Together
from .harness.turns import Turns

SIZES = (8, 256, 512, 1024)
TASKS, STEPS, BURST = 16, 20, 1_000
WARM = 3  # seconds: by then numba, where it is installed, has compiled a captured step
MACHINE, CLUSTER = "this machine", "cluster"

Timed = tuple[str, int, Callable[[], Any]]  # title, tasks, and what issues them


def products(xs: list[asc.Tensor]) -> list[asc.Tensor]:
    return [xs[i % 4] @ xs[(i + 1) % 4] for i in range(TASKS)]


def chain(x: asc.Tensor) -> asc.Tensor:
    for _ in range(STEPS // 2):
        x = asc.tanh(x) * 1.5
    return x


async def works(s: asc.Scheduler, sizes: tuple[int, ...]) -> dict[str, Timed]:
    found: dict[str, Timed] = {}
    for n in sizes:
        xs = [await s.put(np.random.default_rng(i).random((n, n), np.float32)) for i in range(4)]
        found[f"product-{n}"] = f"a product of {n} x {n}", TASKS, partial(products, xs)
    small = await s.put(np.ones((8, 8), np.float32))
    x, title = await s.put(np.ones((256, 256), np.float32)), f"{STEPS} operations on 256 x 256, "
    found["one-by-one"] = f"{title}one by one", 1, partial(chain, x)
    found["captured"] = f"{title}captured", 1, partial(await s.capture(chain, x), x)
    found["burst"] = f"a function, {BURST:,} at once", BURST, lambda: [s.submit_nowait(int, i) for i in range(BURST)]
    found["small"] = f"an operation on 8 x 8, {BURST:,} at once", BURST, lambda: [small + i for i in range(BURST)]
    return found


async def timed(s: asc.Scheduler, work: Timed) -> float:
    """Milliseconds for a task, until all results are there."""
    _, tasks, issue = work
    began, made = perf_counter(), issue()
    await s.barrier()
    del made
    return 1e3 * (perf_counter() - began) / tasks


def measured(turns: Turns) -> Iterator[Result]:
    yield from asyncio.run(_measured(SIZES[:1] if turns.quick else SIZES, turns.rounds))


async def _measured(sizes: tuple[int, ...], rounds: int) -> list[Result]:
    from distributed import LocalCluster

    workers, found = min(os.cpu_count() or 1, 8), []
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    async with LocalCluster(asynchronous=True, silence_logs=50, **options) as cluster:
        device = asc.cluster.DaskDevice(cluster.scheduler_address, workers)
        async with asc.Scheduler("cpu", streams=workers) as here, asc.Scheduler(device) as there:
            mine, theirs = await works(here, sizes), await works(there, sizes)
            for key, (title, *_) in mine.items():
                until, both = perf_counter() + (WARM if rounds > 1 else 0), list[tuple[float, float]]()
                while len(both) < rounds:
                    pair = await timed(here, mine[key]), await timed(there, theirs[key])
                    both += [pair] if perf_counter() > until else []
                values = {MACHINE: [a for a, _ in both], CLUSTER: [b for _, b in both]}
                found.append(Row(key, title, "ms").result(values))
    return found


ROWS = (Together("all", measured),)
