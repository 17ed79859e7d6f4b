"""What the contestants of `bench.peers` and `bench.beside` are timed at: one table, for all of them.

A work is prepared once, by a coroutine that is given the library; what that returns does the work as often as it is
told, up to a barrier. It may tell a time, or bytes, of its own instead of the time it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from . import products, rows, synthetic, trainers
from .graphs import (
    Prepare,
    Run,
    awaited,
    beside_a_callable,
    captured,
    chain,
    diamonds,
    fan_out,
    graphs,
    increments,
    ones,
    plus_one,
)
from .libraries import Library


@dataclass(frozen=True)
class Work:
    """How it is prepared, and how many operations a time of it counts for."""

    prepare: Prepare
    ops: int = 1
    small: bool = False
    """Whether what is slow may do fewer operations."""
    once: bool = False
    """Whether a round is one time of it, however short."""

    def count(self, library: Library) -> int:
        """The operations of one time."""
        if library.quick:
            return min(self.ops, 10)
        return self.ops // (library.slow if self.small else 1)


def _called(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> Prepare:
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
    x = ones((1000, 1000))

    async def run(count: int) -> None:
        for _ in range(n * count):
            await asyncio.to_thread(np.dot, x, x)

    return run


async def pending(library: Library, n: int) -> Run:
    """Operations that all wait until the last is issued; the time of the wait for that is not counted."""
    from .overhead import Pending

    async def run(count: int) -> float:
        work = Pending("independent", n)
        for _ in range(count):
            await work.run()
        return work.total

    return run


async def importing(library: Library, n: int) -> Run:
    """Processor time of an import, in a new process."""
    from .overhead import import_seconds

    async def run(count: int) -> float:
        return sum(import_seconds(library.module) for _ in range(count))

    return run


async def peak(library: Library, n: int) -> Run:
    """Bytes by which the process grew at most in some steps of training, with all that they need."""
    before = synthetic.new_peak()

    async def run(count: int) -> float:
        train = await trainers.training(library, n, fresh=True)
        await train(n)
        return synthetic.resident("VmHWM") - before

    if not before or library.module == "ray":
        raise NotImplementedError("its memory is in other processes" if before else "no /proc to read it from")
    return run


_MEDIUM, _LARGE = (1, 2048), (1000, 1000)
WORKS: dict[str, Work] = {
    "tiny": Work(graphs(increments, (1, 2)), 10_000, small=True),
    "8 KiB": Work(graphs(increments, _MEDIUM), 10_000, small=True),
    "64 KiB": Work(graphs(increments, (16, 1024)), 5_000, small=True),
    "large": Work(graphs(increments, _LARGE), 50),
    "chain": Work(graphs(chain, (1, 2)), 1_000, small=True),
    "diamonds": Work(graphs(diamonds, (256, 256)), 50),
    "fan-out": Work(graphs(fan_out, (64, 64)), 10_000),
    "tiny awaited": Work(awaited((1, 2)), 1_000, small=True),
    "8 KiB awaited": Work(awaited(_MEDIUM), 1_000),
    "64 KiB awaited": Work(awaited((16, 1024)), 1_000),
    "8 KiB awaited beside": Work(beside_a_callable(awaited(_MEDIUM)), 1_000),
    "captured": Work(captured, 10),
    "call": Work(_called(plus_one, (1, 2)), 1_000),
    "svd": Work(_called(np.linalg.svd, (200, 200))),
    "dot in to_thread": Work(dot_in_a_thread),
    **{f"pending {n}": Work(pending, n) for n in (10, 100, 1_000, 10_000, 50_000, 100_000, 1_000_000)},
    **{f"width {n}": Work(graphs(fan_out, (64, 64)), n) for n in (1, 10, 100, 1_000)},
    **{f"issued {n}": Work(graphs(increments, (1, 2)), n) for n in (10, 100, 1_000, 10_000, 100_000, 1_000_000)},
    "import": Work(importing),
    "training": Work(partial(trainers.training, fresh=True)),
    "training, data on the device": Work(partial(trainers.training, fresh=False)),
    "peak": Work(peak, 20, once=True),
    "cnn": Work(rows.cnn_steps),
    **{name: Work(partial(rows.row, row=row)) for name, row in rows.ROWS.items()},
    **{f"products of {name}": Work(products.alone(steps)) for name, steps in products.STEPS.items()},
}
