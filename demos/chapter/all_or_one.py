"""## Exercise 4: waiting for all, and for one

Ten products are queued, each of the one before. Then the host waits for an intermediate one, or for everything. A
barrier on one tensor waits for its inputs, and for nothing else: later products go on meanwhile. So the time until the
host may go on grows with the place in the queue, and `await s.barrier()` takes as long as the last one.
"""

from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from book import HERE, LIGHT, QUICK, duration, show

import asyncsched as asc

QUEUED, SIZE, ROUNDS = 10, 100 if QUICK else 500, 2 if QUICK else 5


async def all_or_one() -> None:
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.eye(SIZE, dtype=np.float32))
        waits = {f"await y[{place}]": await waited(s, x, place) for place in (0, 2, 4, 6, 8, 9)}
        waits["await s.barrier()"] = await waited(s, x, None)
    for what, (seconds, done) in waits.items():
        print(f"{what:18} returned after {duration(seconds):>8}, with {done:2} of {QUEUED} done")
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    colours = [LIGHT if "barrier" in what else HERE for what in waits]
    times = [1e3 * seconds for seconds, _ in waits.values()]
    drawn = axes.barh(list(waits), times, color=colours)
    axes.bar_label(drawn, [f" {done} of {QUEUED} done" for _, done in waits.values()])
    axes.set(xlabel="time until the host goes on (ms)", xlim=(0, 1.2 * max(times)))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "all_or_one")


async def waited(s: asc.Scheduler, x: asc.Tensor, place: int | None) -> tuple[float, int]:
    """For the quickest round: seconds until the host went on, and how many products were done then."""
    rounds = []
    for _ in range(ROUNDS):
        await s.barrier()
        start, y = perf_counter(), [x @ x]
        while len(y) < QUEUED:
            y.append(y[-1] @ x)
        await (s.barrier() if place is None else y[place])
        rounds.append((perf_counter() - start, sum(t.done() for t in y)))
    return min(rounds)


if __name__ == "__main__":
    asc.run(all_or_one)
