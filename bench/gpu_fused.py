"""Captured elementwise steps, whose rows are one kernel, against CuPy operation by operation and CuPy's own `fuse`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from .gpu_card import Clock, GPUReport, device, streams_of
from .measure import Asked, Contestant, compare, on_loop

SIDE = 1448  # 8 MiB of float32
REPLAYS = 20


@dataclass(frozen=True)
class Step:
    """A function of one array, written against an array namespace."""

    name: str
    of: Callable[[Any, Any], Any]
    side: int
    replays: int

    def array(self) -> Any:
        return np.linspace(-3, 3, self.side * self.side, dtype=np.float32).reshape(self.side, self.side)


def fused(quick: bool, report: GPUReport) -> None:
    """What one kernel saves: passes over memory, and launches."""
    for name, of in (("tanh-GELU", _gelu), ("ten operations", _ten)):
        step = Step(name, of, 64 if quick else SIDE, 2 if quick else REPLAYS)
        report.rows += compare(_contestants(f"h {name} on 8 MiB", step), 1 if quick else 15)


def _gelu(xp: Any, x: Any) -> Any:
    return x * (xp.tanh((x * x * 0.0356774 + 0.7978846) * x) * 0.5 + 0.5)


def _ten(xp: Any, x: Any) -> Any:
    for _ in range(2):
        x = xp.maximum(xp.tanh(x) * 0.5 + x, -1.0) - 0.25
    return x


def _contestants(name: str, step: Step) -> list[Contestant]:
    import cupy

    ways: dict[str, Any] = {"CuPy, one stream": partial(_plain, step, partial(step.of, cupy))}
    if hasattr(cupy, "fuse"):
        ways["CuPy's fuse"] = partial(_plain, step, cupy.fuse(kernel_name="fused")(partial(step.of, cupy)))
    ways["asyncsched"] = _on_loop(step, False)
    ways["asyncsched, captured"] = _on_loop(step, True)
    found = []
    for way, run in ways.items():
        clock = Clock()
        asked = Asked(0.6) if way == "asyncsched, captured" else None
        found.append(Contestant(f"{name}: {way}", partial(run, clock), step.replays, asked=asked, note=clock.note))
    return found


def _on_loop(step: Step, captured: bool) -> Callable[[Clock], float]:
    return lambda clock: on_loop(partial(_scheduled, step, captured, clock))()


def _plain(step: Step, function: Callable[[Any], Any], clock: Clock) -> float:
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.asarray(step.array())
        y = function(x)  # compiles
        clock.start(stream)
        for _ in range(step.replays):
            y = function(x)
        seconds = clock.stop()
        del x, y
    return seconds


async def _scheduled(step: Step, captured: bool, clock: Clock) -> float:
    async with asc.Scheduler(device(streams=1)) as s:
        x = await s.put(step.array())
        function: Any = partial(step.of, asc)
        if captured:
            function = await s.capture(function, x)
        await function(x)  # compiles, and fills the pool
        clock.start(*streams_of(s))
        for _ in range(step.replays):
            y = function(x)
        await y
        return clock.stop()
