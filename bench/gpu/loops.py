"""A function again and again, against plain CuPy on one stream: the cost of issuing, the time of large operations, and
the gain from captured steps, whose elementwise rows are one kernel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from ..harness.rows import Here, Result, Row, Target
from ..harness.turns import Turns
from .card import WAYS, device, fitting, now

GRAPH = 100  # operations in one captured step
FUSED_SIDE = 1448  # 8 MiB of float32


@dataclass(frozen=True)
class Loop:
    """A function of a namespace and an array: on its last result, or each time on the same array."""

    of: Callable[[Any, Any], Any]
    array: Callable[[], Any]
    count: int
    chained: bool = True

    def run(self, x: Any, step: Callable[[Any], Any], count: int) -> Any:
        y = x
        for _ in range(count):
            y = step(y if self.chained else x)
        return y


def small(turns: Turns) -> Iterator[Result]:
    """The cost of issuing: the card computes for less time than that."""
    for name, of in (("add", _add), ("product", _product), ("exp", _exp), ("matmul", _square)):
        loop = Loop(of, partial(_filled, 64), 200 if turns.quick else 5_000)
        captured = f"captured, {GRAPH} at a time"
        cells = _cells(loop) | {captured: Here(partial(_scheduled, loop, {}, GRAPH), loop.count)}
        targets = {"asyncsched": Target(2.0, "a task is more than a launch")}
        if of is not _square:  # the card takes longer for it
            targets[captured] = Target(0.5, "one launch for all")
        yield turns.measure(Row(f"small-{name}", f"a small {name}", "us", cells, targets))


def large(turns: Turns) -> Iterator[Result]:
    """The card computes for longer than issuing takes."""
    side, n = (128, 20) if turns.quick else (fitting(8192, arrays=4), 100)
    for name, of, wide in (("add", _add, side), ("matmul", _square, side // 2)):
        targets = {"asyncsched": Target(1.03, "issuing is hidden")}
        cells = _cells(Loop(of, partial(_filled, wide), n))
        yield turns.measure(Row(f"large-{name}", f"a large {name}", "us", cells, targets))


def fused(turns: Turns) -> Iterator[Result]:
    """The gain from one kernel: fewer passes over memory, and fewer launches."""
    import cupy

    side, count = (64, 2) if turns.quick else (FUSED_SIDE, 20)
    for name, of in (("tanh-GELU", _gelu), ("ten operations", _ten)):
        loop = Loop(of, partial(_spread, side), count, chained=False)
        ways: dict[str, Any] = {"CuPy, one stream": partial(_plain, loop, partial(of, cupy))}
        if hasattr(cupy, "fuse"):
            ways["CuPy's fuse"] = partial(_plain, loop, cupy.fuse(kernel_name="fused")(partial(of, cupy)))
        ways["asyncsched"] = partial(_scheduled, loop, {"streams": 1}, 0)
        ways["captured"] = partial(_scheduled, loop, {"streams": 1}, 1)
        cells = {way: Here(run, count) for way, run in ways.items()}
        targets = {"captured": Target(0.6, "one pass over memory")}
        yield turns.measure(Row(f"fused-{name.split()[0]}", f"{name} on 8 MiB", "us", cells, targets))


def _filled(side: int) -> Any:
    return np.full((side, side), 1 / side, np.float32)


def _spread(side: int) -> Any:
    return np.linspace(-3, 3, side * side, dtype=np.float32).reshape(side, side)


def _add(xp: Any, x: Any) -> Any:
    return x + 1


def _product(xp: Any, x: Any) -> Any:
    return x * x


def _exp(xp: Any, x: Any) -> Any:
    return xp.exp(x)


def _square(xp: Any, x: Any) -> Any:
    return x @ x


def _gelu(xp: Any, x: Any) -> Any:
    return x * (xp.tanh((x * x * 0.0356774 + 0.7978846) * x) * 0.5 + 0.5)


def _ten(xp: Any, x: Any) -> Any:
    for _ in range(2):
        x = xp.maximum(xp.tanh(x) * 0.5 + x, -1.0) - 0.25
    return x


def _cells(loop: Loop) -> dict[str, Here]:
    import cupy

    ways: dict[str, Any] = {"CuPy, one stream": partial(_plain, loop, partial(loop.of, cupy))}
    ways |= {way: partial(_scheduled, loop, how, 0) for way, how in {"asyncsched": {}, **WAYS}.items()}
    return {way: Here(run, loop.count) for way, run in ways.items()}


def _plain(loop: Loop, step: Callable[[Any], Any]) -> float:
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.asarray(loop.array())
        y = loop.run(x, step, loop.count)  # compiles
        began = now()
        y = loop.run(x, step, loop.count)
        seconds = now() - began
        del x, y
    return seconds


def _scheduled(loop: Loop, how: dict[str, Any], captured: int) -> float:
    """With this number of operations in a captured step, or without a step."""

    async def main() -> float:
        async with asc.Scheduler(device(**how)) as s:
            x = await s.put(loop.array())
            step: Any = partial(loop.of, asc)
            if captured:
                step = await s.capture(partial(loop.run, step=step, count=captured), x)
            count = loop.count // max(captured, 1)
            await loop.run(x, step, count)  # compiles, and fills the pool
            began = now()
            await loop.run(x, step, count)
            return now() - began

    return asyncio.run(main())
