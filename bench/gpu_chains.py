"""Chains of operations against plain CuPy on one stream: what issuing costs, and whether large ones are held up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from .gpu_card import Clock, GPUReport, device, fitting, streams_of
from .measure import Asked, Contestant, compare, on_loop

GRAPH = 100  # operations in one captured step
WAYS: dict[str, dict[str, Any]] = {
    "asyncsched": {},
    "asyncsched, inline_launch": {"inline_launch": True},
    "asyncsched, spin 20 us": {"spin": 20e-6},
}


@dataclass(frozen=True)
class Chain:
    """The same operation again and again, each on the result of the one before."""

    name: str
    step: Callable[[Any], Any]
    side: int
    count: int

    def array(self) -> Any:
        return np.full((self.side, self.side), 1 / self.side, np.float32)

    def run(self, x: Any, step: Callable[[Any], Any] | None = None, count: int | None = None) -> Any:
        step = step or self.step
        for _ in range(count or self.count):
            x = step(x)
        return x


def small(quick: bool, report: GPUReport) -> None:
    """What issuing costs: the card computes for less time than it takes."""
    n = 200 if quick else 5_000
    for chain in (Chain("add", _add, 64, n), Chain("matmul", _square, 64, n)):
        contestants = _contestants(f"a small {chain.name}", chain, Asked(2.0))
        if hasattr(asc.Scheduler, "capture"):
            name = f"a small {chain.name}: asyncsched, captured {GRAPH} at a time"
            asked = Asked(0.5) if chain.step is _add else None  # CuPy captures no matrix product
            clock = Clock()
            run = on_loop(partial(_captured, chain, clock))
            contestants.append(Contestant(name, run, chain.count, asked=asked, note=clock.note))
        report.rows += compare(contestants, 1 if quick else 15)


def large(quick: bool, report: GPUReport) -> None:
    """The card computes for longer than issuing takes."""
    side, n = (128, 20) if quick else (fitting(8192, arrays=4), 100)
    for chain in (Chain("add", _add, side, n), Chain("matmul", _square, side // 2, n)):
        report.rows += compare(_contestants(f"b large {chain.name}", chain, Asked(1.03)), 1 if quick else 11)


def _add(x: Any) -> Any:
    return x + 1


def _square(x: Any) -> Any:
    return x @ x


def _contestants(name: str, chain: Chain, asked: Asked) -> list[Contestant]:
    clock = Clock()
    found = [Contestant(f"{name}: CuPy, one stream", partial(_plain, chain, clock), chain.count, note=clock.note)]
    for way, how in WAYS.items():
        clock = Clock()
        run = on_loop(partial(_scheduled, chain, how, clock))
        required = None if how else asked
        found.append(Contestant(f"{name}: {way}", run, chain.count, asked=required, note=clock.note))
    return found


def _plain(chain: Chain, clock: Clock) -> float:
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.asarray(chain.array())
        chain.run(x)
        clock.start(stream)
        y = chain.run(x)
        seconds = clock.stop()
        del x, y
    return seconds


async def _scheduled(chain: Chain, how: dict[str, Any], clock: Clock) -> float:
    async with asc.Scheduler(device(**how)) as s:
        x = await s.put(chain.array())
        return await _timed(s, clock, lambda: chain.run(x))


async def _captured(chain: Chain, clock: Clock) -> float:
    async with asc.Scheduler(device()) as s:
        x = await s.put(chain.array())
        graph = await s.capture(lambda x: chain.run(x, count=GRAPH), x)
        return await _timed(s, clock, lambda: chain.run(x, graph, chain.count // GRAPH))


async def _timed(s: asc.Scheduler, clock: Clock, work: Callable[[], Any]) -> float:
    await work()  # compiles, and fills the pool
    clock.start(*streams_of(s))
    await work()
    return clock.stop()
