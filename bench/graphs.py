"""Works of small operations: how they are issued, how they are waited for, and what they cost while they wait."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
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


def add_repeatedly(x: Any, n: int) -> Any:
    """`y = x + 1`, n times."""
    for _ in range(n):
        y = x + 1
    return y


def add_in_a_row(x: Any, n: int) -> Any:
    """Each to the one before."""
    for _ in range(n):
        x = x + 1
    return x


# -- small graphs -------------------------------------------------------------------------------------------------


def graphs(issue: Callable[[Library, Any, int], list[Any]], shape: tuple[int, ...]) -> Prepare:
    """A work that issues a graph and waits for all of it."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(ones(shape) / shape[-1])

        async def run(count: int) -> None:
            for _ in range(count):
                await library.finish(issue(library, x, n))

        return run

    return prepare


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


def awaited(shape: tuple[int, ...]) -> Prepare:
    """Each operation waited for before the next."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(ones(shape))

        async def run(count: int) -> None:
            await _await_each(library, x, n * count)

        return run

    return prepare


def beside_a_callable(prepare: Prepare) -> Prepare:
    """A work beside a callable that runs all the while, for a second at most."""

    async def prepare_both(library: Library, n: int) -> Run:
        work = await prepare(library, n)

        async def run(count: int) -> None:
            assert library.call is not None
            gate = threading.Event()
            waiting = asyncio.ensure_future(library.call(gate.wait, 1.0))
            await asyncio.sleep(0)
            await work(count)
            gate.set()
            await waiting

        return run

    return prepare_both


async def _await_each(library: Library, x: Any, n: int) -> None:
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


def tanh_gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


async def captured(library: Library, n: int) -> Run:
    """A chain of elementwise operations, as one thing where the library can make it one."""
    x = await library.put(np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float32))
    chain = await library.compiled(tanh_gelu, x)

    async def run(count: int) -> None:
        for _ in range(count):
            await library.finish([chain(x) for _ in range(n)])

    return run


def called(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> Prepare:
    """A function of an array, awaited."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
        call = library.call
        if call is None:
            raise NotImplementedError(f"{library.module} has no functions to await")

        async def run(count: int) -> None:
            for _ in range(n * count):
                await call(fn, x)

        return run

    return prepare


async def dot_in_a_thread(library: Library, n: int) -> Run:
    """NumPy in a thread that is not the library's."""
    x = ones(LARGE)

    async def run(count: int) -> None:
        for _ in range(n * count):
            await asyncio.to_thread(np.dot, x, x)

    return run


async def first_of(library: Any, n: int, *, queued: int) -> Run:
    """The first of some products that are issued at once; inline that is one."""
    x = await library.put(ones((100, 100) if library.quick else LARGE))

    async def run(count: int) -> float:
        took = 0.0
        for _ in range(count):
            started = perf_counter()
            products = [x @ x for _ in range(queued)]
            if library.call is not None:  # else it is done
                await products[0]
            took += perf_counter() - started
            await library.finish([])
        return took

    return run


# -- what is pending ----------------------------------------------------------------------------------------------


def fill(s: Any, gate: threading.Event) -> None:
    """Take every slot until the gate opens, so that what is issued meanwhile is pending."""
    while s.statistics().tasks_in_flight < s.statistics().max_ops:
        s.submit_nowait(gate.wait)


def pending(*, chain: bool = False, issued: bool = False, collect: bool = True) -> Prepare:
    """Operations that all wait behind callables until the last is issued.

    Python's garbage collector visits what is pending over and over as it grows, about five times each, which costs as
    much as issuing does: without it, the scheduler's growth is told from the collector's.

    Args:
        chain: Each adds to the one before.
        issued: Count the time until the last is issued; else until all are done, without the wait for the gate.
        collect: Let Python collect garbage meanwhile.
    """

    async def prepare(library: Library, n: int) -> Run:
        async def once() -> float:
            async with library.xp.Scheduler("cpu", max_pending=None) as s:
                x = await s.put(ones(TINY))
                gate = threading.Event()
                fill(s, gate)
                started = perf_counter()
                y = add_in_a_row(x, n) if chain else add_repeatedly(x, n)
                took = perf_counter() - started
                gate.set()
                await s.barrier()
                took = took if issued else perf_counter() - started
                await y
            return took

        async def run(count: int) -> float:
            if not collect:
                gc.disable()
            try:
                return sum([await once() for _ in range(count)])
            finally:
                gc.enable()

        return run

    return prepare


def descriptors(hold: Callable[[Any, Any, int], Any]) -> Prepare:
    """Bytes that Python allocated and keeps for each operation while all are pending."""

    async def prepare(library: Library, n: int) -> Run:
        async def run(count: int) -> float:
            async with library.xp.Scheduler("cpu", max_pending=None) as s:
                x = await s.put(ones(TINY))
                gate = threading.Event()
                fill(s, gate)
                gc.collect()
                tracemalloc.start()
                held = hold(s, x, n)
                nbytes, _ = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                gate.set()
                await s.barrier()
                del held
            return nbytes / n

        return run

    return prepare


async def importing(library: Library, n: int) -> Run:
    """Processor time of an import, in a new process."""
    folder = Path(library.xp.__file__).parents[1]
    code = f"from time import process_time as t; a = t(); import {library.module}; print(t() - a)"
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    async def run(count: int) -> float:
        command, took = [sys.executable, "-c", code], 0.0
        for _ in range(count):
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=compiled, cwd=folder)  # noqa: ASYNC221
            took += float(done.stdout)
        return took

    return run


COUNTS = (10, 100, 1_000, 10_000, 50_000, 100_000, 1_000_000)
WORKS: dict[str, Work] = {
    "tiny": Work(graphs(increments, TINY), 10_000, small=True),
    "8 KiB": Work(graphs(increments, MEDIUM), 10_000, small=True),
    "64 KiB": Work(graphs(increments, (16, 1024)), 5_000, small=True),
    "large": Work(graphs(increments, LARGE), 50),
    "chain": Work(graphs(chain, TINY), 1_000, small=True),
    "diamonds": Work(graphs(diamonds, (256, 256)), 50),
    "fan-out": Work(graphs(fan_out, (64, 64)), 10_000),
    "tiny awaited": Work(awaited(TINY), 1_000, small=True),
    "8 KiB awaited": Work(awaited(MEDIUM), 1_000),
    "64 KiB awaited": Work(awaited((16, 1024)), 1_000),
    "128 KiB awaited": Work(awaited((32, 1024)), 1_000),  # too large to run on the loop's thread: it takes a stream
    "8 KiB awaited beside": Work(beside_a_callable(awaited(MEDIUM)), 1_000),
    "captured": Work(captured, 10),
    "call": Work(called(plus_one, TINY), 1_000),
    "svd": Work(called(np.linalg.svd, (200, 200))),
    "dot in to_thread": Work(dot_in_a_thread),
    "a product": Work(partial(first_of, queued=1)),
    "first of ten products": Work(partial(first_of, queued=10)),
    **{f"width {n}": Work(graphs(fan_out, (64, 64)), n) for n in (1, *COUNTS[:3])},
    **{f"issued {n}": Work(graphs(increments, TINY), n) for n in COUNTS},
    **{f"pending {n}": Work(pending(), n) for n in COUNTS},
    **{f"pending, issued {n}": Work(pending(issued=True), n) for n in COUNTS},
    **{f"chain {n}": Work(pending(chain=True), n) for n in COUNTS},
    **{f"chain, issued {n}": Work(pending(chain=True, issued=True), n) for n in COUNTS},
    **{f"no gc {n}": Work(pending(collect=False), n) for n in COUNTS},
    **{f"no gc, issued {n}": Work(pending(collect=False, issued=True), n) for n in COUNTS},
    "bytes, kept": Work(descriptors(lambda _, x, n: [x + 1 for _ in range(n)]), 100_000, 2_000, once=True),
    "bytes, dropped": Work(descriptors(lambda _, x, n: add_repeatedly(x, n)), 100_000, 2_000, once=True),
    "bytes, callables": Work(
        descriptors(lambda s, x, n: [s.submit_nowait(plus_one, x) for _ in range(n)]), 100_000, 2_000, once=True
    ),
    "import": Work(importing),
}
