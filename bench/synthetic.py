"""A training loop on made-up data, 512 -> 2048 -> 512 -> 1, its backward pass written by hand.

`python -m bench.synthetic WHO STEPS SIZE` runs one contestant and prints its peak bytes as JSON, in a process of its
own since a process has but one resident set.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

RATE = 1e-3


@dataclass(frozen=True)
class Size:
    """Rows of a batch, and the widths of the layers."""

    batch: int
    widths: tuple[int, ...]


SIZES = {"full": Size(1024, (512, 2048, 512, 1)), "quick": Size(128, (128, 512, 128, 1))}
BOUNDS: dict[str, dict[str, Any]] = {
    "bounded": {},
    "unbounded": {"max_ops": None, "max_bytes": None, "max_pending": None},
}


def size(quick: bool) -> str:
    """The name of the size to take."""
    return "quick" if quick else "full"


def parameters(size: str) -> list[np.ndarray[Any, Any]]:
    """Weights and biases, layer by layer."""
    rng = np.random.default_rng(0)
    found: list[np.ndarray[Any, Any]] = []
    for inputs, outputs in pairwise(SIZES[size].widths):
        weights = rng.standard_normal((inputs, outputs)) / inputs**0.5
        found += [weights.astype(np.float32), np.zeros(outputs, np.float32)]
    return found


def batches(size: str) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """A few batches, used in turn."""
    rng = np.random.default_rng(1)
    shape = SIZES[size].batch, SIZES[size].widths[0]
    draws = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    return [(x, x[:, :1] * 2 + 1) for x in draws]


def step(weights: Sequence[Any], x: Any, target: Any) -> list[Any]:
    """One step of gradient descent on the squared error. For ndarrays as for tensors."""
    w1, b1, w2, b2, w3, b3 = weights
    h1 = x @ w1 + b1
    a1 = h1 * (h1 > 0)
    h2 = a1 @ w2 + b2
    a2 = h2 * (h2 > 0)
    d3 = (a2 @ w3 + b3 - target) * (2 / x.shape[0])
    d2 = (d3 @ w3.T) * (h2 > 0)
    d1 = (d2 @ w2.T) * (h1 > 0)
    gradients = [x.T @ d1, d1.sum(axis=0), a1.T @ d2, d2.sum(axis=0), a2.T @ d3, d3.sum(axis=0)]
    return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


def inline(steps: int, size: str) -> float:
    """Seconds of NumPy on this thread, each batch copied first as `put` does."""
    weights, data = parameters(size), batches(size)
    started = perf_counter()
    for i in range(steps):
        x, target = data[i % len(data)]
        weights = step(weights, x.copy(), target.copy())
    return perf_counter() - started


async def scheduled(steps: int, size: str, bounds: str) -> tuple[float, int]:
    """Seconds, and the peak of tracked bytes."""
    import asyncsched as asc  # which not every contestant's environment has

    data = batches(size)
    async with asc.Scheduler("cpu", **BOUNDS[bounds]) as s:
        weights: list[Any] = [await s.put(w) for w in parameters(size)]
        started = perf_counter()
        for i in range(steps):
            x, target = data[i % len(data)]
            weights = step(weights, await s.put(x), await s.put(target))
        await asc.gather(*weights)
        return perf_counter() - started, s.statistics().peak_bytes


def peaks(who: str, steps: int, size: str) -> dict[str, int]:
    """Peak tracked bytes, and how much the resident set grew at most."""
    before = resident("VmRSS")
    tracked = 0
    if who == "inline":
        inline(steps, size)
    else:
        _, tracked = asyncio.run(scheduled(steps, size, who))
    return {"tracked": tracked, "resident": resident("VmHWM") - before}


def new_peak() -> int:
    """The resident set, from which its peak counts anew; 0 where that cannot be told."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return 0
    return resident("VmRSS")


def resident(field: str) -> int:
    """From /proc, since `getrusage` hands a child its parent's peak; 0 where there is none."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
    except OSError:
        return 0


if __name__ == "__main__":
    print(json.dumps(peaks(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
