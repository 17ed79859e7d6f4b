"""The perceptron written by hand on a card: the cost of a bound in time, and its gain in memory.

`python -m bench.gpu.training STEPS` runs only a few bounded steps, for tools that watch every access to memory.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc

from .. import perceptron
from ..harness.rows import ROOT, Here, Result, Row, Target
from ..harness.turns import Turns
from .card import device, fake, now

LIMIT = 256 << 20
BOUNDS: dict[str, dict[str, Any]] = {
    "unbounded": {"max_ops": None, "max_pending": None},
    "bounded": {"max_bytes": LIMIT},
}


def train(turns: Turns) -> Iterator[Result]:
    """Bounded against unbounded, beside plain CuPy; and the most bytes that each one's pool took from the device."""
    steps, size = 2 if turns.quick else 300, perceptron.size(turns.quick)
    peaks: dict[str, float] = {}
    cells = {name: Here(partial(_round, steps, size, name, peaks), steps) for name in BOUNDS}
    cells["CuPy, one stream"] = Here(partial(_plain, steps, size), steps)
    targets = {"bounded": Target(1.03, "a bound costs nothing")}
    yield turns.measure(Row("training", "a step of the perceptron, written by hand", "ms", cells, targets))
    yield _reserved("training-peak", "most bytes that its pool had", peaks, LIMIT)


def _round(steps: int, size: str, bounds: str, peaks: dict[str, float]) -> float:
    async def main() -> float:
        data = perceptron.batches(size)
        async with asc.Scheduler(device(), **BOUNDS[bounds]) as s:
            weights: list[Any] = [await s.put(w) for w in perceptron.parameters(size)]
            for part in (2, steps):  # the first compiles
                began = now()
                for i in range(part):
                    x, target = data[i % len(data)]
                    weights = perceptron.step(weights, await s.put(x), await s.put(target))
                    peaks[bounds] = max(peaks.get(bounds, 0.0), s.devices[0].memory.pool.reserved())
                await asc.gather(*weights)
                seconds = now() - began
        return seconds

    return asyncio.run(main())


def _plain(steps: int, size: str) -> float:
    import cupy

    data = perceptron.batches(size)
    with cupy.cuda.Stream(non_blocking=True):
        weights = [cupy.asarray(w) for w in perceptron.parameters(size)]
        for part in (2, steps):
            began = now()
            for i in range(part):
                x, target = data[i % len(data)]
                weights = perceptron.step(weights, cupy.asarray(x), cupy.asarray(target))
            seconds = now() - began
    return seconds


def run_ahead(turns: Turns) -> Iterator[Result]:
    """A loop without an await, whose results together are more than the card holds."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    limit = 16 << 20 if turns.quick else min(4 << 30, free // 4)
    each = limit // 16
    count = 50 if turns.quick else int(1.5 * total / each)

    async def ahead() -> float:
        """Everything is issued before anything is awaited."""
        async with asc.Scheduler(device(), max_bytes=limit) as s:
            summed = await s.put(np.zeros((), np.float32))
            for i in range(count):
                summed = summed + asc.full((each // 4,), i % 3, dtype="float32").mean()
            assert await summed.item() == sum(i % 3 for i in range(count))
            reserved: float = s.devices[0].memory.pool.reserved()
            return reserved

    title = "running ahead of all memory: most bytes that the pool had"
    note = f"{count * each / 2**30:.1f} GiB of results, the card has {total / 2**30:.1f} GiB"
    yield _reserved("run_ahead", title, {"bounded": asyncio.run(ahead())}, limit, note)


def _reserved(key: str, title: str, peaks: dict[str, float], limit: int, note: str = "") -> Result:
    row = Row(key, title, "MiB", targets={"bounded": Target(1.0, "a limit is a limit")})
    values = {"the limit": [limit / 2**20]} | {name: [peak / 2**20] for name, peak in peaks.items()}
    return row.result(values, notes={"bounded": note})


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
    _round(int(sys.argv[1]), "full", "bounded", {})
