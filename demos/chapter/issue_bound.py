"""## Exercise 1: why is $n\\,t_2 > (n - 1)\\,t_1$ assumed?

Because the back end cannot start on what has not been issued. The last operation is issued after $n\\,t_1$; if
computing keeps up, it is computed then, and $n\\,t_1 + t_2 + t_3$ have passed. Only if the back end always has
something left to do, its $n\\,t_2$ count, and issuing but once: $t_1 + n\\,t_2 + t_3$. In both cases the slower of
the two sets the pace:

$$T(n) = t_1 + (n - 1)\\,\\max(t_1, t_2) + t_2 + t_3$$

To see the bend, $t_1$ is held at a millisecond here, by a host that sleeps for so long over each operation, and $t_2$
goes from a tenth of it to twice as much, by a task that sleeps on its stream. The lines are not fitted, but computed.
"""

from functools import partial
from time import sleep

import matplotlib.pyplot as plt
import numpy as np
from book import QUICK, show

import asyncsched as asc

N, T1 = 5 if QUICK else 50, 1e-3
T2S = np.array([0.1, 0.4, 0.7, 1.0, 1.3, 1.6, 2.0]) * 1e-3


async def issue_bound() -> None:
    async with asc.Scheduler("cpu") as s:
        t1 = await slept(T1)
        t2s, times = [], []
        for t2 in T2S:
            t2s.append(await slept(t2))
            times.append((await asc.measure(partial(operations, s, t2), 1, warm_up=0)).finish.median)
    told, bend = [t1 + N * t2 for t2 in t2s], [t1 + (N - 1) * max(t1, t2) + t2 for t2 in t2s]
    print(f"{N} operations, t1 = {t1 * 1e3:.2f} ms\n\n{'t2':>8}{'measured':>12}{'t1 + n t2':>12}{'by the slower':>16}")
    for row in zip(t2s, times, told, bend, strict=True):
        print("{:5.2f} ms{:9.1f} ms{:9.1f} ms{:13.1f} ms".format(*(1e3 * time for time in row)))
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    x, scale = np.array(t2s) / t1, 1e3
    axes.plot(x, np.array(told) * scale, ":", color="tab:red", label="$t_1 + n\\,t_2$: what the text assumes")
    axes.plot(x, np.array(bend) * scale, "k--", linewidth=1, label="$t_1 + (n - 1)\\,\\max(t_1, t_2) + t_2$")
    axes.plot(x, np.array(times) * scale, "o", color="tab:blue", label="measured")
    axes.set(xlabel="$t_2\\, /\\, t_1$", ylabel=f"time of {N} operations (ms)", xlim=0, ylim=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "issue_bound")


def operations(s: asc.Scheduler, t2: float) -> None:
    for _ in range(N):
        sleep(T1)  # the host is busy over each: so no `await asyncio.sleep`
        s.submit_nowait(sleep, t2)


async def slept(seconds: float) -> float:
    """How long such a sleep takes: longer than it was told."""
    return (await asc.measure(partial(sleep, seconds), 20)).issue.median


if __name__ == "__main__":
    asc.run(issue_bound)
