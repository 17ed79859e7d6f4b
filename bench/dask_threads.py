"""`asyncsched.cluster.get` beside Dask's threaded scheduler: the cost of a task, and the memory of a graph of roots.

*Tree*: some 20,000 tasks, each of which adds two integers. *Roots*: the mean of 96 blocks of 8 MiB, four by four, under
    a limit of 192 MiB, each time in a process of its own. Both with eight threads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from operator import add
from time import perf_counter, process_time
from typing import Any

from .harness.contestant import Run, Work
from .harness.rows import OURS, Row
from .libraries import Library
from .perceptron import new_peak, resident

THREADS, TASKS, BLOCKS, LIMIT = 8, 20_000, 96, "192 MiB"


def scheduler(library: Library) -> tuple[Any, dict[str, Any]]:
    """A scheduler of Dask's, with its keywords."""
    if library.module == "dask":
        from dask.threaded import get

        return get, {"num_workers": THREADS}
    from asyncsched import cluster

    cluster.using(streams=THREADS, max_bytes=LIMIT)
    return cluster.get, {}


def tree(leaves: int) -> tuple[dict[Any, Any], Any]:
    graph: dict[Any, Any] = {("x", 0, i): (int, i) for i in range(leaves)}
    level, width = 0, leaves
    while width > 1:
        for i in range((width + 1) // 2):
            pair = ("x", level, 2 * i), ("x", level, 2 * i + 1)
            graph["x", level + 1, i] = (add, *pair) if 2 * i + 1 < width else (int, pair[0])
        level, width = level + 1, (width + 1) // 2
    return graph, ("x", level, 0)


async def adding(library: Library, tasks: int) -> Run:
    leaves = tasks // 2
    graph, top = tree(leaves)
    get, options = await asyncio.to_thread(scheduler, library)

    async def run(count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(get, graph, top, **options) == leaves * (leaves - 1) // 2

    return run


async def roots(library: Library, blocks: int, *, memory: bool) -> Run:
    """The mean of so many blocks: seconds, or bytes by which the process grew at most."""
    import dask.array as da

    def mean(fields: int) -> Any:
        x = da.random.default_rng(0).random((fields, 1024, 1024), chunks=(1, 1024, 1024))
        return x.mean(axis=0).std()

    get, options = await asyncio.to_thread(scheduler, library)
    await asyncio.to_thread(mean(2).compute, scheduler=get, **options)
    before = new_peak()

    async def run(count: int) -> float:
        began = perf_counter()
        await asyncio.to_thread(mean(blocks).compute, scheduler=get, **options)
        return float(resident("VmHWM") - before) if memory else perf_counter() - began

    return run


WORKS: dict[str, Work] = {
    "task": Work(adding, TASKS, 100),
    "processors": Work(adding, TASKS, 100, clock=process_time),
    "roots": Work(partial(roots, memory=False), BLOCKS, 4, once=True),
    "memory": Work(partial(roots, memory=True), BLOCKS, 4, once=True),
}
_ROOTS = " OPENBLAS_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1048576"


def _row(key: str, title: str, unit: str, words: str = "", *, fresh: bool = False) -> Row:
    work = f"dask_threads.{key}"
    return Row(key, title, unit, {"Dask's threads": (f"dask{words}", work), OURS: (OURS + words, work)}, fresh=fresh)


ROWS = (
    _row("task", "a task", "us"),
    _row("processors", "a task: time of all processors", "us"),
    _row("roots", f"a mean over {BLOCKS} blocks of 8 MiB", "s", _ROOTS, fresh=True),
    _row("memory", "growth of the process in such a mean", "MiB", _ROOTS, fresh=True),
)
