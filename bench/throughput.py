"""How fast streams run, and what bounds cost and save."""

from __future__ import annotations

from collections import deque
from typing import Any

from .graphs import LARGE, add_repeatedly, ones, plus_one
from .harness.contestant import Prepare, Run, Work
from .harness.rows import Row, Target
from .libraries import Library
from .perceptron import batches, new_peak, parameters, resident, size, step

MAX_OPS = (1, 2, 4, 16, 64, 256, None)
UNBOUNDED = "asyncsched max_ops=null max_bytes=null max_pending=null"


async def additions(library: Library, n: int) -> Run:
    """Issue everything, then await in order, letting each result go: together they would be gigabytes."""
    x = await library.put(ones((200, 200) if library.quick else LARGE))

    async def run(count: int) -> None:
        for _ in range(count):
            if library.apply is None:
                add_repeatedly(x, n)
                await library.finish([])
                continue
            waiting = deque(library.apply(plus_one, x) for _ in range(n))
            while waiting:
                await waiting.popleft()

    return run


async def training(library: Library, n: int) -> Run:
    """Steps written by hand, each batch new from the host."""
    made = size(library.quick)
    data, weights = batches(made), [await library.put(w) for w in parameters(made)]

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count * n):
            x, target = [await library.put(array) for array in data[i % len(data)]]
            if library.module == "numpy":
                x, target = x.copy(), target.copy()  # as `put` does
            weights = step(weights, x, target)
        await library.finish(weights)

    return run


def peak(tracked: bool) -> Prepare:
    """Bytes at the peak of such steps: those that are tracked, or the growth of the process."""

    async def prepare(library: Any, n: int) -> Run:
        before = new_peak()

        async def run(count: int) -> float:
            await (await training(library, n))(1)
            return float(library.s.statistics().peak_bytes if tracked else resident("VmHWM") - before)

        return run

    return prepare


WORKS: dict[str, Work] = {
    "additions": Work(additions, 1_000, 50),
    "training": Work(training, 20, 1),
    "tracked": Work(peak(tracked=True), 60, 1, once=True),
    "resident": Work(peak(tracked=False), 60, 1, once=True),
}
_BOUNDS = {"unbounded": UNBOUNDED, "asyncsched": "asyncsched"}
ROWS = (
    Row(
        "additions",
        "`x + 1` on (1000, 1000), 1,000 at a time",
        "us",
        {
            "NumPy": ("numpy", "throughput.additions"),
            "two streams": ("asyncsched streams=2", "throughput.additions"),
            "one stream": ("asyncsched streams=1", "throughput.additions"),
            "run_in_executor": ("run_in_executor", "throughput.additions"),
            "to_thread": ("to_thread", "throughput.additions"),
        },
        {"two streams": Target(0.9, "0.6x is aimed at")},
    ),
    Row(
        "training",
        "a step of the perceptron, written by hand",
        "ms",
        {who: (name, "throughput.training") for who, name in _BOUNDS.items()}
        | {"NumPy": ("numpy", "throughput.training")},
        {"asyncsched": Target(1.0, "a bound costs nothing")},
    ),
    Row(
        "tracked",
        "tracked bytes at the peak of 60 such steps",
        "MiB",
        {who: (name, "throughput.tracked") for who, name in _BOUNDS.items()},
        fresh=True,
    ),
    Row(
        "resident",
        "growth of the process at the peak of 60 such steps",
        "MiB",
        {who: (name, "throughput.resident") for who, name in _BOUNDS.items()}
        | {"NumPy": ("numpy", "throughput.resident")},
        fresh=True,
    ),
    Row(
        "max_ops",
        "`x + 1` on (1000, 1000), two streams, by `max_ops`",
        "us",
        {"NumPy": ("numpy", "throughput.additions")}
        | {
            str(most): (f"asyncsched streams=2 max_ops={'null' if most is None else most}", "throughput.additions")
            for most in MAX_OPS
        },
    ),
)
