"""Windows and pipelines overlap work within bounds, as recorded times show.

First a loop: the host prepares each step, and a stream computes it. `async with s.window(depth)` lets at most `depth`
steps be in flight: with depth 2, batch t is finished before batch t + 2 begins, and t + 1 may overlap with both. The
loop notes when a step begins, the stream's thread when it ends. The table compares these times.

Then a pipeline of three stages that each wait 5 ms. They overlap, so an item takes the time of one stage, not of three.

    python demos/overlap.py [--steps 24] [--items 200]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np

import asyncsched as asc

STEP = 0.005  # seconds for a step, and for a stage of the pipeline
DEPTHS = (1, 2, 4)


@dataclass
class Step:
    """When the loop began a step, and when its task ended, in seconds."""

    began: float
    ended: float = 0.0


async def main(steps: int, items: int) -> None:
    async with asc.Scheduler("cpu", streams=1) as s:
        print(f"{steps} steps of {STEP * 1e3:.0f} ms, by the depth of the window\n")
        print(f"{'':10}{'total':>10}  {'most ahead':>10}  batch t ended before batch t + depth began")
        for depth in DEPTHS:
            started = perf_counter()
            found = await steps_in_window(s, depth, steps)
            report(depth, found, perf_counter() - started)
        await pipeline(s, items)


async def steps_in_window(s: asc.Scheduler, depth: int, steps: int) -> list[Step]:
    """The host prepares each batch. That takes half as long as the stream's work on it."""
    window, noted = s.window(depth), []
    for t in range(steps):
        async with window:
            noted.append(Step(perf_counter()))
            await asyncio.sleep(STEP / 2)  # the host prepares the batch
            s.submit_nowait(work, noted[t], nbytes=0)
    await s.barrier()
    return noted


def work(step: Step) -> None:
    """On a stream's thread."""
    time.sleep(STEP)
    step.ended = perf_counter()


def report(depth: int, noted: Sequence[Step], total: float) -> None:
    pairs = list(zip(noted, noted[depth:], strict=False))
    in_order = sum(early.ended < late.began for early, late in pairs)
    ahead = max(sum(early.ended > step.began for early in noted[:t]) for t, step in enumerate(noted))
    print(f"depth {depth:<4}{total * 1e3:7.1f} ms  {ahead:10}  {in_order} of {len(pairs)}")
    if in_order < len(pairs):
        raise SystemExit("a batch began too early")


async def pipeline(s: asc.Scheduler, items: int) -> None:
    """Three stages that wait, and then the device."""
    arrays = [np.full(1000, i, np.float32) for i in range(items)]
    pipe = s.pipeline(arrays).map(wait).map(wait).map(wait).to_device(depth=2)
    started = perf_counter()
    for x in arrays[:20]:
        await wait(x)
    alone = (perf_counter() - started) / 20
    started, total = perf_counter(), 0.0
    async with pipe.open() as batches:
        async for x in batches:
            total += await x.mean().item()
    per_item = (perf_counter() - started) / items
    assert total == sum(range(items))
    print(f"\nA pipeline of three stages that wait {STEP * 1e3:.0f} ms, and then the device: {items} items\n")
    print(
        f"one stage alone {alone * 1e3:.2f} ms, the pipeline {per_item * 1e3:.2f} ms an item:"
        f" {per_item / alone:.2f} times as long"
    )
    for stage in pipe.statistics().stages:
        print(
            f"{stage.name:14}{stage.items:5} items  busy {stage.busy_seconds:6.2f} s"
            f"  waiting for input {stage.input_wait_seconds:6.2f} s, for room {stage.room_wait_seconds:6.2f} s"
        )
    print(f"bottleneck: {pipe.statistics().bottleneck}")


async def wait(x: np.ndarray) -> np.ndarray:
    """A stage that waits, as for a disk or a network."""
    await asyncio.sleep(STEP)
    return x


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24, help="steps of the loop (default %(default)s)")
    parser.add_argument("--items", type=int, default=200, help="items of the pipeline (default %(default)s)")
    options = parser.parse_args()
    asc.run(main(options.steps, options.items))
