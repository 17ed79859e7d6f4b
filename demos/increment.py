"""y = x + 1, n times: synchronously (await each) and asynchronously (issue all, await the last).

The model, with times in seconds and n the number of operations:

    asynchronous    T(n) = t1 + n * t2 + t3
    synchronous     T(n) = n * (t1 + t2 + t3)

    t1  issuing      how long `x + 1` takes until it returns a handle: the median over synchronous rounds
    t2  one more     the slope of the asynchronous T(n)
    t3  coming back  what is left of a synchronous round, its slope - t1 - t2: the result is noticed, the waiter resumed

The dashed line is the least-squares line through the asynchronous points; the table says by how much the farthest one
is off. So its intercept, which should be about t1 + t3, is a check, though a noisy one. Where an operation computes for
longer than it takes to issue, t2 is the computing. Elsewhere the host cannot keep up: the slope is the host's time for
each operation, and t3, the rest, means little and may even come out negative. (Arrays up to 72 KiB are left out: with
nothing queued ahead they are computed where they are issued, so nothing is left to overlap.)

    python demos/increment.py [--counts 100 200 500 1000] [--plot increment.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # at once: what follows takes a while to load

import numpy as np

import asyncsched as asc

SHAPES = {"small": (256, 256), "medium": (512, 512), "large": (1024, 1024)}  # float32: 256 KiB, 1 MiB, 4 MiB


@dataclass(frozen=True)
class Measured:
    """The times of one shape. `counts[i]` operations took `synchronous[i]`, `asynchronous[i]` or `numpy[i]` seconds."""

    name: str
    shape: tuple[int, int]
    counts: list[int]
    synchronous: list[float]
    asynchronous: list[float]
    numpy: list[float]
    t1: float
    issuing: float  # how long each operation kept the host when none but the last was awaited

    @property
    def t2(self) -> float:
        return line(self.counts, self.asynchronous)[0]

    @property
    def t3(self) -> float:
        return line(self.counts, self.synchronous)[0] - self.t1 - self.t2

    @property
    def intercept(self) -> float:
        return line(self.counts, self.asynchronous)[1]

    def model(self, n: Any) -> Any:
        """The asynchronous time of n operations, by the line through the points."""
        return self.intercept + n * self.t2

    @property
    def off(self) -> float:
        """How far the farthest point is from that line, as a share of its time."""
        times = np.array(self.asynchronous)
        return float(np.max(np.abs(self.model(np.array(self.counts)) - times) / times))


async def main(counts: list[int], repeats: int, plot: str | None) -> None:
    async with asc.Scheduler(streams=1, max_pending=None) as s:  # so that the last one is the last
        results = [await measure(s, name, shape, counts, repeats) for name, shape in SHAPES.items()]
    table(results)
    for result in results:
        print(described(result))
    if plot:
        draw(results, plot)
        print(f"\nplot: {plot}")


async def measure(s: asc.Scheduler, name: str, shape: tuple[int, int], counts: list[int], repeats: int) -> Measured:
    host = np.zeros(shape, np.float32)
    x = await s.put(host)
    alone: list[float] = []
    ahead: list[float] = []

    async def synchronous(n: int) -> None:
        for _ in range(n):
            start = perf_counter()
            y = x + 1
            alone.append(perf_counter() - start)
            await y

    async def asynchronous(n: int) -> None:
        start = perf_counter()
        for _ in range(n):
            y = x + 1
        ahead.append((perf_counter() - start) / n)
        await y

    async def numpy(n: int) -> None:
        for _ in range(n):
            host + 1

    each, last, eager = [await best(way, counts, repeats) for way in (synchronous, asynchronous, numpy)]
    return Measured(name, shape, counts, each, last, eager, t1=median(alone), issuing=median(ahead))


async def best(way: Callable[[int], Awaitable[None]], counts: list[int], repeats: int) -> list[float]:
    """The shortest of several times for each count: others' work on this machine can only add."""
    await way(counts[0])  # warm up
    times = [float("inf")] * len(counts)
    for _ in range(repeats):
        for i, n in enumerate(counts):
            start = perf_counter()
            await way(n)
            times[i] = min(times[i], perf_counter() - start)
    return times


def line(xs: list[int], ys: list[float]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line. The noise grows with the times, so the weights fall with them."""
    slope, intercept = np.polyfit(xs, ys, 1, w=1 / np.array(ys))
    return float(slope), float(intercept)


def table(results: list[Measured]) -> None:
    print(f"{'shape':20}{'n':>7}{'synchronous':>15}{'asynchronous':>15}{'ratio':>8}{'NumPy':>12}{'model':>12}")
    for r in results:
        for n, sync, together, eager in zip(r.counts, r.synchronous, r.asynchronous, r.numpy, strict=True):
            times = f"{sync * 1e3:12.2f} ms{together * 1e3:12.2f} ms{sync / together:8.2f}{eager * 1e3:9.2f} ms"
            print(f"{r.name:8}{r.shape!s:12}{n:7}{times}{r.model(n) * 1e3:9.2f} ms")
    print(f"\n{'microseconds':20}{'t1':>12}{'t2':>12}{'t3':>12}{'t1 + t3':>12}{'intercept':>12}{'off by':>12}")
    for r in results:
        fitted = (r.t1, r.t2, r.t3, r.t1 + r.t3, r.intercept)
        print(f"{r.name:8}{r.shape!s:12}" + "".join(f"{t * 1e6:12.1f}" for t in fitted) + f"{r.off:12.1%}")
    print()


def described(r: Measured) -> str:
    """What the numbers say, for the most operations."""
    each, last, eager = (times[-1] / r.counts[-1] * 1e6 for times in (r.synchronous, r.asynchronous, r.numpy))
    return (
        f"{r.name}: an operation takes {each:.1f} us when each is awaited, {last:.1f} us when only the last is. "
        f"Of these the host issues for {r.issuing * 1e6:.1f} us; NumPy alone computes for {eager:.1f} us."
    )


def draw(results: list[Measured], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(results), figsize=(4.2 * len(results), 3.8), layout="constrained")
    for axes, r in zip(panels, results, strict=True):
        axes.plot(r.counts, np.array(r.synchronous) * 1e3, "o-", label="synchronous: await each")
        axes.plot(r.counts, np.array(r.asynchronous) * 1e3, "s", label="asynchronous: await the last")
        ns = np.array([0, r.counts[-1]])
        axes.plot(ns, r.model(ns) * 1e3, "k--", linewidth=1, label="t1 + n t2 + t3, fitted")
        axes.plot(r.counts, np.array(r.numpy) * 1e3, ":", color="gray", label="NumPy")
        axes.set(title=f"{r.name}: {r.shape} float32", xlabel="operations n", xlim=0, ylim=0)
    panels[0].set_ylabel("time (ms)")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 200, 500, 1000], help="values of n, ascending")
    parser.add_argument("--repeats", type=int, default=8, help="times each is measured; the best counts (default 8)")
    parser.add_argument("--plot", metavar="PATH", help="write a PNG")
    options = parser.parse_args()
    asc.run(main(options.counts, options.repeats, options.plot))
