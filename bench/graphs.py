"""Works of small operations: issued, waited for, and pending."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from .harness.contestant import Prepare, Run, Work
from .libraries import Library

TINY, MEDIUM, LARGE = (1, 2), (1, 2048), (1000, 1000)


def plus_one(x: Any) -> Any:
    return x + 1


def add(x: Any, y: Any) -> Any:
    return x + y


def multiply(x: Any, y: Any) -> Any:
    return x @ y


def ones(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def normal(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def add_repeatedly(x: Any, n: int) -> Any:
    """`y = x + 1`, n times."""
    for _ in range(n):
        y = x + 1
    return y


def keep_each(x: Any, n: int) -> Any:
    return [x + 1 for _ in range(n)]


def add_in_a_row(x: Any, n: int) -> Any:
    """Each operation on the result of the one before."""
    for _ in range(n):
        x = x + 1
    return x


# -- small graphs -------------------------------------------------------------------------------------------------


def on(
    shape: tuple[int, ...], times: Callable[[Library, Any, int], Awaitable[object]], *, random: bool = False
) -> Prepare:
    """A work on an array of this shape; `run` does it several times."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(normal(shape) if random else ones(shape) / shape[-1])

        async def run(count: int) -> None:
            for _ in range(count):
                await times(library, x, n)

        return run

    return prepare


def graphs(shape: tuple[int, ...], issue: Callable[[Library, Any, int], list[Any]]) -> Prepare:
    """A work that issues a graph and waits for all of it."""

    async def times(library: Library, x: Any, n: int) -> None:
        await library.finish(issue(library, x, n))

    return on(shape, times)


def increments(library: Library, x: Any, n: int) -> list[Any]:
    if library.apply is None:
        return [add_repeatedly(x, n)]
    return [library.apply(plus_one, x) for _ in range(n)]


def chain(library: Library, x: Any, n: int) -> list[Any]:
    if library.apply is None:
        return [add_in_a_row(x, n)]
    for _ in range(n):
        x = library.apply(plus_one, x)
    return [x]


def _inline(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def diamonds(library: Library, x: Any, n: int) -> list[Any]:
    """Two products of one sum, and their sum."""
    apply = library.apply or _inline
    found = []
    for _ in range(n):
        a = apply(plus_one, x)
        found.append(apply(add, apply(multiply, a, x), apply(multiply, x, a)))
    return found


def fan_out(library: Library, x: Any, n: int) -> list[Any]:
    """A product, and n products of it that are all kept."""
    apply = library.apply or _inline
    x = apply(multiply, x, x)
    return [apply(multiply, x, x) for _ in range(n)]


async def await_each(library: Library, x: Any, n: int) -> None:
    """Each operation is awaited before the next."""
    apply, call, wait = library.apply, library.call, library.wait
    if apply is None and wait is None and call is None:
        add_repeatedly(x, n)
    elif apply is None and call is not None:
        for _ in range(n):
            await (x + 1)
    elif call is not None:
        for _ in range(n):
            await call(plus_one, x)
    else:
        assert wait is not None
        for _ in range(n):
            wait(x + 1 if apply is None else apply(plus_one, x))


async def await_beside(library: Library, x: Any, n: int) -> None:
    """The same beside a callable that runs meanwhile, for a second at most."""
    assert library.call is not None
    gate = threading.Event()
    waiting = asyncio.ensure_future(library.call(gate.wait, 1.0))
    await asyncio.sleep(0)
    await await_each(library, x, n)
    gate.set()
    await waiting


def tanh_gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


async def captured(library: Library, n: int) -> Run:
    """A chain of elementwise operations, as one call if the library can do that."""
    x = await library.put(normal((1024, 2048)))
    chain = await library.compiled(tanh_gelu, x)

    async def run(count: int) -> None:
        for _ in range(count):
            await library.finish([chain(x) for _ in range(n)])

    return run


async def call(library: Library, x: Any, n: int, *, fn: Callable[[Any], Any] = plus_one) -> None:
    """A function of an array, awaited."""
    if library.call is None:
        raise NotImplementedError(f"{library.module} has no functions to await")
    for _ in range(n):
        await library.call(fn, x)


async def dot_in_a_thread(library: Library, n: int) -> Run:
    """NumPy in a thread outside the library."""
    x = ones(LARGE)

    async def run(count: int) -> None:
        for _ in range(n * count):
            await asyncio.to_thread(np.dot, x, x)

    return run


# -- pending operations -------------------------------------------------------------------------------------------


@asynccontextmanager
async def waiting(library: Library) -> AsyncIterator[tuple[Any, Any, threading.Event]]:
    """A scheduler in which all tasks wait until the gate is opened, and a tensor."""
    async with library.xp.Scheduler("cpu", **{"max_pending": None, **library.options}) as s:
        x, gate = await s.put(ones(TINY)), threading.Event()
        while s.statistics().tasks_in_flight < s.statistics().max_ops:
            s.submit_nowait(gate.wait)
        yield s, x, gate


async def pending(
    library: Library,
    n: int,
    *,
    issue: Callable[[Any, int], Any] = add_repeatedly,
    collect: bool = True,
    clock: Callable[[], float] = perf_counter,
) -> Run:
    """Operations that all wait behind callables until the last one is issued.

    Python's garbage collector visits pending operations again and again as they grow, about five times each. That costs
    as much as issuing. Without the collector, the scheduler's own growth shows.

    Args:
        collect: let Python collect garbage meanwhile.
    """

    async def run(count: int) -> float:
        took = 0.0
        if not collect:
            gc.disable()
        try:
            for _ in range(count):
                async with waiting(library) as (s, x, gate):
                    started = clock()
                    y = issue(x, n)
                    gate.set()
                    await s.barrier()
                    took += clock() - started
                    del y
        finally:
            gc.enable()
        return took

    return run


async def descriptors(library: Library, n: int) -> Run:
    """Bytes that Python keeps for each operation while all are pending."""

    async def run(count: int) -> float:
        async with waiting(library) as (s, x, gate):
            gc.collect()
            tracemalloc.start()
            held = keep_each(x, n)
            nbytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            gate.set()
            await s.barrier()
            del held
        return nbytes / n

    return run


async def importing(library: Library, n: int) -> Run:
    """Processor time of an import, in a new process."""
    folder = Path(str(library.xp.__file__)).parents[1]
    code = f"from time import process_time as t; a = t(); import {library.module}; print(t() - a)"
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    async def run(count: int) -> float:
        command, took = [sys.executable, "-c", code], 0.0
        for _ in range(count):
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=compiled, cwd=folder)  # noqa: ASYNC221
            took += float(done.stdout)
        return took

    return run


WORKS: dict[str, Work] = {
    "tiny": Work(graphs(TINY, increments), 10_000, small=True),
    "8 KiB": Work(graphs(MEDIUM, increments), 10_000, small=True),
    "64 KiB": Work(graphs((16, 1024), increments), 5_000, small=True),
    "large": Work(graphs(LARGE, increments), 50),
    "chain": Work(graphs(TINY, chain), 1_000, small=True),
    "diamonds": Work(graphs((256, 256), diamonds), 50),
    "fan-out": Work(graphs((64, 64), fan_out), 10_000),
    "tiny awaited": Work(on(TINY, await_each), 1_000, small=True),
    "8 KiB awaited": Work(on(MEDIUM, await_each), 1_000),
    "64 KiB awaited": Work(on((16, 1024), await_each), 1_000),
    "8 KiB awaited beside": Work(on(MEDIUM, await_beside), 1_000),
    "captured": Work(captured, 10),
    "call": Work(on(TINY, call), 1_000),
    "svd": Work(on((200, 200), partial(call, fn=np.linalg.svd), random=True)),
    "dot in to_thread": Work(dot_in_a_thread),
    **{f"pending {n}": Work(pending, n) for n in (1_000, 50_000, 1_000_000)},
    "bytes, kept": Work(descriptors, 100_000, 2_000, once=True),
    "import": Work(importing),
}
