"""The perceptron written by hand on a card: what a bound costs in time, and what it saves in memory.

`python -m bench.gpu.training STEPS` runs a few bounded steps and no more, for tools that watch every access to memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from .. import perceptron
from ..harness.rows import ROOT, Result, Row, Target
from ..harness.turns import Turns
from .card import Clock, device, fake, here, on_loop, streams_of

LIMIT = 256 << 20
BOUNDS: dict[str, dict[str, Any]] = {
    "unbounded": {"max_ops": None, "max_pending": None},
    "bounded": {"max_bytes": LIMIT},
}


class Training:
    """One of the ways; remembers the most bytes its pool ever took from the device."""

    def __init__(self, steps: int, size: str, bounds: str) -> None:
        self._steps = steps
        self._size = size
        self._bounds = BOUNDS[bounds]
        self.reserved = 0

    def round(self, clock: Clock) -> float:
        return on_loop(partial(self._round, clock))

    async def _round(self, clock: Clock) -> float:
        data = perceptron.batches(self._size)
        async with asc.Scheduler(device(), **self._bounds) as s:
            weights: list[Any] = [await s.put(w) for w in perceptron.parameters(self._size)]
            memory = s.devices[0].memory
            for part in (2, self._steps):  # the first compiles
                clock.start(*streams_of(s))
                for i in range(part):
                    x, target = data[i % len(data)]
                    weights = perceptron.step(weights, await s.put(x), await s.put(target))
                    self.reserved = max(self.reserved, memory.pool.reserved())
                await asc.gather(*weights)
                seconds = clock.stop()
            self.reserved = max(self.reserved, memory.pool.reserved())
        return seconds


def train(turns: Turns) -> Iterator[Result]:
    """Bounded against unbounded, plain CuPy beside them."""
    steps, size = 2 if turns.quick else 300, perceptron.size(turns.quick)
    ways = {name: Training(steps, size, name) for name in BOUNDS}
    cells = {name: here(way.round, steps) for name, way in ways.items()}
    cells["CuPy, one stream"] = here(partial(_plain, steps, size), steps)
    targets = {"bounded": Target(1.03, "a bound costs nothing")}
    yield turns.measure(Row("training", "a step of the perceptron, written by hand", "ms", cells, targets))
    peaks = {name: way.reserved for name, way in ways.items()}
    yield _reserved("training-peak", "most bytes that its pool had", peaks, LIMIT)


def _plain(steps: int, size: str, clock: Clock) -> float:
    import cupy

    data = perceptron.batches(size)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        weights = [cupy.asarray(w) for w in perceptron.parameters(size)]
        for part in (2, steps):
            clock.start(stream)
            for i in range(part):
                x, target = data[i % len(data)]
                weights = perceptron.step(weights, cupy.asarray(x), cupy.asarray(target))
            seconds = clock.stop()
    return seconds


def run_ahead(turns: Turns) -> Iterator[Result]:
    """A loop without an await, whose results together are more than the card holds."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    limit = 16 << 20 if turns.quick else min(4 << 30, free // 4)
    each = limit // 16
    count = 50 if turns.quick else int(1.5 * total / each)
    reserved = on_loop(partial(_ahead, count, each, limit))
    note = f"{count * each / 2**30:.1f} GiB of results, the card has {total / 2**30:.1f} GiB"
    title = "running ahead of all memory: most bytes that the pool had"
    yield _reserved("run_ahead", title, {"bounded": reserved}, limit, note)


def _reserved(key: str, title: str, peaks: dict[str, float], limit: int, note: str = "") -> Result:
    row = Row(key, title, "MiB", targets={"bounded": Target(1.0, "a limit is a limit")})
    values = {"the limit": [limit / 2**20]} | {name: [peak / 2**20] for name, peak in peaks.items()}
    return row.result(values, notes={"bounded": note})


async def _ahead(count: int, each: int, limit: int) -> float:
    """The bytes that the pool had at most. Everything is issued before anything is awaited."""
    async with asc.Scheduler(device(), max_bytes=limit) as s:
        total = await s.put(np.zeros((), np.float32))
        for i in range(count):
            total = total + asc.full((each // 4,), i % 3, dtype="float32").mean()
        assert await total.item() == sum(i % 3 for i in range(count))
        reserved: float = s.devices[0].memory.pool.reserved()
        return reserved


def sanitize(turns: Turns) -> Iterator[Result]:
    """A short run under compute-sanitizer, where that is installed."""
    tool, clean, failed, notes = shutil.which("compute-sanitizer"), dict[str, list[float]](), dict[str, str](), {}
    for check in ("memcheck", "racecheck"):
        if tool is None or fake():
            failed[check] = "not installed" if tool is None else "no GPU"
            continue
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "bench.gpu.training", "10"]
        try:
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            failed[check] = "not through after 60 s"
            continue
        clean[check] = [float(run.returncode != 0)]
        notes[check] = ((run.stdout + run.stderr).strip().splitlines() or ["no output"])[-1]
    targets = {check: Target(0, "every access is right", absolute=True) for check in clean}
    row = Row("sanitizer", "compute-sanitizer: runs that are not clean", "count", targets=targets)
    yield row.result(clean, failed, notes)


if __name__ == "__main__":
    Training(int(sys.argv[1]), "full", "bounded").round(Clock())
