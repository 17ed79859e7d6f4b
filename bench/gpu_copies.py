"""Batches copied in, computed on and copied out: the three overlap, so all together take as long as the longest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from .gpu_card import Clock, GPUReport, device, streams_of
from .measure import Asked, Contestant, compare, on_loop

DEPTH = 4  # batches between their copy in and their copy out


def copies(quick: bool, report: GPUReport) -> None:
    """100 batches; each of the three alone, then all."""
    bench = Batches(*((3, 64) if quick else (100, 2048)))

    def turn(name: str, work: Callable[[asc.Scheduler], Awaitable[None]], **more: Any) -> Contestant:
        clock = Clock()
        return Contestant(f"c {name}", bench.timed(name, work, clock), bench.count, unit="ms", note=clock.note, **more)

    clock = Clock()
    longest, most = "c the longest of these three", Asked(1.1)
    report.rows += compare(
        [
            Contestant(
                "c CuPy, one stream", partial(bench.plain, clock), bench.count, unit="ms", to=longest, note=clock.note
            ),
            turn("copies in", bench.copies_in, to=longest),
            turn("computing", bench.computing, to=longest),
            turn("copies out", bench.copies_out, to=longest),
            Contestant(longest, bench.longest, bench.count, unit="ms", to=longest),
            turn("asyncsched, all of it", bench.all, to=longest, asked=most),
        ],
        1 if quick else 7,
    )


class Batches:
    """Square batches of float32, multiplied a few times by a weight: as long as a copy, by a guess."""

    products = 4

    def __init__(self, count: int, side: int) -> None:
        self.count = count
        self.hosts = [np.full((side, side), i / side, np.float32) for i in range(4)]
        self.alone: dict[str, float] = {}

    def timed(self, name: str, work: Callable[[asc.Scheduler], Awaitable[None]], clock: Clock) -> Callable[[], float]:
        async def run() -> float:
            async with asc.Scheduler(device()) as s:
                await self.all(s, DEPTH)
                clock.start(*streams_of(s))
                await work(s)
                self.alone[name] = clock.stop()
                return self.alone[name]

        return on_loop(run)

    def longest(self) -> float:
        return max(self.alone[name] for name in ("copies in", "computing", "copies out"))

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

        async def one(i: int) -> Any:
            return await self.step(await s.put(self.batch(i)), w).numpy()

        flying: deque[asyncio.Task[Any]] = deque()
        for i in range(count or self.count):
            flying.append(asyncio.create_task(one(i)))
            if len(flying) > DEPTH:
                await flying.popleft()
        await asyncio.gather(*flying)

    def plain(self, clock: Clock) -> float:
        import cupy

        with cupy.cuda.Stream(non_blocking=True) as stream:
            w = cupy.asarray(self.batch(1))
            self.step(w, w).get(stream=stream)
            clock.start(stream)
            for i in range(self.count):
                self.step(cupy.asarray(self.batch(i)), w).get(stream=stream)
            return clock.stop()
