"""`asyncsched.cluster.get` beside Dask's threaded scheduler: what a task costs, and how much a graph of roots holds.

    python -m bench.dask_threads [threads]       writes bench/results/dask_threads.json

*Tree*: 20,010 tasks that add two integers each. Both in turn, seven times; medians. *Roots*: the mean of 96
blocks of 8 MiB, four by four, under a limit of 192 MiB. Each in a process of its own, three times; medians.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from operator import add
from statistics import median
from time import perf_counter, process_time
from typing import Any

from .measure import Report, Row
from .results import RESULTS

LEAVES, BLOCKS, LIMIT, MIB = 10_001, 96, "192 MiB", 2**20
WAYS = ("asyncsched", "dask")


def way(name: str, threads: int) -> tuple[Any, dict[str, Any]]:
    """A scheduler of Dask's, with its keywords."""
    if name == "dask":
        from dask.threaded import get

        return get, {"num_workers": threads}
    from asyncsched import cluster

    cluster.using(streams=threads, max_bytes=LIMIT)
    return cluster.get, {}


def tree() -> tuple[dict[Any, Any], Any]:
    graph: dict[Any, Any] = {("x", 0, i): (int, i) for i in range(LEAVES)}
    level, width = 0, LEAVES
    while width > 1:
        for i in range((width + 1) // 2):
            pair = ("x", level, 2 * i), ("x", level, 2 * i + 1)
            graph["x", level + 1, i] = (add, *pair) if 2 * i + 1 < width else (int, pair[0])
        level, width = level + 1, (width + 1) // 2
    return graph, ("x", level, 0)


def overhead(threads: int) -> dict[str, tuple[float, float]]:
    """Seconds a task, of the clock and of processors, by way."""
    (graph, top), found = tree(), {name: list[tuple[float, float]]() for name in WAYS}
    schedulers = {name: way(name, threads) for name in WAYS}
    for turn in range(8):
        for name, (get, options) in schedulers.items():
            begun, spent = perf_counter(), process_time()
            assert get(graph, top, **options) == LEAVES * (LEAVES - 1) // 2
            if turn:  # the first warms up
                found[name].append(((perf_counter() - begun) / len(graph), (process_time() - spent) / len(graph)))
    return {name: (median(a for a, _ in took), median(b for _, b in took)) for name, took in found.items()}


def roots(name: str, threads: int) -> dict[str, float]:
    """Seconds, and MiB by which the resident set grew."""
    import dask.array as da
    import psutil

    def mean(fields: int) -> Any:
        x = da.random.default_rng(0).random((fields, 1024, 1024), chunks=(1, 1024, 1024))
        return x.mean(axis=0).std()

    get, options = way(name, threads)
    mean(2).compute(scheduler=get, **options)
    lazy = mean(BLOCKS)
    process, ended, seen = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def sample() -> None:
        while not ended.wait(0.002):
            seen.append(process.memory_info().rss - before)

    thread = threading.Thread(target=sample)
    thread.start()
    begun = perf_counter()
    lazy.compute(scheduler=get, **options)
    seconds = perf_counter() - begun
    ended.set()
    thread.join()
    return {"seconds": seconds, "grown": max(seen) / MIB}


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    if len(sys.argv) > 2:
        print(json.dumps(roots(sys.argv[2], threads)))
        return
    tasks = overhead(threads)
    settings = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(MIB)}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _ in range(3):
        for name in WAYS:
            command = [sys.executable, "-m", "bench.dask_threads", str(threads), name]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=settings)
            runs[name].append(json.loads(done.stdout))
    held = {name: [median(run[what] for run in runs[name]) for what in ("seconds", "grown")] for name in WAYS}
    print(f"{threads} threads{'us a task':>18}{'processor':>12}{'roots':>12}{'grown':>12}")
    for name in WAYS:
        clock, processor = (1e6 * seconds for seconds in tasks[name])
        print(f"{name:12}{clock:15.1f}{processor:12.1f}{held[name][0]:10.2f} s{held[name][1]:8.0f} MiB")
    ours, theirs = ([*tasks[name], *held[name]] for name in WAYS)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    what = {"a task": "s", "a task, processor": "s", "roots, time": "s", "roots, memory": "MiB"}
    rows = [
        Row(name, mine, unit, [ratio], "Dask's threads")
        for (name, unit), mine, ratio in zip(what.items(), ours, ratios, strict=True)
    ]
    Report("dask_threads", rows).save(str(RESULTS / "dask_threads.json"))
    print(f"{'ratio':12}{ratios[0]:15.2f}{ratios[1]:12.2f}{ratios[2]:12.2f}{ratios[3]:12.2f}")


if __name__ == "__main__":
    main()
