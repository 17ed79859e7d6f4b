"""## Exercise 1: why is $n\\,t_2 > (n - 1)\\,t_1$ assumed?

Because the back end cannot start an operation that has not been issued. The last operation is issued after $n\\,t_1$.
If computing keeps up, it is computed then, and the whole takes $n\\,t_1 + t_2 + t_3$. Only if the back end always has
operations to compute, its $n\\,t_2$ count, and issuing counts once: $t_1 + n\\,t_2 + t_3$. In both cases the slower of
the two sets the pace:

$$T(n) = t_1 + (n - 1)\\,\\max(t_1, t_2) + t_2 + t_3$$

To show the bend, $t_1$ is a millisecond here: the host sleeps so long for each operation. $t_2$ goes from a tenth of
that to twice as much: the task sleeps on its stream. The lines are computed, not fitted.
"""

from time import perf_counter, sleep

import matplotlib.pyplot as plt
import numpy as np
from book import QUICK, show

import asyncsched as asc

N, T1 = 5 if QUICK else 50, 1e-3
T2S = np.array([0.1, 0.4, 0.7, 1.0, 1.3, 1.6, 2.0]) * 1e-3


async def issue_bound() -> None:
    async with asc.Scheduler("cpu") as s:
        runs = [min([await run(s, t2) for _ in range(1 if QUICK else 3)]) for t2 in T2S]  # the quickest counts
    times, t1s, t2s = np.array(runs).T
    told, bend = t1s + N * t2s, t1s + (N - 1) * np.maximum(t1s, t2s) + t2s
    print(f"{N} operations\n\n{'t1':>8}{'t2':>11}{'measured':>12}{'t1 + n t2':>12}{'by the slower':>16}")
    for row in zip(t1s, t2s, times, told, bend, strict=True):
        print("{:5.2f} ms{:8.2f} ms{:9.1f} ms{:9.1f} ms{:13.1f} ms".format(*(1e3 * time for time in row)))
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    x, unit = t2s / t1s, N * t1s
    axes.plot(x, told / unit, ":", color="tab:red", label="$t_1 + n\\,t_2$: what the text assumes")
    axes.plot(x, bend / unit, "k--", linewidth=1, label="$t_1 + (n - 1)\\,\\max(t_1, t_2) + t_2$")
    axes.plot(x, times / unit, "o", color="tab:blue", label="measured")
    axes.set(xlabel="$t_2\\, /\\, t_1$", ylabel=f"time of {N} operations, of $n\\,t_1$", xlim=0, ylim=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "issue_bound")


async def run(s: asc.Scheduler, t2: float) -> tuple[float, float, float]:
    """Seconds for all operations, and the measured t1 and t2, since a sleep takes longer than asked."""
    issuing: list[float] = []
    computing: list[float] = []
    async with asc.Timer() as t:
        for _ in range(N):
            slept(T1, issuing)  # the host is busy with each, so no `await asyncio.sleep`
            s.submit_nowait(slept, t2, computing)
    return t.seconds, float(np.mean(issuing)), float(np.mean(computing))


def slept(seconds: float, spent: list[float]) -> None:
    start = perf_counter()
    sleep(seconds)
    spent.append(perf_counter() - start)


if __name__ == "__main__":
    asc.run(issue_bound)
