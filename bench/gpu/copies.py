"""Batches are copied in, computed and copied out. The three overlap, so together they take as long as the longest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from ..harness.rows import Here, Result, Row, Target
from ..harness.turns import Turns
from .card import device, now

DEPTH = 4  # batches between their copy in and their copy out


def copies(turns: Turns) -> Iterator[Result]:
    """100 batches; the longest of the three alone, then all."""
    bench = Batches(*((3, 64) if turns.quick else (100, 2048)))
    cells = {
        "the longest of three": Here(bench.longest, bench.count),
        "CuPy, one stream": Here(bench.plain, bench.count),
        "asyncsched": Here(partial(bench.timed, bench.all), bench.count),
    }
    targets = {"asyncsched": Target(1.1, "the three overlap")}
    title = f"{bench.count} batches copied in, computed on, copied out: a batch"
    yield turns.measure(Row("copies", title, "ms", cells, targets))


class Batches:
    """Square batches of float32, multiplied a few times by a weight: about as long as a copy, by a guess."""

    products = 4

    def __init__(self, count: int, side: int) -> None:
        self.count = count
        self.hosts = [np.full((side, side), i / side, np.float32) for i in range(4)]

    def timed(self, work: Callable[[asc.Scheduler], Awaitable[None]]) -> float:
        async def main() -> float:
            async with asc.Scheduler(device()) as s:
                await self.all(s, DEPTH)
                began = now()
                await work(s)
                return now() - began

        return asyncio.run(main())

    def longest(self) -> tuple[float, str]:
        parts = {"copies in": self.copies_in, "computing": self.computing, "copies out": self.copies_out}
        alone = {name: self.timed(work) for name, work in parts.items()}
        each = ", ".join(f"{name} {seconds / self.count * 1e3:.2f} ms" for name, seconds in alone.items())
        return max(alone.values()), each

    def batch(self, i: int) -> Any:
        return self.hosts[i % len(self.hosts)]

    def step(self, x: Any, w: Any) -> Any:
        for _ in range(self.products):
            x = x @ w
        return x

    async def copies_in(self, s: asc.Scheduler) -> None:
        for i in range(self.count):
            await s.put(self.batch(i))
        await s.barrier()

    async def computing(self, s: asc.Scheduler) -> None:
        x = await s.put(self.batch(1))
        for _ in range(self.count):
            y = self.step(x, x)
        await y

    async def copies_out(self, s: asc.Scheduler) -> None:
        x = await s.put(self.batch(1))
        for _ in range(self.count):
            await x.numpy()

    async def all(self, s: asc.Scheduler, count: int | None = None) -> None:
        w = await s.put(self.batch(1))

        room = asyncio.Semaphore(DEPTH)

        async def one(i: int) -> None:
            async with room:
                await self.step(await s.put(self.batch(i)), w).numpy()

        await asyncio.gather(*[one(i) for i in range(count or self.count)])

    def plain(self) -> float:
        import cupy

        with cupy.cuda.Stream(non_blocking=True) as stream:
            w = cupy.asarray(self.batch(1))
            self.step(w, w).get(stream=stream)
            began = now()
            for i in range(self.count):
                self.step(cupy.asarray(self.batch(i)), w).get(stream=stream)
            return now() - began
