"""The training loop of `bench.synthetic` on a card: what a bound costs in time, and what it saves in memory.

`python -m bench.gpu_training STEPS` runs a few bounded steps and no more, for tools that watch every access to memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from . import synthetic
from .gpu_card import FAKE, Clock, GPUReport, device, streams_of
from .measure import ROOT, Asked, Contestant, Row, compare, on_loop

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
        self.clock = Clock()

    async def round(self) -> float:
        data = synthetic.batches(self._size)
        async with asc.Scheduler(device(), **self._bounds) as s:
            weights: list[Any] = [await s.put(w) for w in synthetic.parameters(self._size)]
            memory, clock = s.devices[0].memory, self.clock
            for part in (2, self._steps):  # the first compiles
                clock.start(*streams_of(s))
                for i in range(part):
                    x, target = data[i % len(data)]
                    weights = synthetic.step(weights, await s.put(x), await s.put(target))
                    self.reserved = max(self.reserved, memory.pool.reserved())
                await asc.gather(*weights)
                seconds = clock.stop()
            self.reserved = max(self.reserved, memory.pool.reserved())
        return seconds


def train(quick: bool, report: GPUReport) -> None:
    """Bounded against unbounded, plain CuPy beside them."""
    steps, size, clock = 2 if quick else 300, synthetic.size(quick), Clock()
    ways = {name: Training(steps, size, name) for name in BOUNDS}
    report.rows += compare(
        [
            Contestant(
                "e training, CuPy, one stream", partial(_plain, steps, size, clock), steps, "ms",
                to="e training, unbounded", note=clock.note,
            ),
            *(
                Contestant(
                    f"e training, {name}", on_loop(way.round), steps, "ms", to="e training, unbounded",
                    asked=Asked(1.03) if name == "bounded" else None, note=way.clock.note,
                )
                for name, way in ways.items()
            ),
        ],
        1 if quick else 9,
    )  # fmt: skip
    for name, way in ways.items():
        report.rows.append(_bytes_row(f"e peak reserved, {name}", way.reserved, LIMIT, name == "bounded"))


def _plain(steps: int, size: str, clock: Clock) -> float:
    import cupy

    data = synthetic.batches(size)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        weights = [cupy.asarray(w) for w in synthetic.parameters(size)]
        for part in (2, steps):
            clock.start(stream)
            for i in range(part):
                x, target = data[i % len(data)]
                weights = synthetic.step(weights, cupy.asarray(x), cupy.asarray(target))
            seconds = clock.stop()
    return seconds


def run_ahead(quick: bool, report: GPUReport) -> None:
    """A loop without an await, whose results together are more than the card holds."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    limit = 16 << 20 if quick else min(4 << 30, free // 4)
    each = limit // 16
    count = 50 if quick else int(1.5 * total / each)
    reserved = on_loop(partial(_ahead, count, each, limit))()
    note = f"{count * each / 2**30:.1f} GiB of results, the card has {total / 2**30:.1f} GiB"
    report.rows.append(_bytes_row("e running ahead of all memory, bounded", reserved, limit, True, note))


def _bytes_row(name: str, nbytes: float, limit: int, bounded: bool, note: str = "") -> Row:
    asked = Asked(1.0) if bounded else None
    return Row(name, nbytes / 2**20, "MiB", [nbytes / limit], "the bounded one's limit", asked, note)


async def _ahead(count: int, each: int, limit: int) -> float:
    """The bytes that the pool had at most. Everything is issued before anything is awaited."""
    async with asc.Scheduler(device(), max_bytes=limit) as s:
        total = await s.put(np.zeros((), np.float32))
        for i in range(count):
            total = total + asc.full((each // 4,), i % 3, dtype="float32").mean()
        assert await total.item() == sum(i % 3 for i in range(count))
        reserved: float = s.devices[0].memory.pool.reserved()
        return reserved


def sanitize(quick: bool, report: GPUReport) -> None:
    """A short run under compute-sanitizer, where that is installed."""
    tool = shutil.which("compute-sanitizer")
    if tool is None or report.gpu == FAKE:
        report.notes.append(
            "compute-sanitizer: not installed, skipped" if tool is None else "compute-sanitizer: no GPU"
        )
        return
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "bench.gpu_training", "10"]
        try:
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            report.notes.append(f"compute-sanitizer {check}: not through after 60 s")
            continue
        last = ((run.stdout + run.stderr).strip().splitlines() or ["no output"])[-1]
        report.notes.append(f"compute-sanitizer {check}: {'clean' if run.returncode == 0 else 'NOT clean'}: {last}")


if __name__ == "__main__":
    on_loop(Training(int(sys.argv[1]), "full", "bounded").round)()
