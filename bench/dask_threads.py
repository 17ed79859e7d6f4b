"""`asyncsched.cluster.get` beside Dask's threaded scheduler: what a task costs, and how much a graph of roots holds.

*Tree*: 20,010 tasks that add two integers each. *Roots*: the mean of 96 blocks of 8 MiB, four by four, under a limit of
192 MiB, each time in a process of its own. Both with eight threads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from operator import add
from time import perf_counter, process_time
from typing import Any

from .harness.contestant import Prepare, Run, Work
from .harness.rows import Row
from .libraries import Library
from .perceptron import new_peak, resident

THREADS, LEAVES, BLOCKS, LIMIT = 8, 10_001, 96, "192 MiB"


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


def adding(clock: Any) -> Prepare:
    """Seconds of a task, of the clock or of processors."""

    async def prepare(library: Library, leaves: int) -> Run:
        graph, top = tree(leaves)
        get, options = await asyncio.to_thread(scheduler, library)

        async def run(count: int) -> float:
            began = clock()
            for _ in range(count):
                assert await asyncio.to_thread(get, graph, top, **options) == leaves * (leaves - 1) // 2
            return (clock() - began) * leaves / len(graph)  # a time has as many operations as leaves

        return run

    return prepare


def roots(memory: bool) -> Prepare:
    """The mean of so many blocks: seconds, or bytes by which the process grew at most."""

    async def prepare(library: Library, blocks: int) -> Run:
        import dask.array as da

        def mean(fields: int) -> Any:
            x = da.random.default_rng(0).random((fields, 1024, 1024), chunks=(1, 1024, 1024))
            return x.mean(axis=0).std()

        get, options = await asyncio.to_thread(scheduler, library)
        compute = partial(asyncio.to_thread, lambda fields: mean(fields).compute(scheduler=get, **options))
        await compute(2)
        before = new_peak()

        async def run(count: int) -> float:
            began = perf_counter()
            await compute(blocks)
            return float(resident("VmHWM") - before) if memory else perf_counter() - began

        return run

    return prepare


WORKS: dict[str, Work] = {
    "task": Work(adding(perf_counter), LEAVES, 100),
    "processors": Work(adding(process_time), LEAVES, 100),
    "roots": Work(roots(memory=False), BLOCKS, 4, once=True),
    "memory": Work(roots(memory=True), BLOCKS, 4, once=True),
}
_ROOTS = " OPENBLAS_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1048576"


def _row(key: str, title: str, unit: str, settings: str = "", *, fresh: bool = False) -> Row:
    cells = {"Dask's threads": (f"dask{settings}", f"dask_threads.{key}")}
    return Row(key, title, unit, cells | {"asyncsched": (f"asyncsched{settings}", f"dask_threads.{key}")}, fresh=fresh)


ROWS = (
    _row("task", "a task", "us"),
    _row("processors", "a task: time of all processors", "us"),
    _row("roots", f"a mean over {BLOCKS} blocks of 8 MiB", "s", _ROOTS, fresh=True),
    _row("memory", "growth of the process in such a mean", "MiB", _ROOTS, fresh=True),
)
