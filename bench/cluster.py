"""What an operation costs on a cluster of processes, and from which size on one pays.

    python -m bench.cluster       writes bench/results/cluster.json

Independent products of square matrices of several sizes, on this machine's streams and on a local cluster of as many
workers of one thread each; and twenty operations on one array, one by one and as a captured step. The cluster pays from
where its column is the smaller one, which is nowhere if its workers have but the processors that the streams have; the
rest of the table says what a task costs there however small it is.
"""

from __future__ import annotations

import asyncio
import os
from statistics import median
from time import perf_counter, process_time

import numpy as np
from distributed import LocalCluster

import asyncsched as asc

from .measure import Report, Row
from .results import RESULTS

SIZES = (8, 256, 512, 1024)
TASKS, ROUNDS, STEPS = 16, 7, 20
WARM = 3  # seconds: by then numba, where it is installed, has compiled a captured step
Times = tuple[float, float]  # milliseconds a task, and of those this process was busy


async def products(s: asc.Scheduler, n: int) -> Times:
    """So many products at once, of which a number each is awaited."""
    xs = [await s.put(np.random.default_rng(i).random((n, n), np.float32)) for i in range(4)]
    began, busy = perf_counter(), process_time()
    found = [xs[i % 4] @ xs[(i + 1) % 4] for i in range(TASKS)]
    await s.barrier()
    del found
    return 1e3 * (perf_counter() - began) / TASKS, 1e3 * (process_time() - busy) / TASKS


def chain(x: asc.Tensor) -> asc.Tensor:
    for _ in range(STEPS // 2):
        x = asc.tanh(x) * 1.5
    return x


async def steps(s: asc.Scheduler, captured: bool) -> float:
    """Milliseconds of twenty operations one after the other, until the result is there."""
    x = await s.put(np.ones((256, 256), np.float32))
    step = await s.capture(chain, x) if captured else chain
    times = []
    warm = perf_counter() + WARM
    while len(times) < ROUNDS:
        began = perf_counter()
        y = step(x)
        await s.barrier()
        del y
        if began > warm:
            times.append(1e3 * (perf_counter() - began))
    return median(times)


async def main() -> None:
    workers = min(os.cpu_count() or 1, 8)
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    async with LocalCluster(asynchronous=True, silence_logs=50, **options) as cluster:
        device = asc.cluster.DaskDevice(cluster.scheduler_address, workers)
        async with asc.Scheduler("cpu", streams=workers) as here, asc.Scheduler(device) as there:
            await products(there, 8), await products(here, 8)
            print(f"ms a product of n x n float32, {workers} streams or workers, medians of {ROUNDS}")
            print(f"{'n':>6} {'machine':>10} {'cluster':>10} {'of those in this process':>25}")
            rows: list[Row] = []
            for n in SIZES:
                rounds = [(await products(here, n), await products(there, n)) for _ in range(ROUNDS)]
                local, remote, own = (median(one) for one in zip(*((a[0], b[0], b[1]) for a, b in rounds), strict=True))
                print(f"{n:>6} {local:>10.3f} {remote:>10.3f} {own:>25.3f}")
                rows.append(Row(f"a product, n={n}", remote, "ms", [remote / local], "this machine"))
            for captured in (False, True):
                what = "as a captured step" if captured else "one by one"
                local, remote = await steps(here, captured), await steps(there, captured)
                print(f"ms of {STEPS} operations {what}: machine {local:.2f}, cluster {remote:.2f}")
                rows.append(Row(f"{STEPS} operations {what}", remote, "ms", [remote / local], "this machine"))
    Report("cluster", rows).save(str(RESULTS / "cluster.json"))


if __name__ == "__main__":
    asyncio.run(main())
