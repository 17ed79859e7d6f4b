"""The text explains the gain by three stages of an operation: the front end issues it ($t_1$), the back end computes it
($t_2$), the front end gets the result ($t_3$). Synchronously $n$ operations take $n\\,(t_1 + t_2 + t_3)$,
asynchronously $t_1 + n\\,t_2 + t_3$, *if* $n\\,t_2 > (n - 1)\\,t_1$.

Here all three are measured, at three sizes. $t_1$ is the median time of the line `y = x + 1`. $t_2$ is NumPy's time for
the same addition into an existing array. $t_3$ is the rest of a synchronous round. The dashed line is a least-squares
fit through the asynchronous points. If the assumption holds, and the machine does nothing else, the formula's dotted
line is near it. If computing is quicker than issuing, the formula fails: the slope is the host's time for an operation,
not $t_2$.
"""

from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from book import HERE, LIGHT, QUICK, show

import asyncsched as asc

MOST, ROUNDS = (1000, 1) if QUICK else (10_000, 12)  # the quickest counts, since other work only adds time
SHAPES = {(1, 2): MOST, (160, 160): MOST // 4, (1000, 1000): MOST // 20}  # float32: 8 B, 100 KiB, 3.8 MiB


@dataclass
class Found:
    """Seconds: of each stage, and of each count of increments."""

    shape: tuple[int, int]
    counts: list[int]
    t1: float
    t2: float
    synchronous: list[float]
    asynchronous: list[float]

    def __post_init__(self) -> None:
        self.n = self.counts[-1]
        self.t3 = self.synchronous[-1] / self.n - self.t1 - self.t2
        self.slope, self.intercept = np.polyfit(self.counts, self.asynchronous, 1, w=1 / np.array(self.asynchronous))


async def stages() -> None:
    async with asc.Scheduler("cpu", max_pending=None) as s:
        found = [await measured(s, shape, most) for shape, most in SHAPES.items()]
    print(f"{'microseconds':14}{'t1':>8}{'t2':>8}{'t3':>8}{'slope':>8}   n t2 > (n-1) t1   T(n) / (t1 + n t2 + t3)")
    for f in found:
        times = "".join(f"{t * 1e6:8.1f}" for t in (f.t1, f.t2, f.t3, f.slope))
        told = "holds" if f.n * f.t2 > (f.n - 1) * f.t1 else "fails"
        print(f"{f.shape!s:14}{times}{told:>12}{f.asynchronous[-1] / (f.t1 + f.n * f.t2 + f.t3):22.2f}")
    show(draw(found), "stages")


async def measured(s: asc.Scheduler, shape: tuple[int, int], most: int) -> Found:
    host = np.ones(shape, np.float32)
    x, out, issuing = await s.put(host), np.empty_like(host), []

    async def synchronous(n: int) -> None:
        for _ in range(n):
            start = perf_counter()
            y = x + 1
            issuing.append(perf_counter() - start)
            await y

    async def asynchronous(n: int) -> None:
        for _ in range(n):
            y = x + 1
        await y

    computing = await asc.measure(lambda: np.add(host, 1, out), 200)
    counts = [most // 10, most // 5, most // 2, most]
    each, last = [
        [(await asc.measure(partial(way, n), ROUNDS, warm_up=0)).finish.best for n in counts]
        for way in (synchronous, asynchronous)
    ]
    return Found(shape, counts, median(issuing), computing.issue.median, each, last)


def draw(found: list[Found]) -> object:
    figure, panels = plt.subplots(1, len(found), figsize=(10, 3.2), layout="constrained")
    for axes, f in zip(panels, found, strict=True):
        ns = np.array([0, *f.counts])
        axes.plot(f.counts, np.array(f.synchronous) * 1e3, "o-", color=LIGHT, label="synchronous")
        axes.plot(f.counts, np.array(f.asynchronous) * 1e3, "s", color=HERE, label="asynchronous")
        axes.plot(ns, (f.intercept + ns * f.slope) * 1e3, "k--", linewidth=1, label="a line, fitted to these")
        axes.plot(ns, (f.t1 + ns * f.t2 + f.t3) * 1e3, ":", color="tab:red", label="$t_1 + n\\,t_2 + t_3$")
        axes.set(title=f"{f.shape}, float32", xlabel="increments $n$", xlim=0, ylim=0)
    panels[0].set_ylabel("time (ms)")
    panels[0].legend(frameon=False)
    return figure


if __name__ == "__main__":
    asc.run(stages)
