"""What an operation costs on a cluster of processes, and from which size on one pays.

Independent products of square matrices of several sizes, on this machine's streams and on a local cluster of as many
workers of one thread each; and twenty operations on one array, one by one and as a captured step. The cluster pays from
where its column is the smaller one, which is nowhere if its workers have but the processors that the streams have; the
rest of the table says what a task costs there however small it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from .harness.rows import Result, Row
from .harness.subjects import Together
from .harness.turns import Turns

SIZES = (8, 256, 512, 1024)
TASKS, STEPS = 16, 20
WARM = 3  # seconds: by then numba, where it is installed, has compiled a captured step
MACHINE, CLUSTER = "this machine", "cluster"


async def products(s: asc.Scheduler, n: int) -> float:
    """So many products at once: milliseconds a task."""
    xs = [await s.put(np.random.default_rng(i).random((n, n), np.float32)) for i in range(4)]
    began = perf_counter()
    found = [xs[i % 4] @ xs[(i + 1) % 4] for i in range(TASKS)]
    await s.barrier()
    del found
    return 1e3 * (perf_counter() - began) / TASKS


def chain(x: asc.Tensor) -> asc.Tensor:
    for _ in range(STEPS // 2):
        x = asc.tanh(x) * 1.5
    return x


async def steps(s: asc.Scheduler, captured: bool, rounds: int) -> list[float]:
    """Milliseconds of twenty operations one after the other, until the result is there."""
    x = await s.put(np.ones((256, 256), np.float32))
    step = await s.capture(chain, x) if captured else chain
    times: list[float] = []
    warm = perf_counter() + (WARM if rounds > 1 else 0)
    while len(times) < rounds:
        began = perf_counter()
        y = step(x)
        await s.barrier()
        del y
        if began > warm:
            times.append(1e3 * (perf_counter() - began))
    return times


def measured(turns: Turns) -> Iterator[Result]:
    yield from asyncio.run(_measured(SIZES[:1] if turns.quick else SIZES, turns.rounds))


async def _measured(sizes: tuple[int, ...], rounds: int) -> list[Result]:
    from distributed import LocalCluster

    workers, found = min(os.cpu_count() or 1, 8), []
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    async with LocalCluster(asynchronous=True, silence_logs=50, **options) as cluster:
        device = asc.cluster.DaskDevice(cluster.scheduler_address, workers)
        async with asc.Scheduler("cpu", streams=workers) as here, asc.Scheduler(device) as there:
            await products(there, 8), await products(here, 8)
            for n in sizes:
                both = [(await products(here, n), await products(there, n)) for _ in range(rounds)]
                values = {MACHINE: [a for a, _ in both], CLUSTER: [b for _, b in both]}
                found.append(Row(f"product-{n}", f"a product of {n} x {n}", "ms").result(values))
            for key, captured in (("one-by-one", False), ("captured", True)):
                title = f"{STEPS} operations on 256 x 256, {key.replace('-', ' ')}"
                values = {MACHINE: await steps(here, captured, rounds), CLUSTER: await steps(there, captured, rounds)}
                found.append(Row(key, title, "ms").result(values))
    return found


ROWS = (Together("all", measured),)
